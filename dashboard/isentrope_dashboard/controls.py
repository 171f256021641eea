"""A run's control as the REST API tells it: what is asked for, and what became of it.

Times are seconds since the Unix epoch, entropies in nats, thresholds in standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isentrope_wire.numbers import measured, seconds_since_epoch

TERMINAL_STATES = frozenset({"APPLIED", "PARTIAL", "REJECTED", "EXPIRED", "SUPERSEDED"})
IN_FORCE_STATES = frozenset({"APPLIED", "PARTIAL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldValues:
    """An entropy to hold, and the bounds of what may be done for it."""

    target_entropy: float
    max_change_per_step: float | None = None
    """Largest correction of one step, nats; None: the server's default."""
    mu_min: float | None = None
    mu_max: float | None = None
    side: str = "both"
    """`raise`, `lower` or `both`."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Fields this page does not know: a push must not drop them."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> HoldValues:
        known = ("target_entropy", "max_change_per_step", "mu_min", "mu_max", "side")
        return cls(
            target_entropy=measured(body.get("target_entropy")) or 0.0,
            max_change_per_step=measured(body.get("max_change_per_step")),
            mu_min=measured(body.get("mu_min")),
            mu_max=measured(body.get("mu_max")),
            side=str(body.get("side") or "both"),
            others={name: value for name, value in body.items() if name not in known},
        )

    def to_json(self) -> dict[str, Any]:
        """As a control document has it; what is left out keeps the server's default."""
        bounds = {"max_change_per_step": self.max_change_per_step, "mu_min": self.mu_min, "mu_max": self.mu_max}
        given = {name: value for name, value in bounds.items() if value is not None}
        return {**self.others, "target_entropy": self.target_entropy, **given, "side": self.side}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlValues:
    """What a control asks for, as the form sets it."""

    method: str = "none"
    mu_low: float | None = None
    mu_high: float | None = None
    scope: str = "all"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The method's own by name; those left out stand at their defaults."""
    hold: HoldValues | None = None
    """None: no entropy is held."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ControlValues:
        return cls(
            method=str(body.get("method") or "none"),
            mu_low=measured(body.get("mu_low")),
            mu_high=measured(body.get("mu_high")),
            scope=str(body.get("scope") or "all"),
            parameters=dict(body.get("parameters") or {}),
            hold=None if not body.get("hold") else HoldValues.from_json(body["hold"]),
        )

    def to_json(self) -> dict[str, Any]:
        """As the form knows it."""
        return {
            "method": self.method,
            "mu_low": self.mu_low,
            "mu_high": self.mu_high,
            "scope": self.scope,
            "parameters": dict(self.parameters),
            "hold": None if self.hold is None else self.hold.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlItem:
    """One version of a run's control and what became of it."""

    version: int
    state: str
    values: ControlValues
    reason: str = ""
    author: str = ""
    requested_at: float | None = None
    requested_step: int | None = None
    applied_at: float | None = None
    applied_step: int | None = None
    code: str = ""
    message: str = ""

    @property
    def terminal(self) -> bool:
        """Whether nothing more will happen to this version."""
        return self.state in TERMINAL_STATES

    @property
    def latency_seconds(self) -> float | None:
        """From the request to the trainer's acknowledgement."""
        if self.requested_at is None or self.applied_at is None:
            return None
        return max(0.0, self.applied_at - self.requested_at)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ControlItem:
        return cls(
            version=int(body["version"]),
            state=str(body.get("state") or "PENDING"),
            values=ControlValues.from_json(body),
            reason=str(body.get("reason") or ""),
            author=str(body.get("author") or ""),
            requested_at=seconds_since_epoch(body.get("requested_at")),
            requested_step=body.get("requested_step"),
            applied_at=seconds_since_epoch(body.get("applied_at")),
            applied_step=body.get("applied_step"),
            code=str(body.get("code") or ""),
            message=str(body.get("message") or ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlState:
    """The control a run should have, and the one it has."""

    desired: ControlItem
    in_force: ControlValues | None
    """None: the run reports a version that the server never gave out."""
    etag: str

    @property
    def reference(self) -> ControlValues:
        """What the form compares itself with: the desired control while it is on its way, then the one in force."""
        return self.in_force if self.desired.terminal and self.in_force is not None else self.desired.values

    @classmethod
    def from_json(cls, body: Mapping[str, Any], etag: str) -> ControlState:
        desired = ControlItem.from_json(body)
        in_force = body.get("in_force") or {}
        running: ControlValues | None
        if "method" in in_force:
            running = ControlValues.from_json(in_force)
        else:
            running = desired.values if desired.state in IN_FORCE_STATES else None
        return cls(desired=desired, in_force=running, etag=etag or f'"{desired.version}"')
