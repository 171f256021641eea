"""Ends a hold that costs reward."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

from isentrope_wire.diagnosis.guard import lost_reward
from isentrope_wire.diagnosis.slope import autocorrelation, deviation_of_pairs, slopes_of_pairs

REWARD_WINDOW = 30
"""Newest rewards since the hold began that are tested; before there are so many there is no
answer."""
LARGEST_FALL_BY_CHANCE = 3.5
"""Standard deviations of Mann and Kendall's statistic: the test is repeated every step."""
LARGEST_AUTOCORRELATION = 0.5
"""Counted with: a steady curve is autocorrelated too, and with more its fall would never be
certain."""
NOISES = 2.0
_ROBUST_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


def own_fall(before: Sequence[float]) -> float:
    """The fall of the reward per step before the hold began, oldest first: 0 where it rose, or is
    not known."""
    if len(before) >= REWARD_WINDOW // 2:
        return max(0.0, -_slope(before[-REWARD_WINDOW:]))
    return 0.0


def reward_falls(
    own: float, since: Sequence[float], before: Sequence[float] = (), steps: int | None = None
) -> str:
    """Why the hold is to end, in a sentence; empty where it goes on. `own` is `own_fall` when it
    began; `before` has the rewards of the steps before it acted, `steps` how many it has acted for:
    None where `since` has them all.

    It ends where the newest rewards are lower than those before it for certain (`lost_reward`), or
    fall:

    A held entropy can cost reward: far above what the run had, the policy stops learning. The hold
    is to end where the newest rewards fall by Mann and Kendall's statistic, which counts falling
    against rising pairs and knows no scale, widened for rewards that follow their predecessor; and
    the fall turns the run's own trend by more than NOISES times the rewards'
    noise: the median slope of all pairs (Theil and Sen) against that of the rewards before the
    hold."""
    newest = since[-REWARD_WINDOW:]
    if len(newest) < REWARD_WINDOW:
        return ""
    lost = lost_reward(before, since, len(since) if steps is None else steps)
    if lost:
        return _ended(f"the reward is {lost:.3g} lower than before it acted", newest)
    slope = _slope(newest)
    residuals = [value - slope * step for step, value in enumerate(newest)]
    alike = autocorrelation(residuals, at_most=LARGEST_AUTOCORRELATION)
    falling = sum(
        (later < earlier) - (later > earlier) for earlier, later in combinations(newest, 2)
    )
    if falling < LARGEST_FALL_BY_CHANCE * deviation_of_pairs(len(newest), alike):
        return ""
    if (-slope - own) * (REWARD_WINDOW - 1) <= NOISES * _noise(residuals):
        return ""
    fell = -slope * (REWARD_WINDOW - 1)
    return _ended(f"over the last {REWARD_WINDOW} steps the reward fell by {fell:.3g}", newest)


def _ended(why: str, rewards: Sequence[float]) -> str:
    now = median(rewards[-REWARD_WINDOW // 3 :])
    return (
        f"The reward guard ended the hold: {why}, to {now:.3g}. Push a hold again to go on; "
        "reward_guard false switches the guard off."
    )


def _slope(values: Sequence[float]) -> float:
    return median(slopes_of_pairs([*enumerate(values)]))


def _noise(residuals: Sequence[float]) -> float:
    """Standard deviation around the line, robust."""
    centre = median(residuals)
    return _ROBUST_DEVIATION * median(abs(residual - centre) for residual in residuals)
