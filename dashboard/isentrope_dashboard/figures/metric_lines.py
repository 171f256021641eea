"""Any metric over steps, of one run or of several: small charts with the raw line behind the smoothed one."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from isentrope_dashboard.figures.chart import Chart, Scale, percent_texts, positive, smoothed, tick_texts, value_range
from isentrope_dashboard.formatting import percent, significant
from isentrope_dashboard.theme import Scheme
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.metrics import METRICS, Show

ENVELOPE = 0.16
"""How opaque the band between minimum and maximum of the buckets is."""


@dataclass(frozen=True, slots=True)
class Line:
    """One run's values."""

    name: str
    columns: SeriesColumns
    color: str
    dash: str = "solid"
    scale: Scale = field(default_factory=Scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What all charts of a page share."""

    scheme: Scheme
    scale: Scale = field(default_factory=Scale)
    """Writes the ticks of the x axis."""
    ends: tuple[float, float]
    """Ends of the x axis, in units of the scale."""
    smooth: bool = True
    log: bool = False
    marks: Sequence[int] = ()
    """Steps at which a control was applied."""


def metric_figure(name: str, lines: Sequence[Line], look: Look) -> dict[str, Any]:
    """The metric of this name. What is not finite is a gap with a mark; a reduced series has a band from minimum to maximum."""
    known = METRICS.get(name)
    is_share = known is not None and known.show is Show.PERCENT
    chart = Chart(look.scheme, look.scale)
    if not any(line.columns.step for line in lines):
        chart.note("No values in these steps")
        return chart.figure()
    first, last = look.ends
    chart.x_axis(first, last, most=5 if look.scale.axis == "step" else 4)
    logarithmic = look.log and any(0 < value < math.inf for line in lines for value in line.columns.value)
    low, high = _y_axis(chart, lines, log=logarithmic, is_share=is_share)
    longest = max(map(len, chart.layout["yaxis"]["ticktext"]), default=0)
    chart.layout["margin"] = {"l": max(44, 7 * longest + 8), "r": 16, "t": 8, "b": 24}
    for step in look.marks:
        chart.mark(step, chart.ink["faint"])
    for line in lines:
        _add_line(chart, line, look, log=logarithmic, is_share=is_share)
    for line in lines:
        _add_not_finite(chart, line, 10**low if logarithmic else low, 10**high if logarithmic else high)
    for trace in chart.data:
        trace["y"] = _rounded(trace["y"])
    return chart.figure()


def ends_of(columns: Mapping[str, SeriesColumns], scale: Scale) -> tuple[float, float]:
    """From the first to the last place of some series."""
    steps = [one.step for one in columns.values() if one.step]
    first = min((known[0] for known in steps), default=0)
    last = max((known[-1] for known in steps), default=1)
    return scale.at(first), scale.at(max(last, first + 1))


def _add_line(chart: Chart, line: Line, look: Look, *, log: bool, is_share: bool) -> None:
    columns = line.columns
    chart.scale = line.scale
    drawn = positive(columns) if log else columns
    smooth = look.smooth
    if columns.reduced and columns.min is not None and columns.max is not None:
        low, high = (replace(columns, value=ends) for ends in (columns.min, columns.max))
        chart.band(positive(low) if log else low, positive(high) if log else high, _see_through(line.color))
        if smooth:  # the band is what a raw line would show
            means = [math.nan if mean is None else mean for mean in smoothed(drawn)]
            drawn, smooth = replace(drawn, value=means), False
    written = percent if is_share else significant
    chart.line(drawn, name=html.escape(line.name), color=line.color, width=1.6, dash=line.dash,
               smooth=smooth, written=written)  # fmt: skip
    chart.scale = look.scale


def _add_not_finite(chart: Chart, line: Line, low: float, high: float) -> None:
    """Marks at the lower edge, and of +∞ at the upper one."""
    places = [
        (step, value)
        for step, value in zip(line.columns.step, line.columns.value, strict=True)
        if not math.isfinite(value)
    ]
    if not places:
        return
    symbols = ["x" if math.isnan(value) else "triangle-up" if value > 0 else "triangle-down" for _, value in places]
    chart.scatter(
        [line.scale.at(step) for step, _ in places], [high if value == math.inf else low for _, value in places],
        mode="markers", cliponaxis=False, text=[significant(value) for _, value in places],
        hovertemplate="%{text}<extra>" + html.escape(line.name) + "</extra>",
        marker={"size": 7, "color": chart.ink["act"], "symbol": symbols},
    )  # fmt: skip


def _y_axis(chart: Chart, lines: Sequence[Line], *, log: bool, is_share: bool) -> tuple[float, float]:
    """Sets the axis; returns its ends, of a logarithmic one as powers of ten."""
    series = [columns for line in lines for columns in _with_extremes(line.columns)]
    if log:
        return chart.log_axis(series, written=percent_texts if is_share else _few_digits)
    low, high = value_range(series, from_zero=is_share)
    chart.y_axis(low, high, most=5, written=percent_texts if is_share else tick_texts)
    return low, high


def _few_digits(places: Sequence[float]) -> list[str]:
    return [significant(place, 3) for place in places]


def _with_extremes(columns: SeriesColumns) -> list[SeriesColumns]:
    extremes = [replace(columns, value=ends) for ends in (columns.min, columns.max) if ends is not None]
    return [columns, *extremes]


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Six digits: more than a chart of 200 pixels can show, in half of the bytes."""
    return [None if value is None else float(f"{value:.6g}") for value in values]


def _see_through(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{ENVELOPE})"
