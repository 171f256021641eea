"""What goes over the line. Times are seconds since the Unix epoch, entropies are in nats."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, Field

from isentrope_server.api.control_schemas import ControlView
from isentrope_server.api.dependencies import Body
from isentrope_server.control.state import ControlStanding
from isentrope_server.security.tokens import Scope
from isentrope_server.store.access import StoredToken
from isentrope_server.store.reports.histograms import StoredHistogram
from isentrope_server.store.reports.series import LatestValue
from isentrope_server.store.reports.steps import StoredStep
from isentrope_server.store.runs import Run, Status
from isentrope_server.store.writer import StepStored
from isentrope_wire.numbers import Number, named_numbers, number, plain_json

_T = TypeVar("_T")


class Page(BaseModel, Generic[_T]):
    items: list[_T]
    next_cursor: str | None = Field(description="Give it as `cursor` to read on; null at the end.")


class ErrorDetail(BaseModel):
    code: str
    message: str
    details: dict[str, Any]


class ErrorBody(BaseModel):
    """The one error body."""

    error: ErrorDetail


class RunSummary(BaseModel):
    """A run in a list."""

    id: str
    name: str
    project: str
    status: Status
    step: int | None
    planned_steps: int | None
    created_at: float
    last_report_at: float | None
    tags: list[str]
    config: dict[str, Any]

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls.model_validate(_run_fields(run))


class RunDetail(RunSummary):
    """A run by itself."""

    notes: str
    finished_at: float | None
    error: str
    world_size: int
    probe_version: str
    capabilities: list[str] = Field(description="What its probe can be told to do.")
    incarnations: int = Field(description="How many lives the training process had.")
    control: ControlView

    @classmethod
    def described(cls, run: Run, standing: ControlStanding) -> Self:
        return cls.model_validate(_run_fields(run) | {"control": ControlView.of(standing)})


class RunEdit(Body):
    """What people may write on a run; fields left out stay as they are."""

    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] | None = Field(default=None, max_length=50)
    notes: str | None = Field(default=None, max_length=20_000)


class MetricOut(BaseModel):
    """A metric with its newest value."""

    name: str
    step: int
    value: Number

    @classmethod
    def of(cls, latest: LatestValue) -> Self:
        return cls(name=latest.name, step=latest.step, value=number(latest.value))


class SeriesColumns(BaseModel):
    """One metric over steps, as columns of one length, by rising step."""

    step: list[int]
    value: list[Number]
    min: list[Number] | None = Field(description="Of each bucket; null when the series was not reduced.")
    max: list[Number] | None


class SeriesAnswer(BaseModel):
    series: dict[str, SeriesColumns]
    cursor: str = Field(description="Give it as `since` to read only what is new.")
    reset: bool = Field(
        description="True: these are all points, replace what you had. False: add them, a step known already is replaced."
    )


class HistogramOut(BaseModel):
    """Counts over equal bins of [low, high]; values that are not finite are counted apart."""

    name: str
    low: Number
    high: Number
    counts: list[int]
    not_finite: int

    @classmethod
    def of(cls, histogram: StoredHistogram) -> Self:
        return cls(
            name=histogram.name,
            low=number(histogram.low),
            high=number(histogram.high),
            counts=histogram.counts.tolist(),
            not_finite=histogram.not_finite,
        )


class HistogramColumns(BaseModel):
    """One histogram over steps."""

    name: str
    step: list[int]
    low: list[Number]
    high: list[Number]
    counts: list[list[int]]
    not_finite: list[int]


class StepOut(BaseModel):
    """All that was reported of one step."""

    step: int
    recorded_at: float
    received_at: float
    control_version: int
    incarnation: str
    rank: int
    scalars: dict[str, Number]
    histograms: list[HistogramOut]
    labels: dict[str, str]

    @classmethod
    def of(cls, stored: StoredStep) -> Self:
        return cls(
            step=stored.step,
            recorded_at=stored.recorded_at,
            received_at=stored.received_at,
            control_version=stored.control_version,
            incarnation=stored.incarnation,
            rank=stored.rank,
            scalars=named_numbers(stored.scalars),
            histograms=[HistogramOut.of(histogram) for histogram in stored.histograms],
            labels=dict(stored.labels),
        )


class LiveStep(BaseModel):
    """The data of a live `step` event."""

    step: int
    recorded_at: float
    control_version: int
    rank: int
    scalars: dict[str, Number]

    @classmethod
    def of(cls, event: StepStored) -> Self:
        return cls(
            step=event.step,
            recorded_at=event.recorded_at,
            control_version=event.control_version,
            rank=event.rank,
            scalars=named_numbers(event.scalars),
        )


class TokenRequest(Body):
    scope: Scope
    name: str | None = Field(
        default=None, min_length=1, max_length=128, description="Stands beside every change made with it; the scope."
    )
    run: str | None = Field(
        default=None, min_length=1, max_length=128, description="Only with ingest: the one run it reports, id or name."
    )
    project: str | None = Field(
        default=None, min_length=1, max_length=500, description="Only with ingest: the project whose runs it reports."
    )


class TokenOut(BaseModel):
    """A token without its secret."""

    id: str
    name: str
    scope: Scope
    created_at: float
    revoked_at: float | None
    last_used_at: float | None = Field(description="To within some seconds; null: never.")
    run: str | None = Field(description="The only run it may report, by id or name; null: any.")
    project: str | None = Field(description="The only project it may report; null: any.")

    @classmethod
    def of(cls, token: StoredToken) -> Self:
        return cls(
            id=token.id,
            name=token.name,
            scope=Scope(token.scope),
            created_at=token.created_at,
            revoked_at=token.revoked_at,
            last_used_at=token.last_used_at,
            run=token.run,
            project=token.project,
        )


class CreatedToken(TokenOut):
    """A token at the only moment its secret is shown."""

    token: str


def _run_fields(run: Run) -> dict[str, object]:
    return {name: getattr(run, name) for name in _RUN_FIELDS} | {"config": plain_json(run.config)}


_RUN_FIELDS = [
    "id",
    "name",
    "project",
    "status",
    "step",
    "planned_steps",
    "created_at",
    "last_report_at",
    "tags",
    "notes",
    "finished_at",
    "error",
    "world_size",
    "probe_version",
    "capabilities",
    "incarnations",
]
