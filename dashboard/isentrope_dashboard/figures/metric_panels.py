"""Any metrics over steps, one panel below the other on one step axis; of one run or of several laid over each other."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard.figures.lines import show_note, with_breaks
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.metrics import name_with_unit

MOST_PANELS = 4
MOST_LINES = 6
"""As many as the colourway has colours."""
PANEL_HEIGHT = 190
KEPT = "kept"
"""Name of a label that a narrow chart keeps, too."""
_GAP = 0.09
"""Between two panels, as a share of the chart's height: room for the name of the lower one."""


@dataclass(frozen=True, slots=True)
class MetricLine:
    """One run's values of a metric; `slot` is its colour in every panel."""

    title: str
    slot: int
    columns: SeriesColumns


@dataclass(frozen=True, slots=True)
class MetricPanel:
    """One metric by its raw name, of one run or several."""

    metric: str
    lines: Sequence[MetricLine]


def metric_panels_figure(panels: Sequence[MetricPanel], *, revision: str, empty: str) -> go.Figure:
    """At most MOST_PANELS panels; a step at which something was not measured is a gap in its line.

    Args:
        revision: the user's zoom is kept for as long as this stays the same.
        empty: the note shown where there is nothing to draw.
    """
    shown = list(panels)[:MOST_PANELS]
    figure = go.Figure(layout=_layout(revision, len(shown)))
    if not any(line.columns.step for panel in shown for line in panel.lines):
        show_note(figure, empty)
        return figure
    for index, panel in enumerate(shown):
        for line in panel.lines[:MOST_LINES]:
            _add_line(figure, line, index)
        _add_name(figure, panel.metric, _domain(index, len(shown))[1])
    return figure


def _add_line(figure: go.Figure, line: MetricLine, index: int) -> None:
    columns = line.columns
    measured = {step: value for step, value in zip(columns.step, columns.value, strict=True) if _drawable(value)}
    # A metric that is logged every n-th step is a line all the same; missing steps in it are a gap.
    steps = with_breaks(sorted(measured), reduced=columns.reduced)
    figure.add_scatter(
        x=steps,
        y=[measured.get(step) for step in steps],
        yaxis=_axis_name(index),
        mode="lines+markers" if len(measured) == 1 else "lines",
        name=html.escape(line.title),
        line={"width": 1.8},
        hovertemplate="%{y:.5g}",
        meta={"slot": line.slot},
    )


def _add_name(figure: go.Figure, metric: str, top: float) -> None:
    figure.add_annotation(
        text=html.escape(name_with_unit(metric)),
        x=0,
        y=top,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
        font={"size": 11.5},
        name=KEPT,
    )


def _domain(index: int, count: int) -> tuple[float, float]:
    height = (1 - _GAP * (count - 1)) / count
    top = 1 - index * (height + _GAP)
    return max(0.0, top - height), top


def _axis_name(index: int) -> str:
    return "y" if index == 0 else f"y{index + 1}"


def _layout(revision: str, count: int) -> dict[str, Any]:
    axes = {
        f"yaxis{index + 1 if index else ''}": {"domain": list(_domain(index, count)), "nticks": 5}
        for index in range(max(1, count))
        if count
    }
    return {
        "template": "none",  # the browser knows the colour scheme and puts its template in
        "uirevision": revision,
        "autosize": True,
        "margin": {"t": 26, "l": 52},
        "showlegend": False,  # the table below the chart is the legend
        "xaxis": {"title": {"text": "step"}, "anchor": _axis_name(max(0, count - 1))},
        **axes,
    }


def _drawable(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
