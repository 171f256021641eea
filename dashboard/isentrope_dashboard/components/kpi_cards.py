"""Four numbers: the newest values, against the mean of the last hundred steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.components.panel import icon
from isentrope_dashboard.figures.lines import StepRow, sparkline
from isentrope_dashboard.formatting import count, number, shown, shown_difference
from isentrope_wire.answers import LatestMetric
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_MEAN, ENTROPY_PREDICTED_CHANGE, REWARD_MEAN, Metric

REFERENCE_STEPS = 100


CARDS: Mapping[str, Metric] = {
    "entropy": ENTROPY_MEAN,
    "predicted": ENTROPY_PREDICTED_CHANGE,
    "clip": CLIP_FRACTION,
    "reward": REWARD_MEAN,
}
"""By the name of the card."""


def kpi_cards() -> dmc.SimpleGrid:
    """The cards, without values."""
    return dmc.SimpleGrid(
        [_card(name, metric) for name, metric in CARDS.items()],
        cols={"base": 2, "lg": 4},
        spacing={"base": "xs", "xs": "md"},
    )


def kpi_props(rows: Sequence[StepRow], latest: Mapping[str, LatestMetric] | None = None) -> dict[str, dict[str, Any]]:
    """Component id -> properties of all cards, from the run's last steps.

    Args:
        rows: The newest steps, oldest first.
        latest: The newest value of every metric, for one that none of those steps measured.
    """
    props: dict[str, dict[str, Any]] = {}
    for name, metric in CARDS.items():
        props |= _card_props(name, metric, _readings(metric, rows, latest or {}))
    return props


@dataclass(frozen=True, slots=True)
class _Readings:
    """What a metric was, and how long ago."""

    values: Sequence[float]
    """Where it was measured, oldest first."""
    step: int | None = None
    """Of the last one."""
    age: int = 0
    """Steps since then."""


def _readings(metric: Metric, rows: Sequence[StepRow], latest: Mapping[str, LatestMetric]) -> _Readings:
    measured = [(row.step, row.scalars[metric]) for row in rows if metric in row.scalars]
    known = latest.get(metric)
    if not measured and known is not None:
        measured = [(known.step, known.value)]
    if not measured:
        return _Readings(())
    step = measured[-1][0]
    return _Readings([value for _, value in measured], step, max(0, rows[-1].step - step) if rows else 0)


def _card(part: str, metric: Metric) -> dmc.Card:
    top = dmc.Group(
        [
            dmc.Text(metric.label, size="sm", c="dimmed", fw=500),
            dmc.Text(metric.unit, id=ids.kpi(part, "unit"), size="xs", c="dimmed", className="num"),
        ],
        justify="space-between",
        gap=4,
    )
    value = dmc.Text("–", id=ids.kpi(part, "value"), className="kpi-value")
    difference = dmc.Group(
        [
            html.Span(id=ids.kpi(part, "delta"), className="unshrinking"),
            dmc.Text("", id=ids.kpi(part, "reference"), size="xs", c="dimmed"),
        ],
        gap=6,
        wrap="nowrap",
    )
    spark = dmc.Sparkline(
        id=ids.kpi(part, "spark"),
        data=[],
        w=88,
        h=44,
        color="iris.5",
        fillOpacity=0.14,
        strokeWidth=1.6,
        curveType="monotone",
        className="kpi-spark",
    )
    bottom = dmc.Group(
        [dmc.Stack([value, difference], gap=6), spark], justify="space-between", align="flex-end", wrap="nowrap", mt=8
    )
    return dmc.Card([top, bottom], className="kpi")


def _card_props(part: str, metric: Metric, readings: _Readings) -> dict[str, dict[str, Any]]:
    values = readings.values
    current = values[-1] if values else None
    before = [value for value in values[-REFERENCE_STEPS - 1 : -1] if math.isfinite(value)]
    reference = sum(before) / len(before) if before else None
    difference = current - reference if current is not None and reference is not None else None
    when = "" if not readings.age else f" · step {count(readings.step)}, {count(readings.age)} ago"
    return {
        ids.kpi(part, "value"): {"children": shown(metric, current)},
        ids.kpi(part, "unit"): {"children": (metric.unit + when).removeprefix(" · ")},
        ids.kpi(part, "delta"): {"children": _difference_badge(metric, difference)},
        ids.kpi(part, "reference"): {"children": f"vs {len(before)}-step mean" if difference is not None else ""},
        ids.kpi(part, "spark"): {"data": sparkline(values)},
    }


def _difference_badge(metric: Metric, difference: float | None) -> dmc.Badge:
    if difference is None or not math.isfinite(difference):
        content, color = [number(difference)], "gray"
    elif not any(digit in "123456789" for digit in shown_difference(metric, abs(difference))):
        content, color = ["±0"], "gray"
    else:
        rises = difference > 0
        good = None if metric.rise_is_good is None else rises == metric.rise_is_good
        content = [icon("up" if rises else "down", 11), " ", shown_difference(metric, abs(difference))]
        color = {None: "iris", True: "teal", False: "red"}[good]
    return dmc.Badge(content, variant="light", color=color, size="sm", radius="sm", tt="none", className="unshrinking")
