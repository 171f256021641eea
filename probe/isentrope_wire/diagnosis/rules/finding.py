"""What a rule answers, and what several rules ask: a run's newest part, its reward."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist

from isentrope_wire import metrics
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.traces import Trace
from isentrope_wire.reports import AlertLevel

LEAST = 20
"""Values that a check needs before it judges."""
_AHEAD = 25
"""Steps ahead of which a course is continued where a share comes near its limit."""
MOST = 0.5
"""A share that is most of all."""
ALL = 0.95
LATE = 60
"""Steps before which held-out scores, reward parts and a plateau are not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found at a step."""

    message: str
    level: AlertLevel = AlertLevel.WATCH
    cause: str = ""
    """Which of several causes of one kind; empty where it has one."""
    evidence: dict[str, float] = field(default_factory=dict)
    sigmas: float = math.inf
    """Standard errors from where it would be nothing."""

    @property
    def certainty(self) -> float:
        """Probability that it is no scatter, at most 0.999."""
        return min(NormalDist().cdf(min(self.sigmas, 9.0)), 0.999)


def alert_level(is_urgent: bool) -> AlertLevel:
    if is_urgent:
        return AlertLevel.ACT
    return AlertLevel.WATCH


def last_part(measures: Measures, least: int = 30) -> int:
    """Index at which the newest part of the run begins."""
    return measures.age - max(least, round(measures.age / 3))


def expected_level(trace: Trace) -> float:
    """The level some steps ahead, at the pace of the newest steps."""
    span = max(30, 5 * trace.width)
    change = trace.change(trace.at - span)
    if change is None or not (change.rises or change.falls):
        return trace.level
    return trace.level + change.value * _AHEAD / span


def reward_rises(measures: Measures) -> bool:
    """Whether the reward rose over the newest third of the run, beyond its scatter."""
    change = measures.change(metrics.REWARD_MEAN, last_part(measures))
    return change is not None and change.rises


def knows_range(measures: Measures) -> bool:
    """Whether lowest and highest reward are logged, or those of 0 to 1 can be assumed."""
    reward = measures.trace(metrics.REWARD_MEAN)
    if reward is None or measures.trace(metrics.REWARD_MAX) is not None:
        return True
    return 0 <= reward.lowest <= reward.highest <= 1


def reward_range(measures: Measures) -> tuple[float, float]:
    """The lowest and the highest reward: as logged, or of 0 to 1 where all means lie there, or what
    the means were so far."""
    lowest = measures.trace(metrics.REWARD_MIN, LEAST)
    highest = measures.trace(metrics.REWARD_MAX, LEAST)
    if lowest is not None and highest is not None:
        return lowest.lowest, highest.highest
    reward = measures.trace(metrics.REWARD_MEAN)
    if reward is None or (reward.lowest >= 0 and reward.highest <= 1):
        return 0.0, 1.0
    return min(0.0, reward.lowest), reward.highest
