"""The charts of a tab: reading what their rows in `figures.panels` name, drawing them, and the
cards around them; and what every chart over steps shares: the axis, the steps shown, and the
marks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.components.basics import Content, choice, icon, plain, plot, row, spacer
from isentrope_dashboard.figures.chart import EMPTY, Chart, NotDrawable, Scale
from isentrope_dashboard.figures.panel import Figure, Mark, Panel, Shown
from isentrope_dashboard.formatting import control_markers
from isentrope_dashboard.live import Guard, failure_in_words, log_first
from isentrope_dashboard.view import SMOOTHED, View
from isentrope_wire.answers import Alert, HistogramColumns, RunDetail, SeriesColumns
from isentrope_wire.control_answers import ControlVersion
from isentrope_wire.metrics import TIME_STEP_SECONDS, TOKEN_COUNT, Metric

CHART_POINTS, HISTOGRAM_POINTS = 600, 120
MARKS = 50
"""Newest controls and newest alerts that are marked."""
BEFORE_CONTROL = 20
"""Steps shown before the control, in the window that begins with it."""


async def read_shown(
    client: AsyncClient,
    view: View,
    run: RunDetail,
    panels: Sequence[Panel],
    *,
    points: int = CHART_POINTS,
    known: tuple[Sequence[ControlVersion], Sequence[Alert]] | None = None,
    **more: Any,
) -> Shown:
    """Everything that the panels read of a run, up to its newest step in `run`, in the steps that
    the reader wants to see, with `points` of each series. `known`: its newest controls and alerts,
    where they were read before."""
    history, alerts = known or await asyncio.gather(
        client.newest(calls.control_history(run.id), MARKS),
        client.newest(calls.alerts(run.id), MARKS),
    )
    scale, first, last = await _read_range(client, run, view, history)
    last = run.step if last is None else last
    names = list(dict.fromkeys(name for panel in panels for name in panel.metrics))
    counted = [panel.quantity.histogram for panel in panels if panel.quantity is not None]
    found: asyncio.Future[list[HistogramColumns]] = asyncio.gather(
        *(
            client.ask(
                calls.histograms(
                    run.id, name, from_step=first, to_step=last, points=HISTOGRAM_POINTS
                )
            )
            for name in counted
        )
    )
    series: Mapping[str, SeriesColumns] = {}
    if names:
        series = (
            await client.ask(
                calls.series(run.id, names, from_step=first, to_step=last, points=points)
            )
        ).series
    histograms = await found
    steps = [each.step for each in series.values()] + [each.step for each in histograms]
    return Shown(
        scheme=view.scheme,
        scale=scale,
        first=min((each[0] for each in steps if each), default=first or 0),
        last=run.step or 0,
        zoom=view.zoom,
        smooth=view.smooth,
        marks=marks(history, alerts),
        history=history,
        series=series,
        histograms=dict(zip(counted, histograms, strict=True)),
        **more,
    )


def figure(panel: Panel, shown: Shown, nothing: str = "") -> Figure:
    """The chart; where there is nothing to see, one that says `nothing`, or why."""
    found = draw(panel, shown)
    if not isinstance(found, str):
        return found
    return note_figure(shown, nothing or found)


def draw(panel: Panel, shown: Shown) -> Figure | str:
    """The chart, or why there is nothing to see. One that fails says so itself."""
    with Guard() as guard:
        return panel.figure(shown)
    if isinstance(guard.error, NotDrawable):
        return note_figure(shown, str(guard.error))
    log_first(guard.error)
    return note_figure(shown, f"This chart failed. {failure_in_words(guard.error)}")


def note_figure(shown: Shown, words: str) -> Figure:
    """A chart that has a sentence instead of lines."""
    chart = Chart(shown.scheme)
    chart.note(words)
    return chart.figure()


def panel_card(
    panel: Panel,
    *,
    chart: str | None = None,
    title: Content = None,
    unit: Content = None,
    says: str = "",
    name: str = "",
    beside: Any = None,
) -> html.Section:
    """The card with the place of the chart, which can be saved as a picture or as numbers. Where
    its x axis is that of the steps, a drag over it zooms all such charts, and a click chooses a
    step. `chart` is the id for which a part has plotly's JSON, by default `chart-` and the row's
    name. Title, unit and what it says may differ from the row's. `beside` is to the right of the
    heading."""
    title = title or panel.title
    heading = html.H2(
        [title, html.Span(_unit(panel) if unit is None else unit, className="unit")],
        className="title",
    )
    menu = html.Details(
        [
            html.Summary(icon("more", 14), **{"aria-label": f"Save the chart {plain(title)}"}),
            html.Div(
                [
                    html.Button(kind, type="button", **{"data-save": kind.lower()})
                    for kind in ("PNG", "SVG", "CSV")
                ]
            ),
        ],
        className="menu",
    )
    samples = [
        html.Span(
            [html.I(className=kind, style={"--sample": f"var(--{color})"}), word], className="key"
        )
        for word, kind, color in panel.keys
    ]
    head = row(
        heading, spacer(), html.Div(samples, className="keys"), beside, menu, name="card-head"
    )
    return html.Section(
        [head, plot(chart or f"chart-{panel.name}", panel.height, says or panel.says)],
        className=f"card chart {'zooms ' if panel.zooms else ''}{name}".strip(),
        **{"data-name": plain(title)},
    )


def _unit(panel: Panel) -> Content:
    if panel.quantity is None:
        return panel.unit
    letter, _, below = panel.quantity.symbol.partition("<sub>")
    if below:
        symbol = [html.I(letter), html.Sub(below.removesuffix("</sub>"))]
    else:
        symbol = [html.I(letter)]
    return [*symbol, f", {panel.unit}" if panel.unit else ""]


async def _read_range(
    client: AsyncClient, run: RunDetail, view: View, history: Sequence[ControlVersion]
) -> tuple[Scale, int | None, int | None]:
    """The x axis, and the first and last step to read: of the zoom, or of the window; None: the
    run's own."""
    scale = await read_scale(client, run.id, view)
    if view.zoom is not None:
        first, last = (scale.step_at(place) for place in view.zoom)
        return scale, max(0, int(first) - 1), int(last) + 1
    if view.window.isdecimal():
        return scale, max(0, (run.step or 0) - int(view.window) + 1), None
    applied = _newest_applied(history)
    if view.window == "control" and applied is not None and applied.applied_step is not None:
        return scale, max(0, applied.applied_step - BEFORE_CONTROL), None
    return scale, None, None


def _newest_applied(history: Sequence[ControlVersion]) -> ControlVersion | None:
    return next(
        (item for item in history if item.version > 0 and item.applied_step is not None), None
    )


async def read_scale(client: AsyncClient, run_id: str, view: View) -> Scale:
    """The x axis that the reader chose; steps where the run reports neither time nor tokens."""
    if view.axis == "step":
        return Scale()
    metric = TOKEN_COUNT
    if view.axis == "time":
        metric = TIME_STEP_SECONDS
    return Scale.measure(view.axis, await read_metric(client, run_id, metric, points=CHART_POINTS))


async def read_metric(
    client: AsyncClient,
    run_id: str,
    metric: Metric,
    *,
    from_step: int | None = None,
    points: int | None = None,
) -> SeriesColumns:
    """A metric under the name that the run gives it; EMPTY where it was never reported."""
    try:
        answer = await client.ask(
            calls.series(run_id, metric.names, from_step=from_step, points=points)
        )
    except ApiError as error:
        if error.code == "metric_unknown":
            return EMPTY
        raise
    return next((answer.series[name] for name in metric.names if answer.series[name].step), EMPTY)


def marks(history: Sequence[ControlVersion], alerts: Sequence[Alert]) -> list[Mark]:
    """What the charts mark: applied controls, and alerts of all kinds."""
    applied = control_markers(history)
    controls = [
        Mark(step=step, label=label, is_active=(step, label) == applied[-1])
        for step, label in applied
    ]
    alarms = [
        Mark(
            step=alert.step,
            label=alert.level.capitalize(),
            kind=str(alert.level),
            text=alert.message,
        )
        for alert in alerts
    ]
    return sorted([*controls, *alarms], key=lambda mark: mark.step)


def looks(view: View, *, log: bool = False) -> list[Component]:
    """A way out of the zoom; choices of the x axis and of smoothing; with `log` that of the y
    axis."""
    y_axis = choice(
        "log",
        [("off", "Linear"), ("on", "Log")],
        "on" if view.log else "off",
        "Scale of the y axis",
    )
    strength = next(name for name, steps in SMOOTHED.items() if steps == view.smooth)
    reset = html.Button(
        "Reset zoom",
        type="button",
        className="button reset-zoom",
        **{"data-show": '{"zoom": null}'},
    )
    return [
        reset,
        choice("x", [("step", "Step"), ("time", "Time"), ("tokens", "Tokens")], view.axis, "Axis"),
        choice(
            "smooth",
            [("off", "Raw"), ("on", "Smooth"), ("more", "Smoother")],
            strength,
            "Smoothing",
        ),
        *([y_axis] if log else []),
    ]


def tools(
    view: View, history: Sequence[ControlVersion], seeds: int = 0, *, log: bool = False
) -> Component:
    """What all charts of a tab show: window, axis, smoothing; with `log` the scale of the y axis;
    where so many other runs differ in the seed alone, whether their mean and range are drawn."""
    applied = _newest_applied(history)
    since = []
    if applied:
        since = [("control", f"Since v{applied.version}")]
    window = [("50", "Last 50"), ("200", "Last 200"), *since, ("all", "All")]
    reset, *choices = looks(view, log=log)
    lines = [("none", "Run"), ("seed", f"{seeds + 1} seeds")]
    group = []
    if seeds:
        group = [choice("group", lines, view.query.get("group", "none"), "Runs drawn")]
    return row(
        reset, *group, choice("window", window, view.window, "Steps shown"), *choices, name="tools"
    )
