"""The course of a run, and what follows from it: its level, and what the checks found lately."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from statistics import fmean, median

from isentrope_wire.answers import Alert, HealthLevel, Status
from isentrope_wire.control_answers import (
    Estimate,
    Outcome,
    RewardChange,
)
from isentrope_wire.diagnosis.course import tuning
from isentrope_wire.diagnosis.effect import (
    PROMISED_STEPS,
)
from isentrope_wire.diagnosis.guard import WINDOW as REWARDS
from isentrope_wire.diagnosis.guard import is_learning, lost_reward
from isentrope_wire.diagnosis.health.measured import Measured
from isentrope_wire.diagnosis.slope import slope_of
from isentrope_wire.hold_action import HoldStatus
from isentrope_wire.reports import AlertLevel

_EVENTS = {"gradient", "not_finite"}


def recent_findings(measured: Measured, age: int) -> list[Alert]:
    """What the checks found in the newest fifth of the run, 50 steps at least; the first in time
    first. Where the probe says which of them hold, those do, however old, and no others. A jump, or
    a number that was not finite, is no state that ends."""
    since, newest = counts_since(measured.step or 0, age), dict[str, Alert]()
    for alert in sorted(measured.findings, key=lambda alert: alert.step):
        newest[alert.kind] = alert
    recent = [alert for alert in measured.findings if alert.step >= since]
    if measured.holding is not None:
        recent = [alert for alert in recent if alert.kind in measured.holding | _EVENTS]
        old = [alert for alert in newest.values() if alert.step < since]
        recent += [alert for alert in old if alert.kind in measured.holding]
    return sorted(recent, key=lambda alert: alert.step)


def counts_since(step: int, age: int) -> int:
    """The first step whose findings still count at a step of a run of this age."""
    return step - max(tuning.RECENT_STEPS, age // 5)


def level_with(level: HealthLevel, findings: Sequence[Alert]) -> HealthLevel:
    """The level of the entropy's course, raised to that of what the checks found."""
    levels = {alert.level for alert in findings}
    if AlertLevel.ACT in levels:
        return HealthLevel.ACT
    if levels and level in (HealthLevel.HEALTHY, HealthLevel.NO_DATA):
        return HealthLevel.WATCH
    return level


class RunState:
    """The course of a run, and what follows from it."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.course = course = measured.course
        self.age = 0
        if measured.step is not None:
            self.age = measured.step - min(measured.first_step or 0, measured.step) + 1
        self.early: float | None = None
        self.share_lost: float | None = None
        self.pace: Estimate | None = None
        self.direction = 0
        if course is None:
            return
        level, rate = course.early.level, course.pace
        if level is not None and level > 0:
            self.early = level
        self.share_lost = course.share_lost
        if rate is not None:
            self.pace = rate.scaled(course.entropy)
            self.direction = self.pace.direction

    @cached_property
    def is_near_target(self) -> bool:
        target = self.measured.target
        return target is not None and any(
            abs(level - math.log(target)) <= self._slack for level in self._levels
        )

    @property
    def _levels(self) -> list[float]:
        """log H of each of the last five steps: a state is left after five steps, not one."""
        if self.course is None:
            return []
        return self.course.levels

    @property
    def _slack(self) -> float:
        """How far log H may be from where it is kept: an eighth, or two standard errors of this
        run's own scatter, whichever is larger."""
        assert self.course is not None
        return max(-math.log(tuning.OVER_LEFT), 2 * self.course.level_error)

    @cached_property
    def is_stuck(self) -> bool:
        """Whether a target has been held for long, and not even half of the way to it was made."""
        measured = self.measured
        held = sorted(measured.targets.keys() & measured.entropies.keys())[-tuning.AHEAD :]
        if len(held) < tuning.AHEAD or measured.target is None or self.course is None:
            return False
        before = median(measured.entropies[step] for step in held[: tuning.LEAST_POINTS])
        return abs(self.course.entropy - measured.target) > abs(before - measured.target) / 2

    @cached_property
    def is_level(self) -> bool:
        """Whether not even the ends of the pace's interval change the entropy by a tenth over the
        forecast."""
        course, pace = self.course, None if self.course is None else self.course.pace
        if course is None or pace is None:
            return False
        ends = (course.gone_in(tuning.AHEAD, rate) for rate in (pace.low, pace.high))
        return max(map(abs, ends)) < tuning.MOVES

    @cached_property
    def level(self) -> HealthLevel:
        if self.course is None:
            level = HealthLevel.NO_DATA
        elif self.is_near_target or self._is_kept():
            level = HealthLevel.HOLDING
        else:
            urgency = self.course.urgency
            if self._is_on_its_way():
                urgency = min(urgency, 1)
            if self.measured.said is not None:
                urgency = min(urgency, self.measured.said)
            level = (HealthLevel.HEALTHY, HealthLevel.WATCH, HealthLevel.ACT)[urgency]
        if self.measured.overshoot is not None or self._is_random_again:
            level = HealthLevel.ACT
        if self._needs_a_look and level != HealthLevel.ACT:
            return HealthLevel.WATCH
        return level

    @property
    def _needs_a_look(self) -> bool:
        """Whether something other than the level of the entropy needs attention."""
        measured, course = self.measured, self.course
        return (
            measured.status == Status.SILENT
            or self.newest_not_finite is not None
            or measured.hold_state == HoldStatus.ENDED
            or self.reward_fell is not None
            or self.fell_under_control is not None
            or (course is not None and course.speeds_up and self.direction < 0)
        )

    @cached_property
    def reward_fell(self) -> tuple[float, float] | None:
        """The best mean reward of thirty steps and that of the newest, where the reward is lower
        now for certain."""
        rewards = [value for _, value in sorted(self.measured.rewards.items())]
        earlier, newest = rewards[:-REWARDS], rewards[-REWARDS:]
        starts = range(0, len(earlier), REWARDS // 3)
        windows = [earlier[first : first + REWARDS] for first in starts]
        best = max((window for window in windows if len(window) == REWARDS), key=fmean, default=[])
        if lost_reward(best, newest):
            return (fmean(best), fmean(newest))
        return None

    @property
    def fell_under_control(self) -> RewardChange | None:
        """What the reward lost since the active control was applied, where that is certain."""
        verdict, active = self.measured.verdict, self.measured.active
        if verdict is None or active is None or verdict.version != active.version:
            return None
        if verdict.reward is None or verdict.reward.direction >= 0:
            return None
        return verdict.reward

    @property
    def fell_before_control(self) -> bool:
        """Whether the reward clearly fell already when the active control was applied."""
        active = self.measured.active
        if active is None or active.applied_step is None:
            return False
        applied = active.applied_step
        rewards = [
            value for step, value in sorted(self.measured.rewards.items()) if step < applied
        ][-REWARDS:]
        slope = slope_of(range(len(rewards)), rewards)
        return slope is not None and slope.direction < 0

    @cached_property
    def is_steady(self) -> bool:
        """Whether neither the forecast changes the entropy by a tenth, nor would the mean pace of
        its next twenty steps, if it lasted as long."""
        if self.course is None:
            return False
        forecast, pace = self.course.forecast(), self.course.mean_pace(PROMISED_STEPS)
        if forecast is None or pace is None:
            return True
        now = self.course.entropy
        gone = abs(math.log(max(forecast.entropy[-1], tuning.FLOOR) / now))
        return max(gone, abs(pace.value) * tuning.AHEAD / now) < tuning.MOVES

    @cached_property
    def is_learning(self) -> bool:
        """Whether the entropy falls as learning costs it; not where the reward is lower than it
        was."""
        if self.reward_fell is not None or self.fell_under_control is not None:
            return False
        rewards = [value for _, value in sorted(self.measured.rewards.items())]
        return is_learning(self.share_lost or 0.0, rewards)

    @cached_property
    def _is_random_again(self) -> bool:
        """Whether the entropy is back where it began, and most of the reward is gone: the policy
        has forgotten what it learnt."""
        if self.reward_fell is None or self.share_lost is None:
            return False
        best, now = self.reward_fell
        return self.share_lost < 1 - tuning.OVER_LEFT and now < best / 2

    def _is_kept(self) -> bool:
        """Whether the level is kept under a control that was judged: it did not merely slow the
        change, which does not go on in the forecast, and took no eighth since its first
        steps."""
        verdict, then, lost = self.measured.verdict, self._level_at_control, self.share_lost
        if verdict is None or not verdict.judged_steps or verdict.without is None:
            return False
        if verdict.outcome not in (Outcome.STOPPED, Outcome.TURNED, Outcome.UNDECIDED):
            return False
        if self.course is None or then is None or lost is None:
            return False
        way = math.copysign(1, verdict.without)
        goes = abs(self.course.gone_in(tuning.AHEAD))
        further = self.direction * way > 0 and goes >= tuning.MOVES
        is_kept = any(way * (level - math.log(then)) < self._slack for level in self._levels)
        return not further and way * lost < 0 and is_kept

    def _is_on_its_way(self) -> bool:
        """Whether a hold moves the entropy to its target, or has not had its time, and the entropy
        does not go away from it."""
        target, verdict = self.measured.target, self.measured.verdict
        if target is None or verdict is None or self.course is None:
            return False
        away = self.direction * (self.course.entropy - target) > 0
        return not away and verdict.outcome in (Outcome.APPROACHING, Outcome.WAITING)

    @property
    def _level_at_control(self) -> float | None:
        """The entropy that the active control began with, in nats: the median of the first twenty
        known steps under it."""
        if self.measured.active is None:
            applied = None
        else:
            applied = self.measured.active.applied_step
        if applied is None:
            return None
        under = (
            value for step, value in sorted(self.measured.entropies.items()) if step >= applied
        )
        known = [value for value in under if math.isfinite(value) and value > 0][:PROMISED_STEPS]
        if known:
            return median(known)
        return None

    @cached_property
    def newest_not_finite(self) -> float | None:
        """The newest entropy, where it is NaN or infinite."""
        entropies = self.measured.entropies
        newest = 0.0
        if entropies:
            newest = entropies[max(entropies)]
        if math.isfinite(newest):
            return None
        return newest

    def steps_to_quarter(self) -> int | None:
        """Until a quarter of the early level is left, in one digit; of a held entropy, which goes
        to its target, not ahead."""
        if self.share_lost is None or self.course is None or self.direction >= 0:
            return None
        left = 1 - self.share_lost
        if left <= 0.25:
            return 0
        if self.measured.target is not None:
            return None
        steps = self.course.steps_until(0.25 / left)
        if steps is None:
            return None
        return round_to_one_digit(steps)


def round_to_one_digit(steps: float) -> int:
    return int(float(f"{steps:.0e}"))
