"""Everything a run page shows, read side by side.

A run page's state in the server while someone looks at it: a snapshot, moved on by live events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isentrope_dashboard import foreseen, hold_preview
from isentrope_dashboard.api_client import CHART_POINTS, RECENT_STEPS, SCORE_HISTOGRAM, ApiClient
from isentrope_dashboard.components import kpi_cards, load_errors
from isentrope_dashboard.components.load_errors import RECENT, Reading
from isentrope_dashboard.controls import IN_FORCE_STATES, ControlItem, ControlState
from isentrope_dashboard.diagnosis import AlertRow, CountedTokens
from isentrope_dashboard.figures import change_split, entropy
from isentrope_dashboard.method_forms import MethodForm
from isentrope_dashboard.predictions import Law
from isentrope_dashboard.records import (
    HistogramColumns,
    LatestValue,
    LiveEvent,
    RecordGap,
    RunSummary,
    SeriesColumns,
    StepRow,
)
from isentrope_wire.metrics import (
    ENTROPY_GAIN,
    ENTROPY_INTERVAL_COVERAGE,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
    HOLD_MU,
    HOLD_TARGET,
    METRICS,
    PROBE_DROPPED_REPORTS,
    TIME_STEP_SECONDS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the person looks at: part of the page's state in the browser."""

    window: str = "all"
    """`200`, `500` or `all` steps."""
    split: str = "quadrant"
    """How the unit prediction is told apart: one of `change_split.VIEWS`."""

    @property
    def steps(self) -> int | None:
        """How many of the last steps; None for all."""
        return int(self.window) if self.window.isdigit() else None

    @classmethod
    def from_json(cls, body: Mapping[str, Any] | None) -> View:
        known = body or {}
        return cls(window=str(known.get("window") or "all"), split=str(known.get("split") or "quadrant"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """Everything a run page shows at one moment."""

    run: RunSummary
    control: ControlState | None
    methods: Sequence[MethodForm] = ()
    """Those the server knows, whether the run's probe can carry them out or not."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the newest step's report says in words, by name."""
    latest: Mapping[str, LatestValue] = field(default_factory=dict)
    """Every metric the run ever reported, by name."""
    history: Sequence[ControlItem] = ()
    """Newest first."""
    gaps: Sequence[RecordGap] = ()
    """What is lost for good, newest first."""
    series: Mapping[str, SeriesColumns] = field(default_factory=dict)
    recent: Sequence[StepRow] = ()
    """The last steps in full, oldest first."""
    histograms: HistogramColumns = field(default_factory=HistogramColumns)
    law: Law = field(default_factory=Law)
    alerts: Sequence[AlertRow] = ()
    """Newest first."""
    tokens: CountedTokens = field(default_factory=CountedTokens)
    unread: Mapping[str, str] = field(default_factory=dict)
    """Part of the page -> why it could not be read, in one sentence."""


def rows_of(series: Mapping[str, SeriesColumns]) -> list[StepRow]:
    """Join columns into one row per step, oldest first; what was not measured stays absent."""
    rows: dict[int, dict[str, float]] = {}
    for name, columns in series.items():
        for step, value in zip(columns.steps, columns.values, strict=True):
            scalars = rows.setdefault(step, {})
            if value is not None:
                scalars[name] = value
    return [StepRow(step=step, scalars=scalars) for step, scalars in sorted(rows.items())]


_BESIDE = frozenset(
    {
        load_errors.HISTOGRAMS,
        load_errors.LABELS,
        load_errors.LATEST,
        load_errors.GAPS,
        load_errors.ALERTS,
        load_errors.TOKENS,
    }
)

CHART_METRICS = tuple(metric for metric in entropy.LIVE_METRICS if metric in METRICS)
RECENT_METRICS = tuple(
    dict.fromkeys(
        (
            *kpi_cards.CARDS.values(),
            *(metric for view in change_split.VIEWS.values() for metric, _ in view.parts),
            ENTROPY_PREDICTION_R2,
            ENTROPY_PREDICTION_SIGN_AGREEMENT,
            ENTROPY_INTERVAL_COVERAGE,
            ENTROPY_GAIN,
            HOLD_TARGET,
            HOLD_MU,
            *hold_preview.STEERING_METRICS,
            *foreseen.EVIDENCE,
            TIME_STEP_SECONDS,
            PROBE_DROPPED_REPORTS,
        )
    )
)
"""Whatever a part of the page reads from the newest steps, once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """Some of a snapshot's fields, read again."""

    fields: Mapping[str, Any]
    parts: frozenset[str]
    """Those that were asked for."""
    unread: Mapping[str, str]
    """Of these, the ones that could not be read, with why."""

    def onto(self, snapshot: RunSnapshot) -> RunSnapshot:
        """A snapshot that may have moved on meanwhile, with these fields."""
        others = {part: why for part, why in snapshot.unread.items() if part not in self.parts}
        return replace(snapshot, **self.fields, unread={**others, **self.unread})


async def read_snapshot(api: ApiClient, run_id: str, view: View) -> RunSnapshot:
    """What there is at this moment, within the window that is looked at; a part that can't be read says so itself.

    Raises:
        ApiError: nobody is signed in, or there is no such run.
        ApiUnreachableError: no answer came.
    """
    reading = Reading()
    run, methods = await asyncio.gather(api.run(run_id), reading.part(load_errors.METHODS, api.methods(), []))
    newest = run.step or 0
    chart_from = _first_of(view, newest)
    recent_from = max(0, newest - RECENT_STEPS + 1)
    law, beside, (chart, recent, control, history) = await asyncio.gather(
        read_law(api, run_id),
        read_beside(api, run, view),
        asyncio.gather(
            reading.part(load_errors.SERIES, api.series(run_id, CHART_METRICS, from_step=chart_from), {}),
            reading.part(load_errors.RECENT, api.series(run_id, RECENT_METRICS, from_step=recent_from), {}),
            reading.part(load_errors.CONTROL, api.control_or_none(run_id), None),
            reading.part(load_errors.HISTORY, api.history(run_id), []),
        ),
    )
    snapshot = RunSnapshot(
        run=run,
        control=control,
        history=history,
        methods=methods,
        series=chart,
        recent=rows_of(recent)[-RECENT_STEPS:],
        unread=reading.unread,
    )
    return law.onto(beside.onto(snapshot))


async def read_law(api: ApiClient, run_id: str) -> Reread:
    """The law of all steps so far."""
    reading = Reading()
    law = await reading.part(load_errors.LAW, api.law(run_id), Law())
    return Reread(fields={"law": law}, parts=frozenset({load_errors.LAW}), unread=reading.unread)


async def read_beside(api: ApiClient, run: RunSummary, view: View) -> Reread:
    """What no event of the live stream carries."""
    reading = Reading()
    first = _first_of(view, run.step or 0)
    histograms, labels, latest, gaps, alerts, tokens = await asyncio.gather(
        reading.part(
            load_errors.HISTOGRAMS, api.histograms(run.id, SCORE_HISTOGRAM, from_step=first), HistogramColumns()
        ),
        reading.part(load_errors.LABELS, api.labels(run.id, run.step), {}),
        reading.part(load_errors.LATEST, api.latest(run.id), {}),
        reading.part(load_errors.GAPS, api.gaps(run.id), []),
        reading.part(load_errors.ALERTS, api.alerts(run.id), []),
        reading.part(load_errors.TOKENS, api.tokens(run.id), CountedTokens()),
    )
    return Reread(
        fields={
            "histograms": histograms,
            "labels": labels,
            "latest": latest,
            "gaps": gaps,
            "alerts": alerts,
            "tokens": tokens,
        },
        parts=_BESIDE,
        unread=reading.unread,
    )


def _first_of(view: View, newest: int) -> int | None:
    """The first step that is looked at; None for all."""
    return None if view.steps is None else max(0, newest - view.steps + 1)


GROWTH_POINTS = 2 * CHART_POINTS
"""A chart of all steps grows to this many points before the server is asked to reduce it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What a batch of live events did to the page's state."""

    snapshot: RunSnapshot
    new_rows: tuple[StepRow, ...] = ()
    changed_controls: tuple[ControlItem, ...] = ()
    run_changed: bool = False
    start_over: bool = False
    """The steps went back or the chart is full: read a new snapshot instead."""


@dataclass(slots=True)
class _Batch:
    rows: list[StepRow] = field(default_factory=list)
    controls: dict[int, ControlItem] = field(default_factory=dict)


def advance(snapshot: RunSnapshot, events: Iterable[LiveEvent], *, first: bool, drawn_points: int) -> Advance:
    """Apply live events to a snapshot.

    Args:
        first: the batch may repeat what the snapshot already holds, because listening started before reading.
        drawn_points: how many points the entropy chart has.
    """
    batch, run, run_changed, start_over = _Batch(), snapshot.run, False, False
    newest = snapshot.recent[-1].step if snapshot.recent else -1
    for event in events:
        if event.step is not None:
            if event.step.step > newest:
                newest = event.step.step
                batch.rows.append(event.step)
            elif not first:
                start_over = True  # a resumed run repeats steps; what the chart shows is no longer what is stored
        elif event.control is not None:
            batch.controls[event.control.version] = event.control
        elif event.run is not None:
            run_changed = run_changed or event.run != run
            run = replace(event.run, capabilities=event.run.capabilities or run.capabilities)
    known = {item.version: item for item in snapshot.history}
    changed = tuple(item for item in batch.controls.values() if known.get(item.version) != item)
    return Advance(
        snapshot=replace(
            snapshot,
            run=replace(run, step=max(newest, run.step or 0)) if newest >= 0 else run,
            recent=[*snapshot.recent, *batch.rows][-RECENT_STEPS:],
            history=sorted((known | batch.controls).values(), key=lambda item: item.version, reverse=True),
            control=_follow(snapshot.control, changed),
        ),
        new_rows=tuple(batch.rows),
        changed_controls=changed,
        run_changed=run_changed,
        start_over=start_over
        or drawn_points + len(batch.rows) > GROWTH_POINTS
        or (not snapshot.recent and RECENT not in snapshot.unread),
    )


def points_kept(view: View) -> int:
    """How many points the entropy chart may hold: a window slides, the whole run grows."""
    return GROWTH_POINTS if view.steps is None else view.steps


def _follow(control: ControlState | None, changed: Iterable[ControlItem]) -> ControlState | None:
    for item in changed:
        if control is None or item.version < control.desired.version:
            continue
        running = item.values if item.state in IN_FORCE_STATES else control.in_force
        control = ControlState(desired=item, in_force=running, etag=f'"{item.version}"')
    return control
