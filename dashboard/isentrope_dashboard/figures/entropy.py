"""Entropy over steps; below it how much it was predicted to change, and how much it did."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_dashboard.figures.marker_labels import ControlMarker, place
from isentrope_dashboard.figures.placeholder import say
from isentrope_dashboard.records import SeriesColumns, StepRow

ENTROPY, OBSERVED, PREDICTED = "entropy/mean", "entropy/observed_change", "entropy/predicted_change"
LOW, HIGH = "entropy/predicted_change_low", "entropy/predicted_change_high"
HEIGHT = 440
LIVE_METRICS = (ENTROPY, OBSERVED, PREDICTED, HIGH, LOW)
LIVE_TRACES = (2, 3, 4, 5, 6)
"""Indices of the traces that grow with each step, one per LIVE_METRICS. Before them: the band of the buckets."""


def entropy_figure(
    series: Mapping[str, SeriesColumns], markers: Sequence[ControlMarker], *, revision: str
) -> go.Figure:
    """Two panels on one step axis. A step at which something was not measured is a gap in its line.

    Args:
        series: by metric name; nats, and nats per step for the changes.
        markers: drawn as dotted lines through both panels.
        revision: the user's zoom is kept for as long as this stays the same.
    """
    steps = _shared_steps(series)
    figure = go.Figure(layout=_layout(revision))
    _add_band(figure, series.get(ENTROPY, SeriesColumns()))
    _add_line(figure, series, ENTROPY, steps, "entropy H", theme.SLOT_ENTROPY, width=2, axis="y")
    _add_line(figure, series, OBSERVED, steps, "ΔH observed", theme.SLOT_OBSERVED, width=1.3, axis="y2")
    _add_line(figure, series, PREDICTED, steps, "ΔH predicted", theme.SLOT_PREDICTED, width=2, axis="y2")
    _add_interval(figure, series, steps)
    if not any(columns.steps for columns in series.values()):
        figure.update_layout(showlegend=False)
        say(figure, "Waiting for the first step")
        return figure
    _add_lines_of(figure, markers)
    shown = [step for columns in series.values() for step in columns.steps] + [marker.step for marker in markers]
    _add_labels_of(figure, markers, min(shown), max(shown))
    return figure


def extension(rows: Sequence[StepRow], maximum_points: int) -> list[Any]:
    """What `dcc.Graph.extendData` needs to append `rows` to the live traces, keeping the last `maximum_points`."""
    x = [row.step for row in rows]
    y = [[_drawable(row.scalars.get(name)) for row in rows] for name in LIVE_METRICS]
    return [{"x": [x] * len(LIVE_TRACES), "y": y}, list(LIVE_TRACES), maximum_points]


def mode_for(values: Sequence[float | None]) -> str:
    """How a line is drawn: a single point has no line, so it gets a marker."""
    return "lines+markers" if sum(_drawable(value) is not None for value in values) == 1 else "lines"


def outgrows_its_drawing(before: Mapping[str, SeriesColumns], after: Mapping[str, SeriesColumns]) -> bool:
    """Whether a line got its first or its second point, so that the chart must be drawn anew and not only extended."""
    return any(
        mode_for(before.get(name, SeriesColumns()).values) != mode_for(after.get(name, SeriesColumns()).values)
        for name in LIVE_METRICS
    )


def _layout(revision: str) -> dict[str, Any]:
    return {
        "template": "none",  # the browser knows the colour scheme and puts its template in
        "uirevision": revision,
        "autosize": True,
        "margin": {"t": 26},
        "xaxis": {"title": {"text": "step"}, "anchor": "y2"},
        "yaxis": {"title": {"text": "nats"}, "domain": [0.42, 1]},
        "yaxis2": {"title": {"text": "nats / step"}, "domain": [0, 0.34], "zeroline": True},
    }


def _shared_steps(series: Mapping[str, SeriesColumns]) -> list[int] | None:
    """Every step anything was measured at; None when the server reduced a line to buckets of its own."""
    if any(columns.reduced for columns in series.values()):
        return None
    return sorted({step for columns in series.values() for step in columns.steps})


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
    shown = list(columns.steps) if steps is None else steps
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
    reduced = columns.reduced
    for values, fill in ((columns.maximum, None), (columns.minimum, "tonexty")):
        figure.add_scatter(
            x=list(columns.steps) if reduced else [],
            y=[_drawable(value) for value in values or ()] if reduced else [],
            mode="lines",
            name="min to max",
            line={"width": 0},
            fill=fill,
            fillcolor="rgba(101,117,236,.22)",
            hoverinfo="skip",
            showlegend=reduced and fill is not None,
        )


def _add_interval(figure: go.Figure, series: Mapping[str, SeriesColumns], steps: list[int] | None) -> None:
    """Where 90 % of the observed changes are expected."""
    for name in (HIGH, LOW):
        columns = series.get(name, SeriesColumns())
        measured = dict(zip(columns.steps, columns.values, strict=True))
        shown = list(columns.steps) if steps is None else steps
        figure.add_scatter(
            x=shown,
            y=[_drawable(measured.get(step)) for step in shown],
            yaxis="y2",
            mode="lines",
            name="90 % interval",
            connectgaps=True,  # a filled area can't have a gap
            line={"width": 0},
            fill="tonexty" if name == LOW else None,
            fillcolor="rgba(222,130,60,.2)",
            hoverinfo="skip",
            showlegend=name == LOW and any(value is not None for value in columns.values),
        )


def _add_lines_of(figure: go.Figure, markers: Sequence[ControlMarker]) -> None:
    for marker in markers:
        figure.add_shape(
            type="line", x0=marker.step, x1=marker.step, y0=0, y1=1, yref="paper", line={"dash": "dot", "width": 1.2}
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
