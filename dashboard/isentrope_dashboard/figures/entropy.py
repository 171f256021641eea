"""Entropy over steps; below it how much it was predicted to change, and how much it did; then a held one's thresholds."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_dashboard.figures import held_entropy
from isentrope_dashboard.figures.lines import (
    MissingSteps,
    band_outline,
    band_pieces,
    missing_steps,
    place,
    say,
    with_breaks,
)
from isentrope_dashboard.formatting import ControlMarker
from isentrope_dashboard.records import SeriesColumns, StepRow
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
MOST_HOLES = 50
"""Marked, the newest ones; the lines are interrupted at every one."""
LONGEST_REASON = 70
"""Characters that the chart has room for; the record's line gives the reason in full."""
ALWAYS_METRICS = (ENTROPY, OBSERVED, PREDICTED, HIGH, LOW)
LIVE_METRICS = (*ALWAYS_METRICS, *held_entropy.METRICS)
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
    _add_band(figure, series.get(ENTROPY, SeriesColumns()))
    _add_line(figure, series, ENTROPY, steps, "entropy H", theme.SLOT_ENTROPY, width=2, axis="y")
    _add_line(figure, series, OBSERVED, steps, "ΔH observed", theme.SLOT_OBSERVED, width=1.3, axis="y2")
    _add_line(figure, series, PREDICTED, steps, "ΔH predicted", theme.SLOT_PREDICTED, width=2, axis="y2")
    _add_interval(figure, series, steps)
    held_entropy.add_traces(figure, series, steps)
    if not any(columns.steps for columns in series.values()):
        figure.update_layout(showlegend=False)
        say(figure, "Waiting for the first step")
        return figure
    _add_lines_of(figure, markers)
    shown = [step for columns in series.values() for step in columns.steps] + [marker.step for marker in markers]
    holes = holes_of(series)
    _add_holes(figure, holes)
    if holes:
        _add_label_of(figure, holes[-1], why_missing, shown)
    _add_labels_of(figure, markers, min(shown), max(shown))
    return figure


def extension(rows: Sequence[StepRow], maximum_points: int, *, held: bool = False) -> list[Any]:
    """What `dcc.Graph.extendData` needs to append `rows` to the live traces, keeping the last `maximum_points`.

    Args:
        held: whether the chart shows a held entropy; else its traces stay empty.
    """
    names = LIVE_METRICS if held else ALWAYS_METRICS
    x = [row.step for row in rows]
    y = [[_appended(row, name) for row in rows] for name in names]
    return [{"x": [x] * len(names), "y": y}, list(LIVE_TRACES[: len(names)]), maximum_points]


def _appended(row: StepRow, name: str) -> float | None:
    # Half of an interval is none.
    needed = (HIGH, LOW) if name in (HIGH, LOW) else (name,)
    whole = all(_drawable(row.scalars.get(part)) is not None for part in needed)
    return row.scalars[name] if whole else None


def mode_for(values: Sequence[float | None]) -> str:
    """How a line is drawn: a single point has no line, so it gets a marker."""
    return "lines+markers" if sum(_drawable(value) is not None for value in values) == 1 else "lines"


def outgrows_its_drawing(before: Mapping[str, SeriesColumns], after: Mapping[str, SeriesColumns]) -> bool:
    """Whether the chart must be drawn anew and not only extended: a line got its first or its second point, steps are
    missing, the interval is back after a gap, or a third panel is needed."""
    holes = [len(holes_of(series)) for series in (before, after)]
    steered = [held_entropy.is_steered(series) for series in (before, after)]
    return (
        holes[0] != holes[1]
        or steered[0] != steered[1]
        or _interval_pieces(before) != _interval_pieces(after)
        or any(
            mode_for(before.get(name, SeriesColumns()).values) != mode_for(after.get(name, SeriesColumns()).values)
            for name in LIVE_METRICS
        )
    )


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


def holes_of(series: Mapping[str, SeriesColumns]) -> list[MissingSteps]:
    """Steps the chart has no data of, although it has of those around them."""
    if any(columns.reduced for columns in series.values()):
        return missing_steps(series.get(ENTROPY, SeriesColumns()).steps, reduced=True)
    return missing_steps(_measured_steps(series))


def _measured_steps(series: Mapping[str, SeriesColumns]) -> list[int]:
    return sorted({step for columns in series.values() for step in columns.steps})


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
    columns = series.get(name, SeriesColumns())
    measured = dict(zip(columns.steps, columns.values, strict=True))
    shown = with_breaks(columns.steps, reduced=True) if steps is None else steps
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
    steps = with_breaks(columns.steps, reduced=True) if columns.reduced else []
    low, high = (
        [ends.get(step) for step in steps]
        for ends in (
            dict(zip(columns.steps, values or (), strict=False)) for values in (columns.minimum, columns.maximum)
        )
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
    low, high = (series.get(name, SeriesColumns()) for name in (LOW, HIGH))
    shown = with_breaks(high.steps, reduced=True) if steps is None else steps
    lows, highs = (dict(zip(columns.steps, columns.values, strict=True)) for columns in (low, high))
    return shown, [lows.get(step) for step in shown], [highs.get(step) for step in shown]


def _interval_pieces(series: Mapping[str, SeriesColumns]) -> tuple[int, int]:
    return band_pieces(*_interval(series, _shared_steps(series)))


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
            connectgaps=True,  # across steps appended without an interval; the chart is drawn anew when it is back
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


def _add_holes(figure: go.Figure, holes: Sequence[MissingSteps]) -> None:
    """Shaded, so that a gap in a line is seen to be one of the record."""
    for hole in holes[-MOST_HOLES:]:
        figure.add_shape(
            type="rect",
            name="missing",
            x0=hole.first - 0.5,
            x1=hole.last + 0.5,
            y0=0,
            y1=1,
            yref="paper",
            layer="below",
            line={"width": 0},
            fillcolor="rgba(128,138,160,.2)",
        )


def _add_label_of(figure: go.Figure, hole: MissingSteps, why: str, shown: Sequence[int]) -> None:
    """Between the upper panels, where no line is, and inside of the chart wherever the hole is."""
    centre, first, last = (hole.first + hole.last) / 2, min(shown), max(shown)
    place = (centre - first) / max(1, last - first)
    text = f"{hole.count:,} without data" + (f": {why}" if why else "")
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
