"""What a run page shows, read side by side: what changes with every step, and what is read less often."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components import kpi_cards, load_errors
from isentrope_dashboard.components.load_errors import Reading
from isentrope_dashboard.components.what_if import EVIDENCE, HOLD_EVIDENCE
from isentrope_dashboard.figures import change_split, entropy
from isentrope_dashboard.figures.entropy import Drawn
from isentrope_dashboard.figures.lines import StepRow, rows_of
from isentrope_wire.answers import (
    Alert,
    Gap,
    HistogramColumns,
    LatestMetric,
    RunDetail,
    SeriesAnswer,
    StepReport,
    TopTokens,
)
from isentrope_wire.control_answers import ControlVersion, EntropyPerformance
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
    VOCAB_CENTERED_SCORES,
)

CHART_POINTS = 2000
RECENT_STEPS = 240
HISTOGRAM_POINTS = 160
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
            *HOLD_EVIDENCE,
            *EVIDENCE,
            TIME_STEP_SECONDS,
            PROBE_DROPPED_REPORTS,
        )
    )
)
"""Everything that a part of the page reads from the newest steps."""
_NO_SERIES = SeriesAnswer(series={}, cursor="", reset=True)
_NO_HISTOGRAMS = HistogramColumns(name="", step=[], low=[], high=[], counts=[], not_finite=[])
_NO_TOKENS = TopTokens(step=None, items=[])


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the reader chose to look at: part of the page's state in the browser."""

    window: str = "all"
    """`200`, `500` or `all` steps."""
    split: str = "quadrant"
    """How the unit prediction is split: one of `change_split.VIEWS`."""

    @property
    def steps(self) -> int | None:
        """How many of the last steps; None for all."""
        return int(self.window) if self.window.isdigit() else None

    def first_step(self, newest: int | None) -> int | None:
        """The first step shown; None for all."""
        return None if self.steps is None else max(0, (newest or 0) - self.steps + 1)

    @classmethod
    def from_json(cls, body: Mapping[str, Any] | None) -> View:
        known = body or {}
        return cls(window=str(known.get("window") or "all"), split=str(known.get("split") or "quadrant"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSteps:
    """What a new step changes on the page, apart from the entropy chart."""

    run: RunDetail
    recent: Sequence[StepRow] = ()
    """The last steps in full, oldest first."""
    report: StepReport | None = None
    """Of the newest step."""
    latest: Mapping[str, LatestMetric] = field(default_factory=dict)
    """The newest value of metrics that no recent step has, by name."""

    @property
    def labels(self) -> Mapping[str, str]:
        return {} if self.report is None else self.report.labels


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """Everything that follows a run at once: the newest steps, the entropy chart, the control and its history."""

    newest: NewestSteps
    chart: SeriesAnswer = _NO_SERIES
    gaps: Sequence[Gap] = ()
    """Lost records, newest first; read only where the chart has gaps."""
    history: Sequence[ControlVersion] = ()
    """Newest first."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Part of the page -> why it failed to load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowParts:
    """What is read every few seconds while steps come: large answers, and those that change seldom."""

    step: int | None
    chart: SeriesAnswer = _NO_SERIES
    report: StepReport | None = None
    histograms: HistogramColumns = _NO_HISTOGRAMS
    latest: Mapping[str, LatestMetric] = field(default_factory=dict)
    """Every metric that the run ever reported, by name."""
    gaps: Sequence[Gap] = ()
    alerts: Sequence[Alert] = ()
    """Newest first."""
    tokens: TopTokens = _NO_TOKENS
    law: EntropyPerformance | None = None
    has_law: bool = True
    """False: the fit was not read this time."""
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a page shows, kept in the browser and sent with each question."""

    number: str
    """Differs from update to update."""
    cursor: str
    """Of the series: everything before it is drawn."""
    window: str
    split: str
    status: str
    control: str
    """`control_signature` of the run."""
    newest_version: int
    open_versions: list[int]
    """Control versions that had no final state."""
    chart: Drawn
    failed: bool
    """Whether a part failed to load."""
    read_at: float
    """Seconds since the Unix epoch."""
    step: int | None

    @classmethod
    def of(cls, snapshot: RunSnapshot, view: View) -> Shown:
        run = snapshot.newest.run
        return cls(
            number=uuid.uuid4().hex,
            cursor=snapshot.chart.cursor,
            window=view.window,
            split=view.split,
            status=run.status,
            control=control_signature(run),
            newest_version=run.control.version,
            open_versions=[item.version for item in snapshot.history if not item.state.is_final],
            chart=entropy.drawn(snapshot.chart.series),
            failed=bool(snapshot.errors),
            read_at=time.time(),
            step=run.step,
        )

    def after(self, run: RunDetail, view: View, cursor: str, chart: Drawn) -> Shown:
        """The same page with the newest steps."""
        return replace(
            self,
            number=uuid.uuid4().hex,
            cursor=cursor,
            split=view.split,
            status=run.status,
            chart=chart,
            step=run.step,
        )


def control_signature(run: RunDetail) -> str:
    """Changes with the control's version, its state and the active version."""
    active = run.control.active
    return f"{run.control.version} {run.control.state} {None if active is None else active.version}"


async def read_snapshot(api: AsyncClient, run: RunDetail, view: View) -> RunSnapshot:
    """The run within the window that is looked at.

    Raises:
        ApiError: Nobody is signed in.
    """
    reading = Reading()
    chart, newest, history = await asyncio.gather(
        reading.part(load_errors.SERIES, read_chart(api, run, view), _NO_SERIES),
        read_newest(api, run, reading),
        reading.part(load_errors.HISTORY, api.newest(calls.control_history(run.id), 100), []),
    )
    has_gaps = bool(entropy.gaps_of(chart.series))
    gaps = await reading.part(load_errors.GAPS, api.newest(calls.gaps(run.id), 20), []) if has_gaps else []
    return RunSnapshot(newest=newest, chart=chart, gaps=gaps, history=history, errors=reading.errors)


async def read_chart(api: AsyncClient, run: RunDetail, view: View) -> SeriesAnswer:
    """The metrics of the entropy chart."""
    first = view.first_step(run.step)
    return await api.ask(calls.series(run.id, CHART_METRICS, from_step=first, points=CHART_POINTS))


async def read_newest(api: AsyncClient, run: RunDetail, reading: Reading) -> NewestSteps:
    """The last steps of a run."""
    if run.step is None:
        return NewestSteps(run=run)
    first = max(0, run.step - RECENT_STEPS + 1)
    found, report = await asyncio.gather(
        reading.part(load_errors.RECENT, api.ask(calls.series(run.id, RECENT_METRICS, from_step=first)), _NO_SERIES),
        _read_report(api, run, reading),
    )
    recent = rows_of(found.series)[-RECENT_STEPS:]
    measured = {name for row in recent for name in row.scalars}
    known = measured.issuperset(kpi_cards.CARDS.values())
    latest = {} if known else await _read_latest(api, run.id, reading)
    return NewestSteps(run=run, recent=recent, report=report, latest=latest)


async def _read_latest(api: AsyncClient, run_id: str, reading: Reading) -> dict[str, LatestMetric]:
    return await reading.part(load_errors.LATEST, read_latest(api, run_id), {})


async def read_latest(api: AsyncClient, run_id: str) -> dict[str, LatestMetric]:
    """Every metric of a run with its newest value, by name."""
    return {metric.name: metric for metric in (await api.ask(calls.latest(run_id))).items}


async def read_slow_parts(api: AsyncClient, run: RunDetail, view: View, *, with_law: bool) -> SlowParts:
    """The parts that are read less often.

    Raises:
        ApiError: Nobody is signed in.
    """
    reading, first = Reading(), view.first_step(run.step)
    histograms = calls.histograms(run.id, VOCAB_CENTERED_SCORES, from_step=first, points=HISTOGRAM_POINTS)
    (chart, report, score, latest), (gaps, alerts, tokens, law) = await asyncio.gather(
        asyncio.gather(
            reading.part(load_errors.SERIES, read_chart(api, run, view), _NO_SERIES),
            _read_report(api, run, reading),
            reading.part(load_errors.HISTOGRAMS, api.ask(histograms), _NO_HISTOGRAMS),
            _read_latest(api, run.id, reading),
        ),
        asyncio.gather(
            reading.part(load_errors.GAPS, api.newest(calls.gaps(run.id), 20), []),
            reading.part(load_errors.ALERTS, api.newest(calls.alerts(run.id), 5), []),
            reading.part(load_errors.TOKENS, api.ask(calls.tokens(run.id)), _NO_TOKENS),
            _read_law(api, run.id, reading) if with_law else _nothing(),
        ),
    )
    return SlowParts(
        step=run.step,
        chart=chart,
        report=report,
        histograms=score,
        latest=latest,
        gaps=gaps,
        alerts=alerts,
        tokens=tokens,
        law=law,
        has_law=with_law,
        errors=reading.errors,
    )


async def _read_report(api: AsyncClient, run: RunDetail, reading: Reading) -> StepReport | None:
    if run.step is None:
        return None
    return await reading.part(load_errors.LABELS, api.ask(calls.step(run.id, run.step)), None)


async def _read_law(api: AsyncClient, run_id: str, reading: Reading) -> EntropyPerformance | None:
    return await reading.part(load_errors.LAW, api.ask(calls.law(run_id)), None)


async def _nothing() -> None:
    return None
