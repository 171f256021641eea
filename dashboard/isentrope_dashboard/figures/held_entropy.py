"""A held entropy on the entropy chart: the target with its band, the thresholds moved for it, and its state in words."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_dashboard.figures.lines import EMPTY, StepRow, band_outline
from isentrope_wire.answers import SeriesColumns
from isentrope_wire.control import Hold
from isentrope_wire.control_answers import ControlVersion, RunControl
from isentrope_wire.metrics import (
    CONTROL_MU_HIGH,
    CONTROL_MU_LOW,
    ENTROPY_MEAN,
    HOLD_MU,
    HOLD_STEPS_TO_TARGET,
    HOLD_TARGET,
)

ENTROPY, TARGET = ENTROPY_MEAN, HOLD_TARGET
BAND_HIGH, BAND_LOW = "hold/band_high", "hold/band_low"
"""Not reported by any probe: the target, and the largest correction of a step to both sides of it."""
STATE, WHY = "hold/state", "hold/why"
"""Labels of a step's report."""
DISTANCE_STEPS = 50

WORDS: Mapping[str, tuple[str, str]] = {
    "holding": ("Holding", "The threshold is the one that the correction needs."),
    "slewing": ("Slewing", "The threshold is on its way: it moves only so far in a step."),
    "limit": ("At its limit", "More would have to be clipped than µ min lets it."),
    "approaching": ("Approaching", "The target is far, and the entropy moves towards it."),
    "resting": ("Resting", "Nothing needs to be clipped."),
    "side": ("Waiting", "Only the side that is not allowed could bring the entropy nearer."),
    "fallback": ("Fallback", "The entropy can't be held: the pushed method and thresholds are active."),
}
"""By the label's value: in one word, and what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """State of a held entropy in the newest step."""

    hold: Hold
    state: str
    """One of WORDS, another one of the probe's, or empty before the first report of it."""
    why: str
    target: float | None
    """H* of the newest step, nats; None before the first report of it."""
    steps_to_target: float | None
    """While the entropy approaches it."""
    mu: float | None
    """The threshold chosen for the newest step; None: nothing is clipped, or the pushed thresholds are active."""
    distance: float | None
    """Mean size of H - H* over the last measured steps, as a share of H*."""
    distance_steps: int


def holding(control: RunControl | None, labels: Mapping[str, str], rows: Sequence[StepRow]) -> Holding | None:
    """State of the active hold; None while no entropy is held.

    Args:
        labels: of the newest step.
        rows: the newest steps, oldest first.
    """
    running = None if control is None else control.active
    hold = None if running is None else running.control.held
    if hold is None:
        return None
    newest = rows[-1].scalars if rows else {}
    distances = _distances(rows)
    return Holding(
        hold=hold,
        target=newest.get(TARGET),
        steps_to_target=newest.get(HOLD_STEPS_TO_TARGET),
        state=labels.get(STATE, ""),
        why=labels.get(WHY, ""),
        mu=newest.get(HOLD_MU),
        distance=sum(distances) / len(distances) if distances else None,
        distance_steps=len(distances),
    )


def _distances(rows: Sequence[StepRow]) -> list[float]:
    """Of the newest steps that were held, each from its own target."""
    held = [row.scalars for row in rows[-DISTANCE_STEPS:] if row.scalars.get(TARGET, 0) > 0 and ENTROPY in row.scalars]
    return [abs(one[ENTROPY] / one[TARGET] - 1) for one in held if math.isfinite(one[ENTROPY])]


def hold_at(step: int, history: Sequence[ControlVersion]) -> Hold | None:
    """The hold of the control that was active at a step."""
    applied = [item for item in history if item.was_applied and (item.applied_step or 0) <= step]
    return max(applied, key=lambda item: item.version).control.held if applied else None


def banded_rows(rows: Sequence[StepRow], history: Sequence[ControlVersion]) -> list[StepRow]:
    """Rows with the ends of the band, where any step was ever held.

    A filled area can't have a gap, so a step that is not held has a band of no height, on the entropy's own line.
    """
    if not any(item.hold for item in history):
        return list(rows)
    return [replace(row, scalars={**row.scalars, **_ends(row, history)}) for row in rows]


def _ends(row: StepRow, history: Sequence[ControlVersion]) -> dict[str, float]:
    target = row.scalars.get(TARGET)
    if target is None:
        return {name: row.scalars[ENTROPY] for name in (BAND_HIGH, BAND_LOW) if ENTROPY in row.scalars}
    hold = hold_at(row.step, history)
    reach = 0.0 if hold is None else hold.largest_change(target)
    return {BAND_HIGH: target + reach, BAND_LOW: target - reach}


def with_band(series: Mapping[str, SeriesColumns], history: Sequence[ControlVersion]) -> dict[str, SeriesColumns]:
    """Columns with the band's ends among them; as they were where no step was held."""
    target = series.get(TARGET, EMPTY)
    if not any(value is not None for value in target.value):
        return dict(series)
    entropy = series.get(ENTROPY, EMPTY)
    targets = {step: value for step, value in zip(target.step, target.value, strict=True) if value is not None}
    entropies = {step: value for step, value in zip(entropy.step, entropy.value, strict=True) if value is not None}
    unheld = _apart(sorted(entropies), sorted(targets), reduced=entropy.reduced or target.reduced)
    rows = [StepRow(step=step, scalars={TARGET: value}) for step, value in targets.items()]
    rows += [StepRow(step=step, scalars={ENTROPY: entropies[step]}) for step in unheld]
    ends = {row.step: _ends(row, history) for row in sorted(rows, key=lambda row: row.step)}
    band = {
        name: SeriesColumns(step=list(ends), value=[e.get(name, math.nan) for e in ends.values()], min=None, max=None)
        for name in (BAND_HIGH, BAND_LOW)
    }
    return {**series, **band}


def _apart(steps: Sequence[int], held: Sequence[int], *, reduced: bool) -> list[int]:
    """The steps that are not held; of buckets, those farther from any held one than a bucket is wide."""
    if not reduced:
        among = set(held)
        return [step for step in steps if step not in among]
    width = 2 * max((later - earlier for earlier, later in pairwise(steps)), default=1)
    return [step for step in steps if _distance(step, held) > width]


def _distance(step: int, held: Sequence[int]) -> int:
    place = bisect_left(held, step)
    return min(abs(step - other) for other in held[max(0, place - 1) : place + 1])


MU_LOW, MU_HIGH, MU = CONTROL_MU_LOW, CONTROL_MU_HIGH, HOLD_MU
METRICS = (TARGET, BAND_HIGH, BAND_LOW, MU_LOW, MU_HIGH, MU)
"""In the order of the traces."""
_THRESHOLDS = (
    (MU_LOW, "µ₋ active", theme.SLOT_NEUTRAL, {"width": 1.4, "dash": "dot"}),
    (MU_HIGH, "µ₊ active", theme.SLOT_NEUTRAL, {"width": 1.4, "dash": "dash"}),
    (MU, "µ chosen", theme.SLOT_HELD, {"width": 2}),
)


def is_steered(series: Mapping[str, SeriesColumns]) -> bool:
    """Whether any threshold was reported, so that there is something to draw in a panel of its own."""
    return any(value is not None for name, *_ in _THRESHOLDS for value in series.get(name, EMPTY).value)


def is_held(series: Mapping[str, SeriesColumns]) -> bool:
    """Whether any of METRICS was reported."""
    return any(value is not None for name in METRICS for value in series.get(name, EMPTY).value)


def axis(domain: Sequence[float]) -> dict[str, Any]:
    """The thresholds' axis."""
    return {"title": {"text": "µ, σ"}, "domain": list(domain), "rangemode": "tozero", "nticks": 4}


def add_traces(figure: go.Figure, series: Mapping[str, SeriesColumns], steps: Sequence[int] | None) -> None:
    """One trace for each of METRICS, empty where the entropy was never held.

    Args:
        steps: those the chart shows; None: each line has its own.
    """
    axis_name = "y3" if is_steered(series) else "y2"
    held = any(_drawable(value) is not None for value in series.get(TARGET, EMPTY).value)
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
    columns = series.get(name, EMPTY)
    if not any(_drawable(value) is not None for value in columns.value):
        return [], []
    measured = dict(zip(columns.step, columns.value, strict=True))
    shown = list(columns.step) if steps is None else list(steps)
    return shown, [_drawable(measured.get(step)) for step in shown]


def _drawable(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
