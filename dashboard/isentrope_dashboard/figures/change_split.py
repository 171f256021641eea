"""The unit prediction split by the signs of advantage and score, or by mechanism; and covariances by difficulty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_dashboard.figures.lines import StepRow, show_note
from isentrope_dashboard.formatting import number
from isentrope_wire.metrics import (
    CHANGE_BY_ENTROPY_BONUS,
    CHANGE_BY_INTERVENTION,
    CHANGE_BY_KL_PENALTY,
    CHANGE_BY_POLICY_LOSS,
    CHANGE_NEGATIVE_HIGH,
    CHANGE_NEGATIVE_LOW,
    CHANGE_POSITIVE_HIGH,
    CHANGE_POSITIVE_LOW,
    COVARIANCE_GROUP,
    COVARIANCE_GROUP_EASY,
    COVARIANCE_GROUP_HARD,
    COVARIANCE_GROUP_MIDDLE,
    ENTROPY_UNIT_PREDICTED_CHANGE,
)

HEIGHT = 300
STEPS = 100
NARROWEST_PLOT_PIXELS = 240
"""Width of the bars' area on a telephone."""
CHARACTER_PIXELS = 6.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """One way to split it."""

    name: str
    subtitle: str
    axis: str
    parts: tuple[tuple[str, str], ...]
    """Metric and label of each bar, from above."""


_UNIT = "contribution to the unit prediction (nats per unit gain)"
VIEWS: Mapping[str, SplitView] = {
    "quadrant": SplitView(
        name="Quadrant",
        subtitle="Advantage sign × score sign",
        axis=_UNIT,
        parts=(
            (CHANGE_POSITIVE_LOW, "A<sub>+</sub> · S<sub>c</sub> &lt; 0"),
            (CHANGE_POSITIVE_HIGH, "A<sub>+</sub> · S<sub>c</sub> &gt; 0"),
            (CHANGE_NEGATIVE_LOW, "A<sub>−</sub> · S<sub>c</sub> &lt; 0"),
            (CHANGE_NEGATIVE_HIGH, "A<sub>−</sub> · S<sub>c</sub> &gt; 0"),
        ),
    ),
    "mechanism": SplitView(
        name="Mechanism",
        subtitle="What each mechanism makes of the unit prediction",
        axis=_UNIT,
        parts=(
            (CHANGE_BY_POLICY_LOSS, "policy loss"),
            (CHANGE_BY_KL_PENALTY, "KL penalty"),
            (CHANGE_BY_ENTROPY_BONUS, "entropy bonus"),
            (CHANGE_BY_INTERVENTION, "intervention"),
            (ENTROPY_UNIT_PREDICTED_CHANGE, "unit prediction"),
        ),
    ),
    "difficulty": SplitView(
        name="Difficulty",
        subtitle="Covariance of a sequence's log-prob and advantage within its group",
        axis="Cov(log p / length, A), nats",
        parts=(
            (COVARIANCE_GROUP_EASY, "easy groups"),
            (COVARIANCE_GROUP_MIDDLE, "middle"),
            (COVARIANCE_GROUP_HARD, "hard"),
            (COVARIANCE_GROUP, "all groups"),
        ),
    ),
}
"""By their names in the page's state."""
_SIGNS: Mapping[str, tuple[str, ...]] = {
    "quadrant": (CHANGE_POSITIVE_LOW,),
    "mechanism": (CHANGE_BY_KL_PENALTY, CHANGE_BY_ENTROPY_BONUS, CHANGE_BY_INTERVENTION),
    "difficulty": (COVARIANCE_GROUP,),
}
"""A view is offered where any of these was measured."""


def views_of(rows: Sequence[StepRow]) -> list[str]:
    """The views there is something to show in; the first always."""
    measured = {name for row in rows[-STEPS:] for name in row.scalars}
    return [view for view, signs in _SIGNS.items() if view == "quadrant" or not measured.isdisjoint(signs)]


@dataclass(frozen=True, slots=True)
class ChangePart:
    """Mean of one bar."""

    metric: str
    label: str
    mean: float


def change_parts(rows: Sequence[StepRow], view: str = "quadrant") -> list[ChangePart]:
    """Means over the last STEPS steps that measured a part; a part never measured is skipped."""
    parts = []
    for metric, label in VIEWS[view].parts:
        values = [row.scalars[metric] for row in rows[-STEPS:] if metric in row.scalars]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            parts.append(ChangePart(metric, label, sum(finite) / len(finite)))
    return parts


def steps_measured(rows: Sequence[StepRow], view: str = "quadrant") -> int:
    """How many of the last STEPS steps measured any part."""
    metrics = [metric for metric, _ in VIEWS[view].parts]
    return sum(any(math.isfinite(row.scalars.get(metric, math.nan)) for metric in metrics) for row in rows[-STEPS:])


def change_split_figure(rows: Sequence[StepRow], view: str = "quadrant", *, revision: str) -> go.Figure:
    """A bar for each part: to the right raises entropy, to the left lowers it."""
    figure = go.Figure(layout=_layout(revision, VIEWS[view].axis))
    parts = change_parts(rows, view)
    if not parts:
        show_note(figure, "No change measured yet")
        return figure
    means = [part.mean for part in parts]
    reach = max(max(abs(mean) for mean in means), 1e-12)
    digits = min(8, max(4, 2 - math.floor(math.log10(reach)))) if reach > 1e-12 else 4
    texts = [number(mean, digits, signed=True) for mean in means]
    slots = [theme.SLOT_POSITIVE if mean > 0 else theme.SLOT_NEGATIVE for mean in means]
    figure.add_bar(
        y=[part.label for part in parts],
        x=means,
        orientation="h",
        width=0.58,
        marker={"cornerradius": 4},
        text=texts,
        textposition="outside",
        cliponaxis=False,
        textfont={"size": 11},
        hovertemplate="%{y}<br>%{text}<extra></extra>",
        meta={"slots": slots},
    )
    margin = _room_for(max(len(text) for text in texts))
    figure.update_xaxes(range=[-margin * reach, margin * reach])
    return figure


def _room_for(characters: int) -> float:
    """Half the axis over the longest bar, so that a text of this length fits beside the bar."""
    share_of_text = min(0.35, (characters + 1) * CHARACTER_PIXELS / NARROWEST_PLOT_PIXELS)
    return 1 / (1 - 2 * share_of_text)


def _layout(revision: str, axis: str) -> dict[str, Any]:
    return {
        "template": "none",  # the browser knows the colour scheme and puts its template in
        "uirevision": revision,
        "autosize": True,
        "hovermode": "closest",
        "showlegend": False,
        "bargap": 0.3,
        "margin": {"l": 8, "t": 26, "r": 16},
        "xaxis": {
            "zeroline": True,
            "nticks": 6,
            "exponentformat": "power",
            "title": {"text": axis},
        },
        "yaxis": {"autorange": "reversed", "showgrid": False, "tickfont": {"size": 12}},
    }
