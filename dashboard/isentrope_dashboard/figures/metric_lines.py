"""Any metric over steps, of one run or of several: a small chart with the raw line behind the smoothed one."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import replace

from isentrope_dashboard import theme
from isentrope_dashboard.figures.chart import Chart, percent_texts, positive, smoothed, tick_texts, value_range
from isentrope_dashboard.figures.panel import Figure, Line, Panel, Shown
from isentrope_dashboard.formatting import percent, significant
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.metrics import METRICS, Show

ENVELOPE = 0.16
"""How opaque the band between minimum and maximum of the buckets is."""


def metric_panel(name: str, height: int, *, log: bool = False) -> Panel:
    """The row of a metric that may have any name."""
    known = METRICS.get(name)
    return Panel(
        name=name,
        title=name,
        unit=known.unit if known is not None else "",
        says=f"{name} over steps",
        needs="No values in these steps",
        height=height,
        lines=[Line(name, name, "0")],
        draw=metric_figure,
        log=log,
        share=known is not None and known.show is Show.PERCENT,
    )


def metric_figure(panel: Panel, shown: Shown) -> Figure | str:
    """A line for each run. What is not finite is a gap with a mark; a reduced series has a band from minimum to maximum."""
    drawn = {slot: run for slot, run in enumerate(shown.runs or [shown]) if run.columns(panel.name).step}
    if not drawn:
        return panel.needs
    every = [run.columns(panel.name) for run in drawn.values()]
    chart = Chart(shown.scheme, shown.scale)
    chart.x_axis(*shown.ends, most=5 if shown.scale.axis == "step" else 4)
    log = panel.log and any(0 < value < math.inf for columns in every for value in columns.value)
    low, high = _y_axis(chart, every, log=log, is_share=panel.share)
    longest = max(map(len, chart.layout["yaxis"]["ticktext"]), default=0)
    chart.layout["margin"] = {"l": max(44, 7 * longest + 8), "r": 16, "t": 8, "b": 24}
    for mark in shown.controls:
        chart.mark(mark.step, chart.ink["faint"])
    for slot, run in drawn.items():
        chart.scale = run.scale
        _add_line(chart, panel, run, slot, log=log)
    for run in drawn.values():
        chart.scale = run.scale
        _add_not_finite(chart, panel, run, 10**low if log else low, 10**high if log else high)
    for trace in chart.data:
        trace["y"] = _rounded(trace["y"])
    chart.scale = shown.scale
    return chart.figure()


def _add_line(chart: Chart, panel: Panel, run: Shown, slot: int, *, log: bool) -> None:
    columns, color, smooth = run.columns(panel.name), theme.LINES[chart.scheme][slot], run.smooth
    drawn = positive(columns) if log else columns
    if columns.reduced and columns.min is not None and columns.max is not None:
        low, high = (replace(columns, value=ends) for ends in (columns.min, columns.max))
        chart.band(positive(low) if log else low, positive(high) if log else high, _see_through(color))
        if smooth:  # the band is what a raw line would show
            means = [math.nan if mean is None else mean for mean in smoothed(drawn)]
            drawn, smooth = replace(drawn, value=means), False
    chart.line(drawn, name=html.escape(run.label or panel.name), color=color, width=1.6, dash=theme.DASHES[slot],
               smooth=smooth, written=percent if panel.share else significant)  # fmt: skip


def _add_not_finite(chart: Chart, panel: Panel, run: Shown, low: float, high: float) -> None:
    """Marks at the lower edge, and of +∞ at the upper one."""
    columns = run.columns(panel.name)
    places = [
        (step, value) for step, value in zip(columns.step, columns.value, strict=True) if not math.isfinite(value)
    ]
    if not places:
        return
    symbols = ["x" if math.isnan(value) else "triangle-up" if value > 0 else "triangle-down" for _, value in places]
    chart.scatter(
        [chart.scale.at(step) for step, _ in places], [high if value == math.inf else low for _, value in places],
        mode="markers", cliponaxis=False, text=[significant(value) for _, value in places],
        hovertemplate="%{text}<extra>" + html.escape(run.label or panel.name) + "</extra>",
        marker={"size": 7, "color": chart.ink["act"], "symbol": symbols},
    )  # fmt: skip


def _y_axis(chart: Chart, every: Sequence[SeriesColumns], *, log: bool, is_share: bool) -> tuple[float, float]:
    """Sets the axis; returns its ends, of a logarithmic one as powers of ten."""
    extremes = [replace(one, value=ends) for one in every for ends in (one.min, one.max) if ends is not None]
    if log:
        return chart.log_axis([*every, *extremes], written=percent_texts if is_share else _few_digits)
    low, high = value_range([*every, *extremes], from_zero=is_share)
    chart.y_axis(low, high, most=5, written=percent_texts if is_share else tick_texts)
    return low, high


def _few_digits(places: Sequence[float]) -> list[str]:
    return [significant(place, 3) for place in places]


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Six digits: more than a chart of 200 pixels can show, in half of the bytes."""
    return [None if value is None else float(f"{value:.6g}") for value in values]


def _see_through(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{ENVELOPE})"
