"""Entropy over steps; below it how much it was predicted to change, and how much it did; then a held one's thresholds."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from textwrap import shorten
from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_dashboard.figures import held_entropy
from isentrope_dashboard.figures.lines import (
    EMPTY,
    MissingSteps,
    StepRow,
    band_outline,
    missing_steps,
    place,
    show_note,
    with_breaks,
)
from isentrope_dashboard.formatting import ControlMarker
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.metrics import (
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_PREDICTED_CHANGE,
    ENTROPY_PREDICTED_CHANGE_HIGH,
    ENTROPY_PREDICTED_CHANGE_LOW,
)

ENTROPY, OBSERVED, PREDICTED = ENTROPY_MEAN, ENTROPY_OBSERVED_CHANGE, ENTROPY_PREDICTED_CHANGE
LOW, HIGH = ENTROPY_PREDICTED_CHANGE_LOW, ENTROPY_PREDICTED_CHANGE_HIGH
HEIGHT = 440
MOST_GAPS = 50
"""Marked, the newest ones; the lines are interrupted at every one."""
LONGEST_REASON = 70
"""Characters that the chart has room for; the record's line gives the reason in full."""
ALWAYS_METRICS = (ENTROPY, OBSERVED, PREDICTED, HIGH, LOW)
LIVE_METRICS = (*ALWAYS_METRICS, *held_entropy.METRICS)
REPORTED_METRICS = tuple(name for name in LIVE_METRICS if name not in (held_entropy.BAND_HIGH, held_entropy.BAND_LOW))
"""Those that a probe reports."""
LIVE_TRACES = tuple(range(2, 2 + len(LIVE_METRICS)))
"""Indices of the traces that grow with each step, one per LIVE_METRICS. Before them: the band of the buckets."""


def entropy_figure(
    series: Mapping[str, SeriesColumns], markers: Sequence[ControlMarker], *, revision: str, why_missing: str = ""
) -> go.Figure:
    """Panels on one step axis: two, and a third where thresholds were moved to hold an entropy.

    A step at which something was not measured is a gap in its line; steps that were never reported are marked.

    Args:
        series: by metric name; nats, and nats per step for the changes.
        markers: drawn as dotted lines through all panels.
        revision: the user's zoom is kept for as long as this stays the same.
        why_missing: the reason of steps that are missing, where it is known.
    """
    steps = _shared_steps(series)
    figure = go.Figure(layout=_layout(revision, steered=held_entropy.is_steered(series)))
    _add_band(figure, series.get(ENTROPY, EMPTY))
    _add_line(figure, series, ENTROPY, steps, "entropy H", theme.SLOT_ENTROPY, width=2, axis="y")
    _add_line(figure, series, OBSERVED, steps, "ΔH observed", theme.SLOT_OBSERVED, width=1.3, axis="y2")
    _add_line(figure, series, PREDICTED, steps, "ΔH predicted", theme.SLOT_PREDICTED, width=2, axis="y2")
    _add_interval(figure, series, steps)
    held_entropy.add_traces(figure, series, steps)
    if not any(columns.step for columns in series.values()):
        figure.update_layout(showlegend=False)
        show_note(figure, "Waiting for the first step")
        return figure
    _add_lines_of(figure, markers)
    shown = [step for columns in series.values() for step in columns.step] + [marker.step for marker in markers]
    gaps = gaps_of(series)
    _add_gaps(figure, gaps)
    if gaps:
        _add_label_of(figure, gaps[-1], why_missing, shown)
    _add_labels_of(figure, markers, min(shown), max(shown))
    return figure


def extension(rows: Sequence[StepRow], maximum_points: int, *, held: bool = False) -> list[Any]:
    """What `dcc.Graph.extendData` needs to append `rows` to the live traces, keeping the last `maximum_points`.

    Args:
        held: whether the chart shows a held entropy; else its traces stay empty.
    """
    names = LIVE_METRICS if held else ALWAYS_METRICS
    x = [row.step for row in rows]
    y = [[_value_in(row, name) for row in rows] for name in names]
    return [{"x": [x] * len(names), "y": y}, list(LIVE_TRACES[: len(names)]), maximum_points]


def _value_in(row: StepRow, name: str) -> float | None:
    # Half of an interval is none.
    needed = (HIGH, LOW) if name in (HIGH, LOW) else (name,)
    whole = all(_drawable(row.scalars.get(part)) is not None for part in needed)
    return row.scalars[name] if whole else None


def mode_for(values: Sequence[float | None]) -> str:
    """How a line is drawn: a single point has no line, so it gets a marker."""
    return "lines+markers" if sum(_drawable(value) is not None for value in values) == 1 else "lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What a drawing shows, as far as one must know to append rows to it. The page keeps it between two updates."""

    step: int | None
    """The last one."""
    stride: int
    """Distance of the last two steps."""
    points: int
    lines: list[str]
    """Metrics with two points or more."""
    interval: int
    """Of the last two steps, how many at the end have an interval; one alone is drawn wider than a step."""
    held: bool
    """Whether an entropy was ever held."""


def drawn(series: Mapping[str, SeriesColumns]) -> Drawn:
    """What `entropy_figure` shows of these columns."""
    steps = _measured_steps(series)
    known = {*series.get(LOW, EMPTY).step} & {*series.get(HIGH, EMPTY).step}
    return Drawn(
        step=steps[-1] if steps else None,
        stride=steps[-1] - steps[-2] if len(steps) > 1 else 0,
        points=len(steps),
        lines=[name for name, columns in series.items() if mode_for(columns.value) == "lines" and columns.value],
        interval=len(list(takewhile(known.__contains__, reversed(steps[-2:])))),
        held=held_entropy.is_held(series),
    )


def appended(before: Drawn, rows: Sequence[StepRow]) -> Drawn | None:
    """The drawing with these rows at its end; None where it must be drawn again.

    So it is where a line gets its first or its second point, steps are missing, or the interval is back after a gap.
    """
    now = before
    for row in rows:
        measured = [name for name in REPORTED_METRICS if name in row.scalars]
        interval = LOW in row.scalars and HIGH in row.scalars
        if now.step is None or row.step - now.step != now.stride or not set(measured) <= {*now.lines}:
            return None
        if interval and now.interval < 2:
            return None
        now = replace(now, step=row.step, points=now.points + 1, interval=2 if interval else 0)
    return now


def _layout(revision: str, *, steered: bool) -> dict[str, Any]:
    above, below = ([0.5, 1], [0.2, 0.43]) if steered else ([0.42, 1], [0, 0.34])
    third = {"yaxis3": held_entropy.axis([0, 0.13])} if steered else {}
    return {
        "template": "none",  # the browser knows the colour scheme and puts its template in
        "uirevision": revision,
        "autosize": True,
        "margin": {"t": 26},
        "xaxis": {"title": {"text": "step"}, "anchor": "y3" if steered else "y2"},
        "yaxis": {"title": {"text": "nats"}, "domain": above},
        "yaxis2": {"title": {"text": "nats / step"}, "domain": below, "zeroline": True},
        **third,
    }


def gaps_of(series: Mapping[str, SeriesColumns]) -> list[MissingSteps]:
    """Steps the chart has no data of, although it has of those around them."""
    if any(columns.reduced for columns in series.values()):
        return missing_steps(series.get(ENTROPY, EMPTY).step, reduced=True)
    return missing_steps(_measured_steps(series))


def _measured_steps(series: Mapping[str, SeriesColumns]) -> list[int]:
    return sorted({step for columns in series.values() for step in columns.step})


def _shared_steps(series: Mapping[str, SeriesColumns]) -> list[int] | None:
    """Every step anything was measured at, with breaks; None when the server reduced a line to buckets of its own."""
    if any(columns.reduced for columns in series.values()):
        return None
    return with_breaks(_measured_steps(series))


def _add_line(
    figure: go.Figure,
    series: Mapping[str, SeriesColumns],
    name: str,
    steps: list[int] | None,
    title: str,
    slot: int,
    *,
    width: float,
    axis: str,
) -> None:
    columns = series.get(name, EMPTY)
    measured = dict(zip(columns.step, columns.value, strict=True))
    shown = with_breaks(columns.step, reduced=True) if steps is None else steps
    drawn = [_drawable(measured.get(step)) for step in shown]
    figure.add_scatter(
        x=shown,
        y=drawn,
        yaxis=axis,
        mode=mode_for(drawn),
        name=title,
        connectgaps=False,
        line={"width": width},
        opacity=0.8 if name == OBSERVED else 1,
        hovertemplate="%{y:.4f}" if name == ENTROPY else "%{y:+.5f}",
        meta={"slot": slot},
    )


def _add_band(figure: go.Figure, columns: SeriesColumns) -> None:
    """Smallest to largest value of each bucket, so that a spike within a bucket stays visible."""
    steps = with_breaks(columns.step, reduced=True) if columns.reduced else []
    low, high = (
        [ends.get(step) for step in steps]
        for ends in (dict(zip(columns.step, values or (), strict=False)) for values in (columns.min, columns.max))
    )
    outline = band_outline(steps, low, high)
    for values, fill in ((outline.high, None), (outline.low, "tonexty")):
        figure.add_scatter(
            x=outline.x,
            y=values,
            mode="lines",
            name="min to max",
            line={"width": 0},
            fill=fill,
            fillcolor="rgba(101,117,236,.22)",
            hoverinfo="skip",
            showlegend=columns.reduced and fill is not None,
        )


def _interval(
    series: Mapping[str, SeriesColumns], steps: list[int] | None
) -> tuple[list[int], list[float | None], list[float | None]]:
    """The steps the interval is drawn over, and its ends there."""
    low, high = (series.get(name, EMPTY) for name in (LOW, HIGH))
    shown = with_breaks(high.step, reduced=True) if steps is None else steps
    lows, highs = (dict(zip(columns.step, columns.value, strict=True)) for columns in (low, high))
    return shown, [lows.get(step) for step in shown], [highs.get(step) for step in shown]


def _add_interval(figure: go.Figure, series: Mapping[str, SeriesColumns], steps: list[int] | None) -> None:
    """Where 90 % of the observed changes are expected; nothing where nothing was predicted."""
    outline = band_outline(*_interval(series, steps))
    for name, values in ((HIGH, outline.high), (LOW, outline.low)):
        figure.add_scatter(
            x=outline.x,
            y=values,
            yaxis="y2",
            mode="lines",
            name="90 % interval",
            connectgaps=True,  # across steps appended without an interval; the chart is drawn again when it is back
            line={"width": 0},
            fill="tonexty" if name == LOW else None,
            fillcolor="rgba(222,130,60,.2)",
            hoverinfo="skip",
            showlegend=name == LOW and bool(values),
        )


def _add_lines_of(figure: go.Figure, markers: Sequence[ControlMarker]) -> None:
    for marker in markers:
        figure.add_shape(
            type="line", x0=marker.step, x1=marker.step, y0=0, y1=1, yref="paper", line={"dash": "dot", "width": 1.2}
        )


def _add_gaps(figure: go.Figure, gaps: Sequence[MissingSteps]) -> None:
    """Shaded, so that a gap in a line is seen to be one of the record."""
    for gap in gaps[-MOST_GAPS:]:
        figure.add_shape(
            type="rect",
            name="missing",
            x0=gap.first - 0.5,
            x1=gap.last + 0.5,
            y0=0,
            y1=1,
            yref="paper",
            layer="below",
            line={"width": 0},
            fillcolor="rgba(128,138,160,.2)",
        )


def _add_label_of(figure: go.Figure, gap: MissingSteps, why: str, shown: Sequence[int]) -> None:
    """Between the upper panels, where no line is, and inside of the chart wherever the gap is."""
    centre, first, last = (gap.first + gap.last) / 2, min(shown), max(shown)
    place = (centre - first) / max(1, last - first)
    text = f"{gap.count:,} without data" + (f": {why}" if why else "")
    figure.add_annotation(
        x=centre,
        y=(figure.layout.yaxis.domain[0] + figure.layout.yaxis2.domain[1]) / 2,
        yref="paper",
        text=html.escape(shorten(text, LONGEST_REASON, placeholder=" …")),
        xanchor="left" if place < 1 / 3 else "right" if place > 2 / 3 else "center",
        yanchor="middle",
        showarrow=False,
    )


def _add_labels_of(figure: go.Figure, markers: Sequence[ControlMarker], first_step: int, last_step: int) -> None:
    for label in place(markers, first_step, last_step):
        figure.add_annotation(
            x=label.marker.step,
            y=1 - 0.045 * label.row,
            yref="paper",
            text=html.escape(label.marker.label),
            xanchor="right" if label.left_of_line else "left",
            yanchor="top",
            xshift=-4 if label.left_of_line else 4,
            showarrow=False,
        )


def _drawable(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
