"""The course of a run's entropy: from which loss on it is watched or acted on, its slope, and what pulls it.

The alerts, raised step by step where a run is measured, and the diagnosis, made of the stored steps, share these rules.
No threshold is in nats or in steps: a run is compared with its own early level, its own noise and its own age.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import fmean, median

from isentrope_wire.metrics import (
    CHANGE_NEGATIVE_HIGH,
    CHANGE_NEGATIVE_LOW,
    CHANGE_POSITIVE_HIGH,
    CHANGE_POSITIVE_LOW,
    EARLY_STEPS,
)

WATCH_LEFT, ACT_LEFT = 0.75, 0.5
"""Of the early entropy: with so much left a collapse is to be watched, and to be acted on. An explosion is the same upside
down, at 1 / 0.75 and 1 / 0.5 of the early entropy."""

OVER_LEFT = 0.875
"""With more than this left of the early entropy, a collapse is over; a held entropy is near a target it is so close to."""

FLOOR, CEILING = 0.25, 2.0
"""Of the early entropy: where a collapse, or an explosion, ends."""

NOISES = 4.0
"""How many standard errors the share that is lost must be away from 0."""

PART_OF_THE_WAY = 0.25
"""From the early level to the floor or ceiling: before that part is covered nothing is predicted."""

FOLLOWED = 0.25
"""Of the predicted rate: the entropy itself must have moved at least so fast, or the prediction does not count."""

WINDOW = 20
"""Steps over which a slope, a mean or a rate is taken."""

CAUSE_STEPS = 10
"""Steps over which the parts of the unit prediction are averaged."""

LEAST_POINTS = 5
"""Steps that a slope needs."""

MECHANISM = "change/by_"
"""How the names of the parts by mechanism begin; which ones there are depends on what the loop measures."""

QUADRANTS: dict[str, tuple[str, str]] = {
    CHANGE_POSITIVE_HIGH: ("A > 0, S_c > 0", "likely tokens of samples with positive advantage are reinforced"),
    CHANGE_POSITIVE_LOW: ("A > 0, S_c < 0", "unlikely tokens of samples with positive advantage are reinforced"),
    CHANGE_NEGATIVE_HIGH: ("A < 0, S_c > 0", "likely tokens of samples with negative advantage are suppressed"),
    CHANGE_NEGATIVE_LOW: ("A < 0, S_c < 0", "unlikely tokens of samples with negative advantage are suppressed"),
}
"""Each part of the unit prediction by sign of advantage and score: its tokens, and what the update does to them."""

DIRECTIONS = {"collapse": -1, "explosion": 1}
"""The kinds of alerts about the entropy's course, and where it goes."""

_NORMAL_95 = 1.6449
"""A normal variable lies below it with a probability of 95 %: the ends of a 90 % interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """How fast a quantity changes, in its unit a step, with a 90 % interval."""

    value: float
    low: float
    high: float

    @property
    def direction(self) -> int:
        """1 where it clearly rises, -1 where it clearly falls, 0 where the interval contains 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def slope_of(steps: Sequence[int], values: Sequence[float]) -> Slope | None:
    """The Theil-Sen slope: the median of the slopes between all pairs of points, which one odd step does not move.

    The interval is Sen's, by the variance of Kendall's tau. Neighbouring steps resemble each other, so it is widened by the
    autocorrelation of what the line leaves over, as if there were fewer points.

    Args:
        steps: rising.
        values: of each step, finite.

    Returns:
        None of fewer than LEAST_POINTS points.
    """
    count = len(steps)
    if count < LEAST_POINTS:
        return None
    points = list(zip(steps, values, strict=True))
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))
    value = median(slopes)
    rests = [y - value * x for x, y in points]
    fewer = math.sqrt((1 + (r := _autocorrelation(rests))) / (1 - r))
    width = _NORMAL_95 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18) * fewer
    margin = math.floor((len(slopes) - width) / 2)
    if margin < 0:  # so few points, or so alike, that any slope would fit
        spread = max(abs(slopes[0] - value), abs(slopes[-1] - value), abs(value))
        return Slope(value=value, low=value - spread, high=value + spread)
    return Slope(value=value, low=slopes[margin], high=slopes[-1 - margin])


def _autocorrelation(rests: Sequence[float]) -> float:
    """Of neighbours, from 0 to 0.9."""
    middle = fmean(rests)
    rests = [rest - middle for rest in rests]
    squares = sum(rest * rest for rest in rests)
    return min(max(sum(a * b for a, b in pairwise(rests)) / squares, 0.0), 0.9) if squares > 0 else 0.0


def steps_until(goal: float, entropy: float, rate: float) -> float:
    """Steps until an entropy reaches a goal; 0 where it is there.

    It moves by shares of itself and not by amounts: H ln(H_goal / H) / rate.

    Args:
        goal: in nats, above 0.
        entropy: in nats, above 0.
        rate: in nats a step, towards the goal or beyond it.
    """
    return max(entropy * math.log(goal / entropy) / rate, 0.0)


def standard_error_of_share(entropies: Sequence[float], newest: int) -> float:
    """Of a mean's share of the early level, from how much the entropy scatters from step to step.

    Args:
        entropies: of the last steps, in nats.
        newest: number of steps that the mean is of.
    """
    jumps = [2 * abs(b - a) / (a + b) if a + b > 0 else 0.0 for a, b in pairwise(entropies)]
    # The difference of two steps scatters sqrt(2) times as much as one, and |x| of a normal x has the mean
    # sqrt(2 / pi) sigma; the variance of a median is pi / 2 that of the mean.
    of_a_step = fmean(jumps) * math.sqrt(math.pi) / 2 if jumps else 0.0
    return of_a_step * math.sqrt(1 / newest + math.pi / 2 / EARLY_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """The part of the unit prediction that changes the entropy most in one direction."""

    quadrant: str
    """The metric of the part by sign of A and S_c."""
    share: float
    """Of what all four quadrants pull that way, in [0, 1]."""
    mechanism: str | None
    """The metric of the part by mechanism; None where none is measured or pulls that way."""
    changes: Mapping[str, float]
    """Mean of every part over the steps, in nats per unit gain."""


def change_parts(scalars: Mapping[str, float]) -> dict[str, float]:
    """The parts of a step's unit prediction that it measured, in nats per unit gain."""
    return {name: value for name, value in scalars.items() if name in QUADRANTS or name.startswith(MECHANISM)}


def largest_pull(steps: Iterable[Mapping[str, float]], direction: int) -> Pull | None:
    """The part of the unit prediction that pulls most in a direction.

    Args:
        steps: `change_parts` of the last steps.
        direction: -1 where the entropy falls, 1 where it rises.

    Returns:
        None where no part by sign of advantage and score pulls that way, or none was measured.
    """
    parts: dict[str, list[float]] = {}
    for step in steps:
        for name, value in step.items():
            parts.setdefault(name, []).append(value)
    changes = {name: fmean(values) for name, values in parts.items()}
    pulls = {name: direction * change for name, change in changes.items() if direction * change > 0}
    quadrants = {name: pull for name, pull in pulls.items() if name in QUADRANTS}
    if not quadrants:
        return None
    quadrant = max(quadrants, key=lambda name: quadrants[name])
    mechanisms = {name: pull for name, pull in pulls.items() if name not in quadrants}
    return Pull(
        quadrant=quadrant,
        share=quadrants[quadrant] / sum(quadrants.values()),
        mechanism=max(mechanisms, key=lambda name: mechanisms[name]) if mechanisms else None,
        changes=changes,
    )
