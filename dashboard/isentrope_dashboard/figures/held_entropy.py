"""The part of the entropy chart that tells of a held entropy: its target with a band, and the thresholds moved for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_dashboard.figures.interval_band import band_outline
from isentrope_dashboard.holding import BAND_HIGH, BAND_LOW, TARGET
from isentrope_dashboard.records import SeriesColumns
from isentrope_wire.metrics import CONTROL_MU_HIGH, CONTROL_MU_LOW, HOLD_MU

MU_LOW, MU_HIGH, MU = CONTROL_MU_LOW, CONTROL_MU_HIGH, HOLD_MU
METRICS = (TARGET, BAND_HIGH, BAND_LOW, MU_LOW, MU_HIGH, MU)
"""In the order of the traces."""
_THRESHOLDS = (
    (MU_LOW, "µ₋ in force", theme.SLOT_NEUTRAL, {"width": 1.4, "dash": "dot"}),
    (MU_HIGH, "µ₊ in force", theme.SLOT_NEUTRAL, {"width": 1.4, "dash": "dash"}),
    (MU, "µ chosen", theme.SLOT_HELD, {"width": 2}),
)


def is_steered(series: Mapping[str, SeriesColumns]) -> bool:
    """Whether any threshold was reported, so that there is something to draw in a panel of its own."""
    return any(value is not None for name, *_ in _THRESHOLDS for value in series.get(name, SeriesColumns()).values)


def is_held(series: Mapping[str, SeriesColumns]) -> bool:
    """Whether any of METRICS was reported."""
    return any(value is not None for name in METRICS for value in series.get(name, SeriesColumns()).values)


def axis(domain: Sequence[float]) -> dict[str, Any]:
    """The thresholds' axis."""
    return {"title": {"text": "µ, σ"}, "domain": list(domain), "rangemode": "tozero", "nticks": 4}


def add_traces(figure: go.Figure, series: Mapping[str, SeriesColumns], steps: Sequence[int] | None) -> None:
    """One trace for each of METRICS, empty where the entropy was never held.

    Args:
        steps: those the chart shows; None: each line has its own.
    """
    axis_name = "y3" if is_steered(series) else "y2"
    held = any(_drawable(value) is not None for value in series.get(TARGET, SeriesColumns()).values)
    shown = {name: _points(series, name, steps) if held or name != TARGET else ([], []) for name in METRICS}
    _add_target(figure, *shown[TARGET], held=held)
    outline = band_outline(shown[BAND_HIGH][0], shown[BAND_LOW][1], shown[BAND_HIGH][1])
    for values, fills in ((outline.high, False), (outline.low, True)):
        _add_band_end(figure, outline.x, values, fills=fills)
    for name, title, slot, line in _THRESHOLDS:
        x, y = shown[name]
        figure.add_scatter(
            x=x,
            y=y,
            yaxis=axis_name,  # an axis without a panel would lay its numbers over the others'
            mode="lines",
            name=title,
            line={**line, "shape": "hv"},
            hovertemplate="%{y:.3g}",
            showlegend=False,
            meta={"slot": slot},
        )


def _add_target(figure: go.Figure, x: list[int], y: list[float | None], *, held: bool) -> None:
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        name="target H*",
        line={"width": 1.6, "dash": "6px,3px", "shape": "hv"},
        hovertemplate="%{y:.4f}",
        showlegend=held,
        meta={"slot": theme.SLOT_HELD},
    )


def _add_band_end(figure: go.Figure, x: list[float], y: list[float], *, fills: bool) -> None:
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        name="what one step may correct",
        connectgaps=True,  # where nothing is held the band has no height
        line={"width": 0, "shape": "hv"},
        fill="tonexty" if fills else None,
        fillcolor="rgba(148,110,236,.16)",
        hoverinfo="skip",
        showlegend=False,
    )


def _points(
    series: Mapping[str, SeriesColumns], name: str, steps: Sequence[int] | None
) -> tuple[list[int], list[float | None]]:
    columns = series.get(name, SeriesColumns())
    if not any(_drawable(value) is not None for value in columns.values):
        return [], []
    measured = dict(zip(columns.steps, columns.values, strict=True))
    shown = list(columns.steps) if steps is None else list(steps)
    return shown, [_drawable(measured.get(step)) for step in shown]


def _drawable(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
