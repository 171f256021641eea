"""Whether the reward began to fall since a hold acts: a robust test of its trend.

A held entropy can cost reward: far above what the run had, the policy stops learning. The newest WINDOW rewards since the
hold began are taken, and the hold is to end where both hold:

- they fall: Mann and Kendall's statistic, which counts falling against rising pairs and knows no scale, lies below
  -LARGEST_FALL_BY_CHANCE standard deviations, these widened for rewards that follow their predecessor
- the fall turns the run's own trend by more than NOISES times the rewards' noise over the window: the median slope of all
  pairs (Theil and Sen) against that of the rewards before the hold, where those fell already
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

from isentrope_wire.diagnosis.slope import autocorrelation, deviation_of_pairs, slopes_of_pairs

WINDOW = 30
"""Newest rewards since the hold began that are tested; before there are so many there is no answer."""
LARGEST_FALL_BY_CHANCE = 3.5
"""Standard deviations of Mann and Kendall's statistic: the test is repeated every step."""
LARGEST_AUTOCORRELATION = 0.5
"""Counted with: a steady curve is autocorrelated too, and with more its fall would never be certain."""
NOISES = 2.0
_ROBUST_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


def own_fall(before: Sequence[float]) -> float:
    """The fall of the reward per step before the hold began, oldest first: 0 where it rose, or is not known."""
    return max(0.0, -_slope(before[-WINDOW:])) if len(before) >= WINDOW // 2 else 0.0


def reward_falls(own: float, since: Sequence[float]) -> str:
    """Why the hold is to end, in a sentence; empty where it goes on. `own` is `own_fall` when it began."""
    newest = since[-WINDOW:]
    if len(newest) < WINDOW:
        return ""
    slope = _slope(newest)
    residuals = [value - slope * step for step, value in enumerate(newest)]
    alike = autocorrelation(residuals, at_most=LARGEST_AUTOCORRELATION)
    if _falling_pairs(newest) < LARGEST_FALL_BY_CHANCE * deviation_of_pairs(len(newest), alike):
        return ""
    if (-slope - own) * (WINDOW - 1) <= NOISES * _noise(residuals):
        return ""
    return (
        f"The reward guard ended the hold: over the last {WINDOW} steps the reward fell by {-slope * (WINDOW - 1):.3g}, "
        f"to {median(newest[-WINDOW // 3 :]):.3g}. Push a hold again to go on; reward_guard false switches the guard off."
    )


def _falling_pairs(values: Sequence[float]) -> int:
    """Pairs of which the later value is the lower one, less those of which it is the higher one."""
    return sum((later < earlier) - (later > earlier) for earlier, later in combinations(values, 2))


def _slope(values: Sequence[float]) -> float:
    return median(slopes_of_pairs([*enumerate(values)]))


def _noise(residuals: Sequence[float]) -> float:
    """Standard deviation around the line, robust."""
    centre = median(residuals)
    return _ROBUST_DEVIATION * median(abs(residual - centre) for residual in residuals)
