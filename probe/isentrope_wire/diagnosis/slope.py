"""Slopes of noisy series by the pairs of their points, which one odd step does not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from statistics import fmean, median

from isentrope_wire.control_answers import Estimate
from isentrope_wire.diagnosis.course import LEAST_POINTS, NORMAL_95

_MOST_POINTS = 40
"""Means that a slope is taken of."""


def slope_of(steps: Sequence[int], values: Sequence[float]) -> Estimate | None:
    """The Theil-Sen slope: the median of the slopes between all pairs of points.

    The interval is Sen's, by the variance of Kendall's tau. Neighbouring steps resemble each other,
    so it is widened by the autocorrelation of what the line leaves over, as if there were fewer
    points. Of many points means are taken.

    Args:
        steps: rising.
        values: of each step, finite.

    Returns:
        None of fewer than LEAST_POINTS points.
    """
    points = _thinned(list(zip(map(float, steps), values, strict=True)))
    if len(points) < LEAST_POINTS:
        return None
    slopes = slopes_of_pairs(points)
    value = median(slopes)
    rests = [y - value * x for x, y in points]
    width = NORMAL_95 * deviation_of_pairs(len(points), autocorrelation(rests, at_most=0.9))
    margin = math.floor((len(slopes) - width) / 2)
    if margin < 0:  # so few points, or so alike, that any slope would fit
        spread = max(abs(slopes[0] - value), abs(slopes[-1] - value), abs(value))
        return Estimate(value=value, low=value - spread, high=value + spread)
    return Estimate(value=value, low=slopes[margin], high=slopes[-1 - margin])


def slopes_of_pairs(points: Sequence[tuple[float, float]]) -> list[float]:
    """Between all pairs of points, rising."""
    return sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2))


def deviation_of_pairs(n: int, autocorrelation: float) -> float:
    """Standard deviation of the number of falling less that of rising pairs, of n values in any
    order (Mann and Kendall)."""
    return math.sqrt(n * (n - 1) * (2 * n + 5) / 18 * (1 + autocorrelation) / (1 - autocorrelation))


def autocorrelation(rests: Sequence[float], *, at_most: float) -> float:
    """Correlation of neighbouring residuals, limited to [0, at_most]."""
    middle = fmean(rests)
    rests = [rest - middle for rest in rests]
    squares = sum(rest * rest for rest in rests)
    if squares > 0:
        return min(max(sum(a * b for a, b in pairwise(rests)) / squares, 0.0), at_most)
    return 0.0


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    size = math.ceil(len(points) / _MOST_POINTS)
    if size < 2:
        return points
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]
