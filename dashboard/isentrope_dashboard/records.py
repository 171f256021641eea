"""What the REST API tells, as the dashboard's own small dataclasses. Reading is lenient: unknown fields are ignored.

Times are seconds since the Unix epoch, entropies in nats, thresholds in standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from isentrope_dashboard.diagnosis import Diagnosis
from isentrope_dashboard.json_values import measured
from isentrope_dashboard.predictions import Law

TERMINAL_STATES = frozenset({"APPLIED", "PARTIAL", "REJECTED", "EXPIRED", "SUPERSEDED"})
IN_FORCE_STATES = frozenset({"APPLIED", "PARTIAL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run as lists and status lines show it."""

    id: str
    name: str
    project: str
    status: str
    """`running`, `finished`, `failed` or `silent`."""
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
class ControlValues:
    """What a control asks for, as the form sets it."""

    method: str = "none"
    mu_low: float | None = None
    mu_high: float | None = None
    scope: str = "all"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """The method's own by name; those left out stand at their defaults."""

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ControlValues:
        return cls(
            method=str(body.get("method") or "none"),
            mu_low=measured(body.get("mu_low")),
            mu_high=measured(body.get("mu_high")),
            scope=str(body.get("scope") or "all"),
            parameters=dict(body.get("parameters") or {}),
        )

    def to_json(self) -> dict[str, Any]:
        """As the form knows it."""
        return {
            "method": self.method,
            "mu_low": self.mu_low,
            "mu_high": self.mu_high,
            "scope": self.scope,
            "parameters": dict(self.parameters),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterForm:
    """One parameter of a method: a number within bounds, or one of several words."""

    name: str
    kind: str
    """`number`, `whole` or `choice`."""
    default: float | int | str | None
    """None: off."""
    range: str
    """What it takes, in words."""
    sense: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    minimum_excluded: bool = False
    maximum: float | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> ParameterForm:
        return cls(
            name=str(body["name"]),
            kind=str(body.get("kind") or "number"),
            default=body.get("default"),
            range=str(body.get("range") or ""),
            sense=str(body.get("sense") or ""),
            choices=tuple(str(choice) for choice in body.get("choices") or ()),
            minimum=measured(body.get("minimum")),
            minimum_excluded=bool(body.get("minimum_excluded")),
            maximum=measured(body.get("maximum")),
        )

    def to_json(self) -> dict[str, Any]:
        """As the form in the browser checks by it."""
        return {
            "kind": self.kind,
            "default": self.default,
            "range": self.range,
            "minimum": self.minimum,
            "minimumExcluded": self.minimum_excluded,
            "maximum": self.maximum,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodForm:
    """A method the server knows, and what can be set of it."""

    method: str
    parameters: tuple[ParameterForm, ...] = ()

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> MethodForm:
        parameters = tuple(ParameterForm.from_json(item) for item in body.get("parameters") or ())
        return cls(method=str(body["method"]), parameters=parameters)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """The scalars of one step; a metric that was not measured is absent."""

    step: int
    scalars: Mapping[str, float]
    recorded_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveEvent:
    """One event of a run's live stream: exactly one of the three payloads."""

    cursor: str
    step: StepRow | None = None
    control: ControlItem | None = None
    run: RunSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the person looks at: part of the page's state in the browser."""

    window: str = "all"
    """`200`, `500` or `all` steps."""

    @property
    def steps(self) -> int | None:
        """How many of the last steps; None for all."""
        return int(self.window) if self.window.isdigit() else None

    @classmethod
    def from_json(cls, body: Mapping[str, Any] | None) -> View:
        return cls(window=str((body or {}).get("window") or "all"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """Everything a run page shows at one moment."""

    run: RunSummary
    control: ControlState | None
    methods: Sequence[MethodForm] = ()
    """Those the server knows, whether the run's probe can carry them out or not."""
    dead_knobs: str = ""
    """What of the control in force could not act in the newest step, and why; empty where all could."""
    history: Sequence[ControlItem] = ()
    """Newest first."""
    series: Mapping[str, SeriesColumns] = field(default_factory=dict)
    recent: Sequence[StepRow] = ()
    """The last steps in full, oldest first."""
    histograms: HistogramColumns = field(default_factory=HistogramColumns)
    law: Law = field(default_factory=Law)
    diagnosis: Diagnosis = field(default_factory=Diagnosis)


def seconds_since_epoch(value: object) -> float | None:
    """A time given as seconds or as ISO 8601 text."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


def rows_of(series: Mapping[str, SeriesColumns]) -> list[StepRow]:
    """Join columns into one row per step, oldest first; what was not measured stays absent."""
    rows: dict[int, dict[str, float]] = {}
    for name, columns in series.items():
        for step, value in zip(columns.steps, columns.values, strict=True):
            scalars = rows.setdefault(step, {})
            if value is not None:
                scalars[name] = value
    return [StepRow(step=step, scalars=scalars) for step, scalars in sorted(rows.items())]
