"""Four numbers: where the run stands, against the mean of its last hundred steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.components.panel import icon
from isentrope_dashboard.figures.sparkline import sparkline
from isentrope_dashboard.formatting import change, count, number, percent
from isentrope_dashboard.records import LatestValue, StepRow

REFERENCE_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Indicator:
    """One card: which metric, how it is written, and whether a rise is good news (None: neither)."""

    name: str
    metric: str
    label: str
    unit: str
    show: Callable[[float | None], str]
    show_difference: Callable[[float | None], str]
    rise_is_good: bool | None = None


# Entropy may fall too far or rise too far: its change is news, but neither good nor bad.
INDICATORS = (
    Indicator(
        name="entropy",
        metric="entropy/mean",
        label="Entropy",
        unit="nats",
        show=number,
        show_difference=lambda v: number(v, 4),
    ),
    Indicator(
        name="predicted",
        metric="entropy/predicted_change",
        label="Predicted ΔH",
        unit="nats / step",
        show=change,
        show_difference=lambda v: change(v).lstrip("+"),
    ),
    Indicator(
        name="clip",
        metric="clip/fraction",
        label="Clip fraction",
        unit="of tokens",
        show=percent,
        show_difference=percent,
    ),
    Indicator(
        name="reward",
        metric="reward/mean",
        label="Reward",
        unit="mean",
        show=number,
        show_difference=lambda v: number(v, 4),
        rise_is_good=True,
    ),
)


def kpi_cards() -> dmc.SimpleGrid:
    """The cards, without values."""
    return dmc.SimpleGrid(
        [_card(indicator) for indicator in INDICATORS], cols={"base": 2, "lg": 4}, spacing={"base": "xs", "xs": "md"}
    )


def kpi_props(rows: Sequence[StepRow], latest: Mapping[str, LatestValue] | None = None) -> dict[str, dict[str, Any]]:
    """Component id -> properties of all cards, from the run's last steps.

    Args:
        latest: the newest value of every metric, for one that none of those steps measured.
    """
    props: dict[str, dict[str, Any]] = {}
    for indicator in INDICATORS:
        props |= _card_props(indicator, _readings(indicator, rows, latest or {}))
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


def _readings(indicator: Indicator, rows: Sequence[StepRow], latest: Mapping[str, LatestValue]) -> _Readings:
    measured = [(row.step, row.scalars[indicator.metric]) for row in rows if indicator.metric in row.scalars]
    known = latest.get(indicator.metric)
    if not measured and known is not None and known.value is not None:
        measured = [(known.step, known.value)]
    if not measured:
        return _Readings(())
    step = measured[-1][0]
    return _Readings([value for _, value in measured], step, max(0, rows[-1].step - step) if rows else 0)


def _card(indicator: Indicator) -> dmc.Card:
    part = indicator.name
    top = dmc.Group(
        [
            dmc.Text(indicator.label, size="sm", c="dimmed", fw=500),
            dmc.Text(indicator.unit, id=ids.kpi(part, "unit"), size="xs", c="dimmed", className="num"),
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


def _card_props(indicator: Indicator, readings: _Readings) -> dict[str, dict[str, Any]]:
    values = readings.values
    current = values[-1] if values else None
    before = [value for value in values[-REFERENCE_STEPS - 1 : -1] if math.isfinite(value)]
    reference = sum(before) / len(before) if before else None
    difference = current - reference if current is not None and reference is not None else None
    part = indicator.name
    when = "" if not readings.age else f" · step {count(readings.step)}, {count(readings.age)} ago"
    return {
        ids.kpi(part, "value"): {"children": indicator.show(current)},
        ids.kpi(part, "unit"): {"children": indicator.unit + when},
        ids.kpi(part, "delta"): {"children": _difference_badge(indicator, difference)},
        ids.kpi(part, "reference"): {"children": f"vs {len(before)}-step mean" if difference is not None else ""},
        ids.kpi(part, "spark"): {"data": sparkline(values)},
    }


def _difference_badge(indicator: Indicator, difference: float | None) -> dmc.Badge:
    if difference is None or not math.isfinite(difference):
        content, color = [number(difference)], "gray"
    elif not any(digit in "123456789" for digit in indicator.show_difference(abs(difference))):
        content, color = ["±0"], "gray"
    else:
        rises = difference > 0
        good = None if indicator.rise_is_good is None else rises == indicator.rise_is_good
        content = [icon("up" if rises else "down", 11), " ", indicator.show_difference(abs(difference))]
        color = {None: "iris", True: "teal", False: "red"}[good]
    return dmc.Badge(content, variant="light", color=color, size="sm", radius="sm", tt="none", className="unshrinking")
