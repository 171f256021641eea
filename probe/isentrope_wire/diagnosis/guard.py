"""Whether a control does harm: the reward falls under it, or the entropy passes its early level and
goes on rising.

Pure Python; the alerts of the probe ask it once a step. A hold has a guard of its own in the probe,
which asks `lost_reward` too."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, variance
from typing import Any

from isentrope_wire.control import Control
from isentrope_wire.control_answers import Estimate, RewardChange
from isentrope_wire.diagnosis.course import ACT_LEFT, OVER_LEFT, Course
from isentrope_wire.diagnosis.slope import autocorrelation, slope_of, slopes_of_pairs

WINDOW = 30
"""Newest rewards that are compared with those before the control acted."""
BEFORE = 60
"""Newest rewards before the control: of thirty alone mean and trend were so uncertain that the fall
they promised passed for harm."""
LEAST = 10
"""Rewards that a comparison needs on each side."""
SIGMAS = 4.0
"""Standard errors that the reward must have fallen by: the test is repeated each step."""
LARGEST_AUTOCORRELATION = 0.9
"""Counted with: with more no loss would ever be certain."""
PROBABLE_ERROR = 0.67
"""Standard errors that half of all slopes are off by at most: a smaller fall before the control is
as likely noise as not."""
MOST_LOST = 0.75
"""Share of the early entropy that a run may lose while it learns."""
_WIDER = 1.5
"""Times a 90 % interval: an interval of 98.6 %."""
LEAST_SHARE = 0.1
"""Of the reward before, that it must have fallen by."""


def lost_reward(before: Sequence[float], since: Sequence[float], steps: int = 0) -> float:
    """How much lower the newest rewards are than those before a control, where that is certain;
    else 0. `steps`: how many it has acted for; 0 counts every fall.

    The last BEFORE and WINDOW are compared, by their means: a slow loss shows there, too, which a
    slope within the window would miss. A fall that the reward had before goes on without the
    control, and is not counted where it is more than its probable error; how steep it was is known
    with an error, by which it may be more."""
    earlier, newest = before[-BEFORE:], since[-WINDOW:]
    if min(len(earlier), len(newest)) < LEAST:
        return 0.0
    lost, least = fmean(earlier) - fmean(newest), LEAST_SHARE * abs(fmean(earlier))
    if lost <= least:
        return 0.0
    error_before = _error_of_mean(earlier)
    error = math.hypot(error_before, _error_of_mean(newest))
    fall = 0.0
    if steps and lost > SIGMAS * error:
        fall = -_slope(earlier)
    fall_error = error_before * math.sqrt(12 / (len(earlier) ** 2 - 1))
    if fall > PROBABLE_ERROR * fall_error:
        steps_between = steps + (len(earlier) - len(newest)) / 2
        lost -= fall * steps_between
        error = math.hypot(error, min(fall, fall_error) * steps_between)
    if lost > max(SIGMAS * error, least):
        return lost
    return 0.0


def reward_change(before: Sequence[float], since: Sequence[float]) -> RewardChange | None:
    """What the reward did since a control: the newest WINDOW rewards before it and under it, by
    step, are compared by their means.

    Where they rose or fell before it, the newest LEAST stand for the level at which it began. It
    rose or fell where these differ by SIGMAS standard errors, and the newest do not go back. None
    of fewer than LEAST on either side."""
    earlier, newest = before[-WINDOW:], since[-WINDOW:]
    if min(len(earlier), len(newest)) < LEAST:
        return None
    if _way(earlier):
        earlier = earlier[-LEAST:]
    start, now = fmean(earlier), fmean(newest)
    error = math.hypot(_error_of_mean(earlier), _error_of_mean(newest))
    direction = 0
    if abs(now - start) > SIGMAS * error:
        direction = 1 if now > start else -1
    if _way(newest) * direction < 0:
        direction = 0
    return RewardChange(
        before=start,
        since=now,
        steps_before=len(earlier),
        steps=len(newest),
        direction=direction,
    )


def _slope(rewards: Sequence[float]) -> float:
    return median(slopes_of_pairs([*enumerate(rewards)]))


def is_learning(lost: float, rewards: Sequence[float]) -> bool:
    """Whether the entropy falls as it does in nearly every run that learns, so that a control would
    slow the learning: the newest WINDOW rewards, by step, rise for certain, and it has lost less
    than MOST_LOST of its early level (`lost`: that share); or the newest BEFORE do, the WINDOW ones
    fall by no slope, and it has lost less than half."""
    counts = [WINDOW]
    if lost < 1 - ACT_LEFT:
        counts.append(BEFORE)
    return 0 < lost < MOST_LOST and any(still_rises(rewards, count) for count in counts)


def still_rises(rewards: Sequence[float], count: int = WINDOW) -> bool:
    """Whether the newest so many rewards, by step, rise for certain, and the newest half of WINDOW
    do not fall again; not of fewer."""
    newest = rewards[-WINDOW // 2 :]
    if len(newest) < WINDOW // 2:
        return False
    return _way(rewards[-count:]) > 0 and _slope(newest) > 0


def _way(values: Sequence[float]) -> int:
    """1 where they rise for certain, -1 where they fall: a slope is asked for at each step, so that
    a 90 % interval would find one in twenty level courses."""
    slope = slope_of(range(len(values)), values)
    if slope is None:
        return 0
    estimate = Estimate(
        value=slope.value,
        low=slope.value - _WIDER * (slope.value - slope.low),
        high=slope.value + _WIDER * (slope.high - slope.value),
    )
    return estimate.direction


def _error_of_mean(rewards: Sequence[float]) -> float:
    """Standard error of the mean around the rewards' own line, widened for rewards that resemble
    the one before. Few values show too little of that, by (1 + 4 r) / n (Marriott and Pope,
    1954)."""
    slope = _slope(rewards)
    residuals = [reward - slope * step for step, reward in enumerate(rewards)]
    shown = autocorrelation(residuals, at_most=LARGEST_AUTOCORRELATION)
    alike = min(shown + (1 + 4 * shown) / len(residuals), LARGEST_AUTOCORRELATION)
    return math.sqrt(variance(residuals) / len(residuals) * (1 + alike) / (1 - alike))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overshoot:
    """What a control does that it must not do."""

    version: int
    steps: int
    """Under it so far."""
    entropy_change: float
    """Since it was applied, in nats."""
    reward_lost: float
    """0: not certain, or none."""
    before: Control
    """The control that it replaced."""

    @property
    def message(self) -> str:
        reward = ""
        if self.reward_lost:
            reward = f", reward −{self.reward_lost:.2g}"
        return (
            f"Version {self.version} overshoots: entropy {self.entropy_change:+.2g} nats{reward} in"
            f" {self.steps} steps. Revert it."
        ).replace("-", "−")


@dataclass(slots=True)
class ControlGuard:
    """Watches the control that acts; call `step` with each step, in order. Its fields are JSON
    values, for a checkpoint."""

    version: int = 0
    steps: int = 0
    """Under this version."""
    document: dict[str, Any] | None = None
    """Of the control that acts; None: the run began without one."""
    before: dict[str, Any] | None = None
    """Of the control that it replaced."""
    level: float = 0.0
    """log H when it was applied."""
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=BEFORE))
    """Of the steps before it."""
    since: deque[float] = field(default_factory=lambda: deque(maxlen=BEFORE))
    """Of the steps under it."""

    def step(
        self, version: int, control: Control | None, reward: float | None, course: Course
    ) -> Overshoot | None:
        """Add a step that ran under a control, with its mean reward (None: not known) and the
        course that has the step. None where it does no harm, and under a hold."""
        if version != self.version:
            self.version, self.steps, self.level = version, 0, course.level
            self.before = self.document
            if control is None:
                self.document = None
            else:
                self.document = control.to_document()
            self.rewards.extend(self.since)
            self.since.clear()
        self.steps += 1
        if reward is not None and math.isfinite(reward):
            self.since.append(reward)
        if control is None or control.hold is not None or version == 0:
            return None
        lost = lost_reward(list(self.rewards), list(self.since), self.steps)
        if not lost and not self._passes_early_level(course):
            return None
        if self.before is None:
            before = Control()
        else:
            before = Control.from_document(self.before)
        return Overshoot(
            version=version,
            steps=self.steps,
            entropy_change=course.entropy - math.exp(self.level),
            reward_lost=lost,
            before=before,
        )

    @property
    def newest_rewards(self) -> list[float]:
        """The newest rewards that are kept, by step."""
        return [*self.rewards, *self.since]

    def _passes_early_level(self, course: Course) -> bool:
        """Whether it lifted the entropy from below the early level to above it, by an eighth at
        least, and goes on: a level entropy crosses its early level by noise alone."""
        early, pace = course.early.level, course.pace
        if early is None or early <= 0 or pace is None:
            return False
        was_below = self.level < math.log(early)
        is_lifted = course.level - self.level > -math.log(OVER_LEFT)
        return was_below and is_lifted and course.level > math.log(early) and pace.direction > 0
