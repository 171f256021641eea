"""What the newest step would have been under the thresholds in the form, before they are pushed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_wire.control import Control
from isentrope_wire.control_answers import CurveColumns, WhatIfAnswer, WhatIfCurves

HEIGHT = 250
REACH = 5.0
"""Standard deviations shown to each side, as far as the sliders go."""
_MARGIN = 1.15


def with_gain(found: WhatIfAnswer, gain: float) -> WhatIfAnswer:
    """The same step with another gain than the calibration's."""
    change, curve = gain * found.unit_predicted_change, found.curve
    scaled = None if curve is None else WhatIfCurves(low=_with_gain(curve.low, gain), high=_with_gain(curve.high, gain))
    return replace(found, gain=gain, predicted_change=change, curve=scaled)


def _with_gain(curve: CurveColumns, gain: float) -> CurveColumns:
    return replace(curve, predicted_change=[gain * unit for unit in curve.unit_predicted_change])


def change_of(found: WhatIfAnswer) -> float:
    """The calibrated change where the gain is known, else the unit prediction."""
    return found.unit_predicted_change if found.predicted_change is None else found.predicted_change


def what_if_figure(found: WhatIfAnswer, active: Control | None, *, revision: str) -> go.Figure:
    """Two panels over one axis: the lower threshold to the left, the upper one to the right.

    Each side's curve is the whole step's value with that threshold and the other one as in the form; the form's own
    thresholds are dots on the curves, both at the same height.

    Args:
        found: With its curves.
        active: Drawn as dotted lines where it is of the same method, for only then is mu the same measure.
        revision: the user's zoom is kept for as long as this stays the same.
    """
    running = active if active is not None and active.method == found.method else None
    assert found.curve is not None, "asked for with curves"
    sides = (found.curve.low, found.curve.high)
    reach = _reach(found, running)
    in_frame = [
        share
        for curve in sides
        for mu, share in zip(curve.mu, curve.clip_fraction, strict=True)
        if mu <= reach and share
    ]
    figure = go.Figure(layout=_layout(revision, reach, in_frame, calibrated=found.gain is not None))
    _add_curves(
        figure,
        sides,
        [curve.clip_fraction for curve in sides],
        "clipped",
        "y",
        theme.SLOT_ENTROPY,
        "%{y:.3%} clipped",
        reach,
    )
    _add_curves(
        figure, sides, [_change(curve) for curve in sides], "ΔH", "y2", theme.SLOT_PREDICTED, "ΔH %{y:+.2e}", reach
    )
    _add_dots(figure, found, found.clip_fraction or None, "y", theme.SLOT_ENTROPY)
    _add_dots(figure, found, change_of(found), "y2", theme.SLOT_PREDICTED)
    for place in _places(running):
        figure.add_shape(type="line", x0=place, x1=place, y0=0, y1=1, yref="paper", line={"dash": "dot", "width": 1.2})
    return figure


def _change(curve: CurveColumns) -> Sequence[float]:
    return curve.unit_predicted_change if curve.predicted_change is None else curve.predicted_change


def _places(thresholds: Control | WhatIfAnswer | None) -> list[float]:
    """Places of the thresholds on the axis: lower ones to the left of 0."""
    if thresholds is None:
        return []
    low, high = thresholds.mu_low, thresholds.mu_high
    return [*([] if low is None else [-low]), *([] if high is None else [high])]


def _reach(asked: WhatIfAnswer, running: Control | None) -> float:
    farthest = max((abs(place) for place in (*_places(asked), *_places(running))), default=0.0)
    return REACH if farthest <= REACH else _MARGIN * farthest


def _add_curves(
    figure: go.Figure,
    sides: tuple[CurveColumns, CurveColumns],
    values: Sequence[Sequence[float]],
    name: str,
    axis: str,
    slot: int,
    hover: str,
    reach: float,
) -> None:
    for side, curve, symbol, drawn in ((-1, sides[0], "µ₋", values[0]), (1, sides[1], "µ₊", values[1])):
        # One edge beyond the frame, so that the line leaves it.
        shown = sum(mu <= reach for mu in curve.mu) + 1
        figure.add_scatter(
            x=[side * mu for mu in curve.mu[:shown]],
            y=[_drawable(value, positive=axis == "y") for value in drawn[:shown]],
            customdata=list(curve.mu[:shown]),
            yaxis=axis,
            mode="lines",
            name=name,
            line={"width": 2},
            hovertemplate=f"{symbol} %{{customdata:.2f}}: {hover}<extra></extra>",
            meta={"slot": slot},
        )


def _add_dots(figure: go.Figure, asked: WhatIfAnswer, value: float | None, axis: str, slot: int) -> None:
    places = _places(asked)
    figure.add_scatter(
        x=places,
        y=[_drawable(value)] * len(places),
        yaxis=axis,
        mode="markers",
        name="as in the form",
        marker={"size": 10, "line": {"width": 0}},
        cliponaxis=False,
        hoverinfo="skip",
        meta={"slots": [slot] * len(places)},
    )


def _layout(revision: str, reach: float, clipped: Sequence[float], *, calibrated: bool) -> dict[str, Any]:
    ticks = [-4, -2, 0, 2, 4] if reach == REACH else [share * reach for share in (-0.8, -0.4, 0, 0.4, 0.8)]
    return {
        "template": "none",  # the browser knows the colour scheme and puts its template in
        "uirevision": revision,
        "autosize": True,
        "hovermode": "closest",
        "showlegend": False,
        "margin": {"t": 6, "l": 40, "r": 8, "b": 34},
        "xaxis": {
            "title": {"text": "← lower threshold µ₋ · upper threshold µ₊ →"},
            "anchor": "y2",
            "range": [-reach, reach],
            "tickvals": ticks,
            "ticktext": [f"{abs(tick):g}" for tick in ticks],
            "zeroline": True,
        },
        "yaxis": {
            "title": {"text": "clipped"},
            "type": "log",
            "tickvals": ticks_of_shares(clipped),
            "tickformat": "~%",
            "domain": [0.56, 1],
        },
        "yaxis2": {
            "title": {"text": "ΔH, nats" if calibrated else "ΔH per unit"},
            "domain": [0, 0.44],
            "nticks": 4,
            "exponentformat": "power",
            "zeroline": True,
        },
    }


def ticks_of_shares(shares: Sequence[float]) -> list[float]:
    """Powers of ten, and thrice them where fewer than three of those would stand on the axis."""
    if not shares:
        return [1.0]
    lowest, highest = math.floor(math.log10(min(shares))), math.ceil(math.log10(max(shares)))
    decades = [10.0**power for power in range(lowest, highest + 1)]
    if highest - lowest > 2:
        return decades
    return sorted({*decades, *(3 * decade for decade in decades if decade < 1)})


def _drawable(value: float | None, *, positive: bool = False) -> float | None:
    """None where there is nothing to draw; a share of nothing has no place on a logarithmic axis."""
    if value is None or not math.isfinite(value) or (positive and value <= 0):
        return None
    return value
