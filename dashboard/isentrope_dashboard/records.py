"""What the REST API tells, as the dashboard's own small dataclasses. Reading is lenient: unknown fields are ignored.

Times are seconds since the Unix epoch, entropies in nats, thresholds in standard deviations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isentrope_dashboard.controls import ControlItem
from isentrope_wire.numbers import measured, seconds_since_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run as lists and status lines show it."""

    id: str
    name: str
    project: str
    status: str
    """`running`, `finished`, `failed`, `ended` or `silent`."""
    step: int | None
    planned_steps: int | None = None
    created_at: float | None = None
    last_report_at: float | None = None
    capabilities: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods the run's probe can carry out."""
        return tuple(c.removeprefix("method:") for c in self.capabilities if c.startswith("method:"))

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> RunSummary:
        return cls(
            id=str(body["id"]),
            name=str(body.get("name") or body["id"]),
            project=str(body.get("project") or ""),
            status=str(body.get("status") or "silent"),
            step=body.get("step"),
            planned_steps=body.get("planned_steps"),
            created_at=seconds_since_epoch(body.get("created_at")),
            last_report_at=seconds_since_epoch(body.get("last_report_at")),
            capabilities=tuple(body.get("capabilities") or ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesColumns:
    """One metric over steps; `None` where it was not measured. `minimum` and `maximum` only where buckets were reduced."""

    steps: Sequence[int] = ()
    values: Sequence[float | None] = ()
    minimum: Sequence[float | None] | None = None
    maximum: Sequence[float | None] | None = None

    @property
    def reduced(self) -> bool:
        """Whether a value stands for a bucket of several steps."""
        return self.minimum is not None and self.maximum is not None and list(self.minimum) != list(self.maximum)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SeriesColumns:
        low, high = body.get("min"), body.get("max")
        return cls(
            steps=[int(step) for step in body.get("step", ())],
            values=[measured(value) for value in body.get("value", ())],
            minimum=None if low is None else [measured(value) for value in low],
            maximum=None if high is None else [measured(value) for value in high],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramColumns:
    """One histogram per step: counts over equal bins of [low, high]."""

    steps: Sequence[int] = ()
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    counts: Sequence[Sequence[int]] = ()

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> HistogramColumns:
        return cls(steps=body["step"], low=body["low"], high=body["high"], counts=body["counts"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """The scalars of one step; a metric that was not measured is absent."""

    step: int
    scalars: Mapping[str, float]
    recorded_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestValue:
    """The newest value of a metric, and the step it was measured at."""

    step: int
    value: float | None
    """None: what came is no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordGap:
    """Records that were lost before they reached the server."""

    first_seq: int
    last_seq: int
    reason: str

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> RecordGap:
        return cls(
            first_seq=int(body["first_seq"]),
            last_seq=int(body["last_seq"]),
            reason=str(body.get("reason") or "no reason told"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEvent:
    """One event of a run's live stream: exactly one of the three payloads."""

    cursor: str
    step: StepRow | None = None
    control: ControlItem | None = None
    run: RunSummary | None = None
