"""The overview of a run: the health line, four numbers and four charts; beside them the control card (`pages.control`)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.components import summary
from isentrope_dashboard.components.basics import chart_card, choice, row
from isentrope_dashboard.components.summary import Readings, health_line
from isentrope_dashboard.figures import overview
from isentrope_dashboard.figures.chart import EMPTY, Scale
from isentrope_dashboard.figures.overview import NEXT_STEPS, Forecast, Mark, Shown
from isentrope_dashboard.formatting import control_markers, short_label
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.view import View
from isentrope_wire.answers import Alert, RunDetail, SeriesAnswer, SeriesColumns, Status
from isentrope_wire.control import Control
from isentrope_wire.control_answers import ControlVersion
from isentrope_wire.diagnosis.health import Diagnosis
from isentrope_wire.metrics import ENTROPY_MEAN, TIME_STEP_SECONDS, TOKEN_COUNT, Metric

CHART_POINTS = 600
FIRST_STEPS = 10
LAST_STEPS = 20
BEFORE_CONTROL = 20
"""Steps shown before the control, in the window that begins with it."""

TALL, SHORT = 325, 227
NOT_IMPORTED = "Not in the imported history"


async def read(client: AsyncClient, view: View) -> Values:
    """What the overview shows."""
    run_id = view.run_id or ""
    run, diagnosis, history, alerts = await asyncio.gather(
        client.ask(calls.run(run_id)),
        client.ask(calls.diagnosis(run_id)),
        client.newest(calls.control_history(run_id), 50),
        client.newest(calls.alerts(run_id), 50),
    )
    scale, first, last = await read_range(client, run, view, history)
    begins = (diagnosis.step or 0) - (diagnosis.lost_in_steps or 0)
    charted, early, newest = await asyncio.gather(
        client.ask(calls.series(run_id, overview.METRICS, from_step=first, to_step=last, points=CHART_POINTS)),
        client.ask(calls.series(run_id, summary.METRICS, to_step=begins + FIRST_STEPS)),
        client.ask(calls.series(run_id, summary.METRICS, from_step=max(0, (run.step or 0) - LAST_STEPS + 1))),
    )
    readings = [
        Readings(*(answer.series.get(name, EMPTY) for answer in (early, charted, newest))) for name in summary.METRICS
    ]
    shown = Shown(
        scheme=view.scheme,
        scale=scale,
        first=_first_step(charted, first),
        last=run.step or 0,
        zoom=view.zoom,
        smooth=view.smooth,
        is_live=run.status == Status.RUNNING,
        absent=(
            "" if not run.status.is_over else NOT_IMPORTED if run.status == Status.IMPORTED else "None was reported"
        ),
        marks=marks(history, alerts),
        early_level=diagnosis.early_level,
        forecasts=forecasts(diagnosis, history, charted) if run.status == Status.RUNNING else [],
    )
    return {
        "health": health_line(diagnosis, run),
        "kpis": summary.kpi_cards(*readings),
        "chart-entropy": overview.entropy_figure(charted.series, shown),
        "chart-reward": overview.reward_figure(charted.series, shown),
        "chart-change": overview.change_figure(charted.series, shown),
        "chart-clip": overview.clip_figure(charted.series, shown),
    }


async def read_range(
    client: AsyncClient, run: RunDetail, view: View, history: Sequence[ControlVersion]
) -> tuple[Scale, int | None, int | None]:
    """The x axis, and the first and last step to read: of the zoom, or of the window; None: the run's own."""
    scale = await read_scale(client, run.id, view)
    if view.zoom is None:
        return scale, *window(run, view, history)
    first, last = (scale.step_at(place) for place in view.zoom)
    return scale, max(0, int(first) - 1), int(last) + 1


async def read_scale(client: AsyncClient, run_id: str, view: View) -> Scale:
    """The x axis that the reader chose; steps where the run reports neither time nor tokens."""
    if view.axis == "step":
        return Scale()
    row = TIME_STEP_SECONDS if view.axis == "time" else TOKEN_COUNT
    return Scale.of(view.axis, await read_metric(client, run_id, row, points=CHART_POINTS))


async def read_metric(
    client: AsyncClient, run_id: str, row: Metric, *, from_step: int | None = None, points: int | None = None
) -> SeriesColumns:
    """A metric under the name that the run gives it; EMPTY where it was never reported."""
    try:
        answer = await client.ask(calls.series(run_id, row.names, from_step=from_step, points=points))
    except ApiError as error:
        if error.code == "metric_unknown":
            return EMPTY
        raise
    return next((answer.series[name] for name in row.names if answer.series[name].step), EMPTY)


def window(run: RunDetail, view: View, history: Sequence[ControlVersion]) -> tuple[int | None, int | None]:
    """The first and last step that the reader wants to see; None: the run's own."""
    if view.window.isdecimal():
        return max(0, (run.step or 0) - int(view.window) + 1), None
    if view.window == "control":
        applied = [item.applied_step for item in history if item.version > 0 and item.applied_step is not None]
        return (max(0, applied[0] - BEFORE_CONTROL) if applied else None), None
    return None, None


def _first_step(answer: SeriesAnswer, wanted: int | None) -> int:
    known = [columns.step[0] for columns in answer.series.values() if columns.step]
    return min(known, default=wanted or 0)


def marks(history: Sequence[ControlVersion], alerts: Sequence[Alert]) -> list[Mark]:
    """What the charts mark: applied controls, and the alarms about the entropy."""
    controls = [Mark(step=step, label=label) for step, label in control_markers(history)]
    alarms = [
        Mark(step=alert.step, label=alert.level.capitalize(), kind=str(alert.level), text=alert.message)
        for alert in alerts
        if alert.kind in ("collapse", "explosion")
    ]
    return sorted([*controls, *alarms], key=lambda mark: mark.step)


def forecasts(diagnosis: Diagnosis, history: Sequence[ControlVersion], charted: SeriesAnswer) -> list[Forecast]:
    """Where the entropy goes: at its present slope, and with the suggested control; for some steps after a control was
    applied, where it would have gone without it, and where it was predicted to go with it."""
    entropy = charted.series.get(ENTROPY_MEAN, EMPTY)
    newest = next((item for item in history if item.version > 0 and item.applied_step is not None), None)
    if newest is not None and newest.verdict is not None and newest.applied_step in entropy.step:
        start = newest.applied_step
        if (diagnosis.step or 0) - start <= NEXT_STEPS:
            at = entropy.value[entropy.step.index(start)]
            slopes, clipped = newest.verdict.slope, newest.verdict.clip_fraction
            return [
                *_forecast("without it", start, at, slopes.before),
                *_forecast("predicted", start, at, slopes.predicted, clip_fraction=clipped.predicted, helps=True),
            ]
    if diagnosis.step is None:
        return []
    level, slope, suggestion = diagnosis.entropy, diagnosis.slope, diagnosis.suggestion
    ends = (diagnosis.slope_low, diagnosis.slope_high)
    lines = _forecast("unchanged", diagnosis.step, level, slope, ends)
    before = None if suggestion is None else suggestion.change_before
    after = None if suggestion is None else suggestion.change_after
    if suggestion is not None and slope is not None and before is not None and after is not None:
        # What the prediction says of the control, on the course that was observed.
        gained = after - before
        label = f"with {short_label(Control.from_document(suggestion.control), None)}"
        lines += _forecast(
            label, diagnosis.step, level, slope + gained, clip_fraction=suggestion.clip_fraction, helps=True,
            is_suggested=True,
        )  # fmt: skip
    return lines


def _forecast(
    label: str,
    start: int,
    entropy: float | None,
    slope: float | None,
    ends: tuple[float | None, float | None] = (None, None),
    *,
    clip_fraction: float | None = None,
    helps: bool = False,
    is_suggested: bool = False,
) -> list[Forecast]:
    """One line; none where its numbers are not known."""
    if entropy is None or slope is None or not math.isfinite(entropy + slope):
        return []
    low, high = ends
    return [
        Forecast(
            label=label, start=start, entropy=entropy, slope=slope, slope_low=low, slope_high=high,
            clip_fraction=clip_fraction, helps=helps, is_suggested=is_suggested,
        )
    ]  # fmt: skip


async def layout(_client: AsyncClient, _view: View) -> Component:
    """The overview's left column; the control card is mounted beside it."""
    charts: list[tuple[str, str, str, int, Mapping[str, Any]]] = [
        (
            "chart-entropy", "Entropy", "nats", TALL,
            {"says": "Entropy over steps, with the early level and what the next 50 steps are predicted to bring",
             "shown": [("observed", "line", "iris"), ("predicted", "dash", "dim")]},
        ),
        ("chart-reward", "Reward", "mean", TALL, {"says": "Reward over steps", "shown": [("smoothed", "line", "iris")]}),
        (
            "chart-change", "Change of entropy", "nats a step", SHORT,
            {"says": "Predicted entropy change with its 90 % band, and the observed change, over steps",
             "shown": [("predicted", "line", "iris"), ("90 % band", "band", "iris"), ("observed", "line", "observed")]},
        ),
        (
            "chart-clip", "Clipped tokens", "of tokens", SHORT,
            {"says": "Share of the tokens that the active method clips, over steps", "shown": [("clipped", "line", "iris")]},
        ),
    ]  # fmt: skip
    return html.Div(
        [
            html.Div(id="health", className="health-place"),
            html.Div(
                [
                    html.Div(id="kpis", className="kpis"),
                    html.Div(
                        [
                            chart_card(name, title=title, unit=unit, height=height, **more)
                            for name, title, unit, height, more in charts
                        ],
                        className="charts",
                    ),
                ],
                className="overview-left",
            ),
        ],
        className="overview",
    )


def tools(view: View, history: Sequence[ControlVersion]) -> Component:
    """What all charts of the tab show: window, axis, smoothing."""
    applied = next((item for item in history if item.version > 0 and item.applied_step is not None), None)
    since = [("control", f"Since v{applied.version}")] if applied else []
    return row(
        choice("window", [("50", "Last 50"), ("200", "Last 200"), *since, ("all", "All")], view.window, "Steps shown"),
        choice("x", [("step", "Step"), ("time", "Time"), ("tokens", "Tokens")], view.axis, "Axis"),
        choice("smooth", [("off", "Raw"), ("on", "Smooth")], "on" if view.smooth else "off", "Smoothing"),
        name="tools",
    )


PART = Part(name="overview", read=read, layout=layout)
