"""Rule `zero_advantage`: groups with one reward, and why theirs is one."""

from __future__ import annotations

import math

from isentrope_wire import metrics
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.rules.finding import (
    ALL,
    LEAST,
    MOST,
    Finding,
    alert_level,
    expected_level,
    knows_range,
    reward_range,
    reward_rises,
)
from isentrope_wire.numbers import percent

_LEARNT = 0.8
"""Share of the groups with one reward that are all right, from which on they are too easy."""
_NEAR_END = 0.2
"""Part of the reward's range from its end in which a mean tells that most groups are there."""
_UNNAMED = frozenset({"", "same_score"})
"""Causes that do not say where the groups are in the reward's range."""
_REASONS = {
    "too_easy": "all completions are right: the problems are too easy",
    "too_hard": "all completions are wrong: the problems are too hard",
    "cut": "all completions are wrong, for most are cut at the length limit",
    "lost": "all completions are wrong, as they were not at first: the policy is lost",
    "constant": "every completion is paid the same: the reward tells nothing apart",
    "identical": "the completions of a group are the same",
    "same_score": "all completions of a group have the same reward, neither the best nor the worst",
}


def zero_advantage(measures: Measures) -> Finding | None:
    """Most groups have one reward, so that nothing is learnt from them."""
    share, sigmas = taught_nothing(measures)
    if share is None:
        return None
    cause = cause_of_one_reward(measures)
    is_low = cause in {"too_hard", "lost", "cut"} or (cause in _UNNAMED and _is_low(measures))
    if is_low and share < ALL and reward_rises(measures):
        return None
    message = f"{percent(share)} of the groups teach nothing"
    if cause:
        message += f", mostly because {_REASONS[cause]}."
    else:
        message += ": all completions of such a group have the same reward."
    evidence = {"share": share}
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    if zero is not None:
        evidence["early_share"] = zero.start
    effective = measures.trace(metrics.TOKEN_EFFECTIVE_FRACTION, LEAST)
    if effective is not None:
        evidence["tokens_wasted"] = 1 - effective.level
        message += f" {percent(1 - effective.level)} of the generated tokens taught nothing."
    level = alert_level(share > ALL and cause != "too_easy")
    return Finding(message=message, level=level, cause=cause, evidence=evidence, sigmas=sigmas)


def taught_nothing(measures: Measures) -> tuple[float | None, float]:
    """Share of the groups that taught nothing, where that is most of them or soon will be, and how
    far that is from the early share; None where it is less."""
    for name in (metrics.ADVANTAGE_ZERO_GROUP_FRACTION, metrics.ADVANTAGE_ZERO_FRACTION):
        zero = measures.trace(name, LEAST)
        if zero is None:
            continue
        taught, early = 1 - zero.level, 1 - zero.start
        grew = zero.level > 0.35 and zero.level > 2 * zero.start and expected_level(zero) > MOST
        # Most of them from the start on are no harm in a run that learns from the rest.
        is_most = zero.level > MOST and measures.trace(metrics.REWARD_MEAN) is not None
        if is_most or taught < early / 2 or grew:
            return zero.level, zero.sigmas or math.inf
    right = measures.trace(metrics.GROUP_ALL_RIGHT, LEAST)
    wrong = measures.trace(metrics.GROUP_ALL_WRONG, LEAST)
    if right is not None and wrong is not None and right.level + wrong.level > MOST:
        return right.level + wrong.level, max(right.sigmas, wrong.sigmas)
    # The spread over all prompts falls less than that within groups.
    parts = {metrics.REWARD_GROUP_STD: 0.5, metrics.ADVANTAGE_STD: 0.5, metrics.REWARD_STD: 0.25}
    for name, part in parts.items():
        spread = measures.trace(name, LEAST)
        if spread is not None and spread.level == spread.highest == 0:
            return 1.0, math.inf
        if spread is not None and 0 <= spread.level < part * spread.start:
            return 1 - spread.level / spread.start, spread.sigmas
    return None, 0.0


def cause_of_one_reward(measures: Measures) -> str:
    cause = _cause_by_place(measures)
    if cause != "too_hard":
        return cause
    if _was_better(measures):
        return "lost"
    cut = measures.trace(metrics.COMPLETION_TRUNCATED)
    if cut is not None and cut.level > MOST:
        return "cut"
    return "too_hard"


def _was_better(measures: Measures) -> bool:
    """Whether the first steps were paid three times what is paid now, and their groups taught."""
    reward = measures.trace(metrics.REWARD_MEAN)
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    if reward is None or (zero is not None and zero.first > 0.8 * zero.level):
        return False
    low = reward_range(measures)[0]
    return reward.first - low > max(3 * (reward.level - low), 2 * reward.level_error)


def _cause_by_place(measures: Measures) -> str:
    identical = measures.trace(metrics.GROUP_IDENTICAL)
    zero = measures.trace(metrics.ADVANTAGE_ZERO_GROUP_FRACTION)
    is_one_answer = zero is not None and zero.level > ALL
    reward = measures.trace(metrics.REWARD_MEAN, LEAST)
    if reward is not None and reward.is_constant and (zero is None or is_one_answer):
        low, high = reward_range(measures)
        if low < reward.level < high or not knows_range(measures):
            return "constant"
    right = measures.trace(metrics.GROUP_ALL_RIGHT)
    wrong = measures.trace(metrics.GROUP_ALL_WRONG)
    if identical is not None and zero is not None and identical.level > MOST * zero.level:
        # A policy that has learnt a problem by heart answers it in one way.
        if right is None or right.level < _LEARNT * zero.level:
            return "identical"
        return "too_easy"
    if right is not None and wrong is not None:
        dead = right.level + wrong.level
        if zero is not None:
            dead = max(dead, zero.level)
        if max(right.level, wrong.level) < MOST * dead:
            return "same_score"
        return _easy_or_hard(right.level > wrong.level)
    place = _place_of_reward(measures)
    if place is None:
        return ""
    spread = measures.trace(metrics.REWARD_STD)
    has_no_spread = spread is not None and spread.level < 0.2 * spread.start
    if _NEAR_END < place < 1 - _NEAR_END:
        if identical is None and (has_no_spread or is_one_answer):
            return "identical"
        return ""
    return _easy_or_hard(place > MOST)


def _easy_or_hard(is_easy: bool) -> str:
    if is_easy:
        return "too_easy"
    return "too_hard"


def _place_of_reward(measures: Measures) -> float | None:
    """Where in its range the mean reward is, 0: at the lowest; None where that is not known."""
    reward = measures.trace(metrics.REWARD_MEAN)
    low, high = reward_range(measures)
    if reward is None or high <= low:
        return None
    return (reward.level - low) / (high - low)


def _is_low(measures: Measures) -> bool:
    """Whether the groups with one reward are rather in the lower half of its range."""
    right = measures.trace(metrics.GROUP_ALL_RIGHT)
    wrong = measures.trace(metrics.GROUP_ALL_WRONG)
    if right is not None and wrong is not None:
        return wrong.level >= right.level
    place = _place_of_reward(measures)
    return place is None or place <= MOST
