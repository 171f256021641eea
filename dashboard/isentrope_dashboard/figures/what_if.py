"""The what-if plot: clipped share above the entropy's pace against both thresholds, the lower side
at the left.

Each side's curve has the other side off. The browser (`assets/control.js`) draws handles and dots
by the figure's own lines and axes.
"""

from __future__ import annotations

import math
from typing import Any

from isentrope_dashboard.figures.chart import (
    SKIPPED,
    Chart,
    percent_texts,
    three_ticks,
    tick_texts,
    ticks,
)
from isentrope_dashboard.formatting import change, pace, percent
from isentrope_dashboard.theme import Scheme
from isentrope_wire.control_answers import EffectCurves

REACH = 3.0
"""Standard deviations shown to each side; more where a threshold lies further out."""
_ROOM = 1.05
"""End of the axis, as a multiple of the width: a handle at the end is off."""
CLIPPED_PANEL, PACE_PANEL = (0.56, 1.0), (0.0, 0.44)
"""Shares of the plot's height, from below."""
MARGIN = {"l": 52, "r": 8, "t": 36, "b": 18}
"""In pixels; the style sheet places handles and titles, which lie outside of both panels, by the
same numbers."""
_TOP_AT = 0.25
"""The share that clips from here on fits into the panel: at 0 half of all tokens and more are
clipped."""


def reach(*thresholds: float | None) -> float:
    """How far the plot goes to each side."""
    furthest = max((mu for mu in thresholds if mu is not None), default=0.0)
    if furthest <= REACH:
        return REACH
    return math.ceil(furthest * 1.1)


def what_if_figure(
    curves: EffectCurves, now: float, scheme: Scheme, width: float, entropy: float | None = None
) -> dict[str, Any]:
    """Both panels without the handles; of a side that clips nothing, nothing. `now` is the pace if
    the control stays as it is, in nats a step, and `entropy` the one that it moves; `width` goes to
    each side in standard deviations. `meta` has for the browser this width and the lower title."""
    chart = Chart(scheme)
    ink = chart.ink
    for side, sign, curve, color, soft in (
        ("lower", -1, curves.low, ink["iris"], ink["iris_soft"]),
        ("upper", 1, curves.high, ink["upper"], ink["upper_soft"]),
    ):
        if not any(curve.clip_fraction):
            continue
        # One edge beyond the frame, so that the line leaves it.
        shown = sum(mu <= width for mu in curve.mu) + 1
        places = [sign * mu for mu in curve.mu[:shown]]
        pairs = list(zip(curve.clip_fraction, curve.clip_fraction_std, strict=True))[:shown]
        above = [value + size for value, size in pairs]
        below = [value - size for value, size in reversed(pairs)]
        chart.area([*places, *reversed(places)], above + below, soft, yaxis="y")
        for axis, name, values, written in (
            ("y", "clipped", curve.clip_fraction, percent),
            ("y2", "pace", curve.pace or (), change),
        ):
            chart.scatter(
                places[: len(values)],
                values[:shown],
                name=f"{side} side, {name}",
                yaxis=axis,
                line={"color": color, "width": 1.8},
                text=[written(value) for value in values[:shown]],
                **SKIPPED,
            )
    for name, domain, ends, texts in (
        ("yaxis", CLIPPED_PANEL, (0.0, _top(curves)), percent_texts),
        ("yaxis2", PACE_PANEL, _range(curves, now, width), tick_texts),
    ):
        places = three_ticks(*ends)
        chart.layout[name] = {
            "range": [min(ends[0], places[0]), max(ends[1], places[-1])],
            "tickvals": places,
            "ticktext": texts(places),
            "domain": domain,
            "fixedrange": True,
            "zeroline": name == "yaxis2",
            "tickfont": {"size": 10, "color": ink["muted"]},
        }
    chart.level(now, ink["observed"], dash="4px,3px", yref="y2")
    chart.mark(0, ink["zero"])
    outwards = ticks(0, width, 4)
    places = sorted({sign * place for place in outwards for sign in (-1, 1)})
    texts_below = [f"{abs(place):g}" for place in places]
    for end in (0, -1):
        texts_below[end] += " σ"
    figure = chart.figure()
    figure["layout"] |= {
        "meta": {
            "reach": width,
            "unchanged": f"as now {pace(now, entropy)}",
            "pace": "pace, nats a step" if curves.low.pace else "pace: no gain is known",
        },
        "margin": MARGIN,
        "hovermode": False,
        "dragmode": False,
        "xaxis": {
            "range": [-width * _ROOM, width * _ROOM],
            "fixedrange": True,
            "anchor": "y2",
            "showspikes": False,
            "tickvals": places,
            "ticktext": texts_below,
            "tickangle": 0,
        },
    }
    return figure


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
    if high > low:
        return (low, high)
    return (low - 1e-4, high + 1e-4)
