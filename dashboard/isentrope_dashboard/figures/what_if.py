"""The what-if plot: clipped share above the entropy's pace against both thresholds, the lower side at the left.

Each side's curve has the other side off. The browser (`assets/control.js`) draws handles and dots by the figure's own lines
and axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from isentrope_dashboard.figures.chart import SKIPPED, Chart, percent_texts, tick_texts, ticks
from isentrope_dashboard.formatting import change, percent
from isentrope_dashboard.theme import Scheme
from isentrope_wire.control_answers import EffectCurves

REACH = 3.0
"""Standard deviations shown to each side; more where a threshold lies further out."""
_ROOM = 1.05
"""The axis ends so much further out: a handle at the very end is off."""
CLIPPED_PANEL, PACE_PANEL = (0.54, 1.0), (0.0, 0.46)
"""Shares of the plot's height, from below."""
MARGIN = {"l": 52, "r": 8, "t": 20, "b": 18}
"""In pixels; the style sheet places the handles by the same numbers."""
_TOP_AT = 0.25
"""The share that clips from here on fits into the panel: at 0 half of all tokens and more are clipped."""


def reach(*thresholds: float | None) -> float:
    """How far the plot goes to each side."""
    furthest = max((mu for mu in thresholds if mu is not None), default=0.0)
    return REACH if furthest <= REACH else math.ceil(furthest * 1.1)


def what_if_figure(curves: EffectCurves, now: float, scheme: Scheme, width: float) -> dict[str, Any]:
    """Both panels without the handles. `now` is the pace if the control stays as it is, in nats a step; `width` goes to
    each side in standard deviations and is in `meta` for the browser.
    """
    chart = Chart(scheme)
    ink = chart.ink
    for sign, curve, color, soft in (
        (-1, curves.low, ink["iris"], ink["iris_soft"]),
        (1, curves.high, ink["upper"], ink["upper_soft"]),
    ):
        side = "lower" if sign < 0 else "upper"
        shown = sum(mu <= width for mu in curve.mu) + 1  # one edge beyond the frame, so that the line leaves it
        places = [sign * mu for mu in curve.mu[:shown]]
        _add_band(chart, places, curve.clip_fraction, curve.clip_fraction_std, soft, "y")
        for axis, name, values, written in (
            ("y", "clipped", curve.clip_fraction, percent),
            ("y2", "pace", curve.pace or (), change),
        ):
            chart.scatter(
                places[: len(values)], values[:shown], name=f"{side} side, {name}", yaxis=axis,
                line={"color": color, "width": 1.8}, text=[written(value) for value in values[:shown]], **SKIPPED,
            )  # fmt: skip
    low, high = _range(curves, now, width)
    chart.y_axis(0, _top(curves), written=percent_texts, most=3, domain=CLIPPED_PANEL)
    chart.y_axis(low, high, written=tick_texts, most=3, name="yaxis2", domain=PACE_PANEL, zeroline=True)
    chart.level(now, ink["act"], dash="4px,3px", yref="y2")
    chart.mark(0, ink["zero"], dash="solid")
    chart.label("clipped", at=1, y=1, yref="paper", xanchor="right", yanchor="top", color=ink["muted"])
    # It keeps clear of the dashed line's label.
    end, anchor = (0, "bottom") if now > (low + high) / 2 else (1, "top")
    words = "pace, nats a step" if curves.low.pace else "pace: not known before the gain is"
    chart.label(words, at=1, y=PACE_PANEL[end], yref="paper", xanchor="right", yanchor=anchor, color=ink["muted"])
    chart.label(
        f"unchanged {change(now)}",
        at=1,
        y=now,
        yref="y2",
        xanchor="right",
        yanchor="bottom",
        yshift=-2,
        color=ink["act"],
    )
    outwards = ticks(0, width, 4)
    places = sorted({sign * place for place in outwards for sign in (-1, 1)})
    figure = chart.figure()
    figure["layout"] |= {
        "meta": width,
        "margin": MARGIN,
        "hovermode": False,
        "dragmode": False,
        "xaxis": {
            "range": [-width * _ROOM, width * _ROOM], "fixedrange": True, "anchor": "y2", "showspikes": False,
            "tickvals": places, "ticktext": [f"{abs(place):g}{' σ' if abs(place) == outwards[-1] else ''}" for place in places],
            "tickangle": 0,
        },
    }  # fmt: skip
    for name in ("yaxis", "yaxis2"):
        figure["layout"][name] |= {"fixedrange": True, "tickfont": {"size": 10, "color": ink["muted"]}}
    return figure


def _add_band(
    chart: Chart, x: Sequence[float], values: Sequence[float], spread: Sequence[float], color: str, axis: str
) -> None:
    pairs = list(zip(values[: len(x)], spread[: len(x)], strict=True))
    low = [value - size for value, size in pairs]
    high = [value + size for value, size in pairs]
    chart.area([*x, *reversed(x)], [*high, *reversed(low)], color, yaxis=axis)


def _top(curves: EffectCurves) -> float:
    shown = [
        share
        for curve in (curves.low, curves.high)
        for mu, share in zip(curve.mu, curve.clip_fraction, strict=True)
        if mu >= _TOP_AT
    ]
    return max(0.01, 1.15 * max(shown, default=0.0))


def _range(curves: EffectCurves, now: float, width: float) -> tuple[float, float]:
    shown = [
        value
        for curve in (curves.low, curves.high)
        for mu, value in zip(curve.mu, curve.pace or (), strict=False)
        if mu <= width and math.isfinite(value)
    ]
    low, high = min([0.0, now, *shown]), max([0.0, now, *shown])
    room = 0.12 * (high - low) or 1e-4
    return low - room, high + room
