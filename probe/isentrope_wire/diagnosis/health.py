"""The health line of a run: its level, one sentence, the cause of the change, and the control that would stop it.

`diagnose` is a pure function of what was measured over a run's first and last steps. Page, terminal and the list of runs
show its answer. The rules are those of the alerts; but an alert is raised once and stays, while the level is that of now:
a cure ends it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from isentrope_wire.answers import Alert, HealthLevel, Status
from isentrope_wire.control import Control, Scope
from isentrope_wire.control_answers import ControlVersion, State, Verdict, VerdictState
from isentrope_wire.diagnosis.course import (
    ACT_LEFT,
    CEILING,
    FLOOR,
    FOLLOWED,
    LEAST_POINTS,
    MECHANISM,
    NOISES,
    OVER_LEFT,
    PART_OF_THE_WAY,
    QUADRANTS,
    WATCH_LEFT,
    WINDOW,
    Slope,
    largest_pull,
    slope_of,
    standard_error_of_share,
    steps_until,
)
from isentrope_wire.diagnosis.verdict import predicted_effect
from isentrope_wire.metrics import EarlyLevel
from isentrope_wire.numbers import Answer, Number, decimals_of, fixed, percent
from isentrope_wire.reports import error_in_a_line
from isentrope_wire.what_if import WhatIfSums, cheapest_control

MEAN_STEPS = 10
"""Steps whose mean entropy is compared with the early level, once the run is four times as old."""
_LEAST_MEAN_STEPS = 2
_SLIGHT = 0.05
"""A share lost or gained below which a level entropy is near its early level."""
_WORTH = 0.5
"""Of the change: a control that leaves more of it is not suggested."""
_LEAST_MU = 0.1
"""A threshold of so few standard deviations clips nearly all tokens of its side: there is nothing stronger."""
_FAR = 10.0
"""In ages of the run: a halving that is further away is no pace worth a number of steps."""
_SILENT = "No report has come for a while: the process is frozen, ended or cut off."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause(Answer):
    """Which tokens pull the entropy most in the direction it goes, over the last ten steps."""

    quadrant: str
    """The metric of the part of the unit prediction by sign of A and S_c: change/positive_high ..."""
    share: float
    """Its share of what all such parts pull that way, in [0, 1]."""
    mechanism: str | None
    """The metric of the part by mechanism: change/by_kl_penalty ...; null where none is measured or pulls that way."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion(Answer):
    """The control that would stop the change with the fewest tokens clipped, by the what-if sums of the last ten steps."""

    control: dict[str, Any]
    """The document to PUT."""
    stops: bool
    """False: no threshold reaches 0; this one comes nearest."""
    clip_fraction: float
    """Share of the tokens that it clips."""
    clip_fraction_std: float
    """How much that scatters over these steps."""
    change_before: Number | None
    """Predicted change of the entropy under the present control, in nats a step; null while the gain is not known."""
    change_after: Number | None
    """The same under the suggested one."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Answer):
    """How a run is doing. Entropies in nats, slopes in nats a step, shares in [0, 1]; null: not measured."""

    level: HealthLevel
    step: int | None
    entropy: Number | None
    """Mean of the last ten steps; of a run younger than 40 steps, of its last quarter, at least two."""
    early_level: Number | None
    """Median of the first three steps."""
    share_lost: Number | None
    """1 - entropy / early level: negative where it rose."""
    lost_in_steps: int | None
    """Age of the run: its steps so far."""
    slope: Number | None
    """Of the last twenty steps: the median of the slopes between all pairs of them."""
    slope_low: Number | None
    """Of its 90 % interval."""
    slope_high: Number | None
    halving_steps: float | None
    """Steps until half of the entropy is left at this slope, as a share; null unless it clearly falls."""
    steps_to_three_quarters_lost: float | None
    """Steps until a quarter of the early level is left; null unless it clearly falls, 0 where it is."""
    target: Number | None
    """The entropy to hold; null where none is held."""
    message: str
    """One sentence: what the entropy did, and its pace."""
    cause: Cause | None
    """Null where the entropy is held, or neither clearly falls nor rises."""
    suggestion: Suggestion | None
    """Null where none is needed or helps, or the newest control already asks for it."""
    alert: Alert | None
    """The newest collapse or explosion."""
    verdict: Verdict | None
    """Of the newest applied control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a diagnosis is made of."""

    status: Status = Status.RUNNING
    error: str = ""
    """Of a failed run."""
    step: int | None = None
    """The newest."""
    first_step: int | None = None
    early_entropies: Sequence[float] = ()
    """Of the first steps, finite."""
    entropies: Mapping[int, float] = field(default_factory=dict)
    """Step -> entropy of the last WINDOW steps that measured it, at least."""
    parts: Sequence[Mapping[str, float]] = ()
    """`change_parts` of the last CAUSE_STEPS steps."""
    sums: Sequence[WhatIfSums] = ()
    """What-if sums of the last PREDICTION_STEPS steps that have some."""
    gain: float | None = None
    """The newest; None: not known."""
    target: float | None = None
    """The entropy that the newest step held."""
    newest: ControlVersion | None = None
    """The newest control, whatever became of it."""
    active: ControlVersion | None = None
    verdict: Verdict | None = None
    alert: Alert | None = None


def diagnose(measured: Measured) -> Diagnosis:
    course = _Course.of(measured)
    level = _level(course, measured)
    cause = None if course is None or level == HealthLevel.HOLDING else _cause(course, measured)
    falls = course is not None and course.direction < 0
    message = _message(course, level, measured)
    return Diagnosis(
        level=level,
        step=measured.step,
        entropy=None if course is None else course.entropy,
        early_level=None if course is None else course.early,
        share_lost=None if course is None else course.share_lost,
        lost_in_steps=None if course is None else course.age,
        slope=None if course is None or course.slope is None else course.slope.value,
        slope_low=None if course is None or course.slope is None else course.slope.low,
        slope_high=None if course is None or course.slope is None else course.slope.high,
        halving_steps=course.steps_until(course.entropy / 2) if course is not None and falls else None,
        steps_to_three_quarters_lost=(
            course.steps_until(FLOOR * course.early) if course is not None and falls and course.early else None
        ),
        target=measured.target,
        message=message,
        cause=cause,
        suggestion=None if course is None else _suggestion(course, level, measured, message),
        alert=measured.alert,
        verdict=measured.verdict,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """The finite entropies of a run in numbers."""

    entropy: float
    early: float | None
    slope: Slope | None
    error: float
    """Standard error of the share that is lost."""
    age: int
    target: float | None

    @classmethod
    def of(cls, measured: Measured) -> _Course | None:
        points = [(step, value) for step, value in sorted(measured.entropies.items()) if math.isfinite(value)]
        if not points or measured.step is None:
            return None
        points = points[-WINDOW:]
        values = [value for _, value in points]
        age = measured.step - min(measured.first_step or 0, measured.step) + 1
        early = EarlyLevel()
        for value in measured.early_entropies:
            early.add(value)
        newest = values[-min(MEAN_STEPS, max(_LEAST_MEAN_STEPS, age // 4)) :]
        return cls(
            entropy=fmean(newest),
            early=early.level if early.level is not None and early.level > 0 else None,
            slope=slope_of([step for step, _ in points], values),
            error=standard_error_of_share(values, len(newest)),
            age=age,
            target=measured.target,
        )

    @property
    def direction(self) -> int:
        return 0 if self.slope is None else self.slope.direction

    @property
    def share_lost(self) -> float | None:
        return None if self.early is None else 1 - self.entropy / self.early

    @property
    def is_near_target(self) -> bool:
        return self.target is not None and OVER_LEFT <= self.entropy / self.target <= 1 / OVER_LEFT

    @property
    def is_level(self) -> bool:
        """Whether the slope is so near 0 that not even the ends of its interval halve the entropy within the run's age."""
        if self.slope is None:
            return False
        return max(-self.slope.low, self.slope.high) * self.age <= math.log(2) * self.entropy

    def steps_until(self, goal: float) -> float | None:
        """Steps until the entropy is at a goal that lies ahead of it; 0 where it is past it."""
        if self.slope is None or self.entropy <= 0 or self.slope.value == 0:
            return None
        return steps_until(goal, self.entropy, self.slope.value)

    def level(self) -> HealthLevel:
        """By the rules of the alerts, of the state now: what moves no more is at most watched."""
        if self.early is None or self.entropy <= 0:
            return HealthLevel.HEALTHY
        # A held entropy is meant to go to its target: only what lies beyond that is a collapse, or an explosion.
        bases = [self.early] if self.target is None else [self.early, self.target]
        return max(self._level_of(-1, min(bases)), self._level_of(1, max(bases)), key=list(HealthLevel).index)

    def _level_of(self, direction: int, base: float) -> HealthLevel:
        """Of a collapse (-1) or an explosion (1), counted from `base` nats."""
        left = self.entropy / base if direction < 0 else base / self.entropy
        if 1 - left < NOISES * self.error:
            return HealthLevel.HEALTHY
        goal = (FLOOR if direction < 0 else CEILING) * base
        moves = self.direction == direction
        ahead = self.steps_until(goal) if moves else None
        covered = (self.entropy - base) / (goal - base) >= PART_OF_THE_WAY
        soon = ahead is not None and self.age >= WINDOW and covered and ahead <= self.age / 2
        if moves and (left <= ACT_LEFT or soon):
            return HealthLevel.ACT
        return HealthLevel.WATCH if left <= WATCH_LEFT else HealthLevel.HEALTHY


def _level(course: _Course | None, measured: Measured) -> HealthLevel:
    if course is None:
        level = HealthLevel.NO_DATA
    elif course.is_near_target or _is_stopped(course, measured.verdict):
        level = HealthLevel.HOLDING
    else:
        level = course.level()
    lost_contact = measured.status == Status.SILENT or _newest_not_finite(measured) is not None
    return HealthLevel.WATCH if lost_contact and level != HealthLevel.ACT else level


def _is_stopped(course: _Course, verdict: Verdict | None) -> bool:
    """Whether the newest control stopped the change, and the entropy still moves at a quarter of its former pace at most."""
    if verdict is None or verdict.state != VerdictState.HOLDS:
        return False
    before = abs(verdict.slope.before or 0.0)
    return course.direction == 0 or (course.slope is not None and abs(course.slope.value) <= FOLLOWED * before)


def _newest_not_finite(measured: Measured) -> float | None:
    """The newest entropy, where it is NaN or infinite."""
    newest = measured.entropies[max(measured.entropies)] if measured.entropies else 0.0
    return None if math.isfinite(newest) else newest


def _cause(course: _Course, measured: Measured) -> Cause | None:
    pull = largest_pull(measured.parts, course.direction) if course.direction else None
    if pull is None:
        return None
    tokens, _ = QUADRANTS[pull.quadrant]
    message = f"Tokens with {tokens} make {percent(pull.share)} of the pull"
    # The rest is the policy loss, which is no news.
    if pull.mechanism is not None and not pull.mechanism.endswith("policy_loss"):
        message += f"; most of it comes from the {pull.mechanism.removeprefix(MECHANISM).replace('_', ' ')}"
    return Cause(quadrant=pull.quadrant, share=pull.share, mechanism=pull.mechanism, message=message + ".")


def _suggestion(course: _Course, level: HealthLevel, measured: Measured, why: str) -> Suggestion | None:
    if level not in (HealthLevel.WATCH, HealthLevel.ACT) or not course.direction or measured.status.is_over:
        return None
    cheapest = cheapest_control(measured.sums, course.direction)
    if cheapest is None or cheapest.mu_low is None:
        return None
    mu = cheapest.mu_low
    if mu > 0.1:  # as a person types it: never a weaker one
        mu = math.floor(round(mu * 10, 6)) / 10
    control = Control(method=cheapest.method, mu_low=mu, mu_high=mu, scope=cheapest.scope, reason=why)
    weak = None
    if measured.newest is not None and _asks_for(measured.newest, control, measured.verdict):
        weak = measured.newest
        stronger = _stronger(weak, control, measured.verdict)
        if stronger is None:
            return None
        control, mu = stronger, stronger.mu_low or 0.0
    effect = predicted_effect(control, measured.sums, 1.0)
    assert effect is not None
    assert effect.change is not None
    stops = course.direction * effect.change <= 0
    unclipped = sum(one.change_sum for one in measured.sums) / sum(one.tokens for one in measured.sums)
    if not stops and abs(effect.change) > _WORTH * abs(unclipped):
        return None
    before = _change_now(measured)
    after = None if measured.gain is None else measured.gain * effect.change
    change = ""
    if before is not None and after is not None:
        decimals = max(4, decimals_of(before, 1))
        change = f", ΔH {fixed(before, decimals)} → {fixed(after, decimals)} nats a step"
    return Suggestion(
        control=control.to_document(),
        stops=stops,
        clip_fraction=effect.clip_fraction,
        clip_fraction_std=effect.clip_fraction_std,
        change_before=before,
        change_after=after,
        message=f"{control.method.label} µ {mu:.{max(1, decimals_of(mu, 1))}f} "
        + (
            f"would {'stop' if stops else 'slow'} it"
            if weak is None
            else f"is stronger than v{weak.version}, which was too weak"
        )
        + f": clips {percent(effect.clip_fraction, 1)}{change}.",
    )


def _asks_for(newest: ControlVersion, control: Control, verdict: Verdict | None) -> bool:
    """Whether the newest version clips what `control` would, or nearly: thresholds read from ten steps scatter.

    So does a hold, until its verdict is that it does not lead the entropy to its target.
    """
    if newest.state in (State.REJECTED, State.EXPIRED):
        return False
    if newest.hold is not None:
        return verdict is None or verdict.version != newest.version or verdict.state != VerdictState.TOO_WEAK
    if newest.method != control.method:
        return False
    enough = 1.25 * (control.mu_low or 0.0) + 0.1
    clipping = all(mu is not None and mu <= enough for mu in (newest.mu_low, newest.mu_high))
    return clipping and newest.scope in (control.scope, Scope.ALL)


def _stronger(newest: ControlVersion, control: Control, verdict: Verdict | None) -> Control | None:
    """Half the thresholds of a version that should have stopped the change by now, and did not.

    Args:
        newest: clips what `control` would.
        control: would stop the change by the what-if sums, which alone name no threshold that is low enough here.
        verdict: on the newest version; it has its time until there is one.
    """
    too_weak = verdict is not None and verdict.version == newest.version and verdict.state == VerdictState.TOO_WEAK
    mu = min(newest.mu_low or 0.0, newest.mu_high or 0.0, 2 * (control.mu_low or 0.0)) / 2
    if newest.hold is not None or not too_weak or mu < _LEAST_MU:
        return None
    mu = math.floor(round(20 * mu, 6)) / 20
    return Control(method=control.method, mu_low=mu, mu_high=mu, scope=control.scope, reason=control.reason)


def _change_now(measured: Measured) -> float | None:
    """Predicted change under the active control, in nats a step."""
    if measured.gain is None:
        return None
    active = Control() if measured.active is None else measured.active.control
    if active.method.thresholds and active.hold is None:
        effect = predicted_effect(active, measured.sums, measured.gain)
        return None if effect is None else effect.change
    return measured.gain * sum(one.change_sum for one in measured.sums) / sum(one.tokens for one in measured.sums)


def _message(course: _Course | None, level: HealthLevel, measured: Measured) -> str:
    if course is None:
        said = "No step has been reported." if measured.step is None else "No entropy has been reported."
    elif measured.status.is_over:
        said = f"{_change_in_words(course, over='over')}."
    else:
        said = _course_in_words(course, level, measured)
    if measured.status.is_over:
        word = measured.status.capitalize()
        error = error_in_a_line(measured.error).rstrip(".")
        return f"{word}: {error}. {said}" if error else f"{word}: {_lower(said)}"
    not_finite = _newest_not_finite(measured)
    if not_finite is not None:
        said = f"The entropy of step {max(measured.entropies)} is {fixed(not_finite, 0)}."
    return f"{_SILENT} {said}" if measured.status == Status.SILENT else said


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _course_in_words(course: _Course, level: HealthLevel, measured: Measured) -> str:
    if course.slope is None:
        return f"Entropy is {_nats(course.entropy)} nats; its pace is known from the {LEAST_POINTS}th step on."
    if course.target is not None:
        return _held_in_words(course, course.target)
    if level == HealthLevel.HOLDING and measured.verdict is not None and measured.active is not None:
        since = (measured.step or 0) - (measured.active.applied_step or 0)
        before = measured.verdict.slope.before
        past = "" if not before else f"; before the push it {_moves(before, past=True)}"
        return f"Entropy has held at {_nats(course.entropy)} nats for {since} steps{past}."
    lost = course.share_lost
    if lost is None:
        return f"Entropy {_moves(course.slope.value) if course.direction else 'is level'}, at {_nats(course.entropy)} nats."
    so_far = f"Entropy has {_change_in_words(course, over='in').partition(' ')[2]}"
    if course.direction == 0:
        if course.is_level and abs(lost) < _SLIGHT:
            return f"Entropy is level at {_nats(course.entropy)} nats{_from_early(lost)}."
        trend = "is level" if course.is_level else "has no clear trend"
        return f"{so_far} and {trend} over the last {WINDOW}, at {_nats(course.entropy)} nats."
    if course.direction * lost > 0:  # it comes back
        return f"{so_far} and {_moves(course.slope.value)} now."
    goal = course.steps_until(course.entropy / 2 if course.direction < 0 else course.entropy * 2)
    if goal is None or goal > _FAR * course.age:
        return f"{so_far} and {_moves(course.slope.value)}."
    word = "halves" if course.direction < 0 else "doubles"
    again = "again in {}" if abs(lost) >= 1 - ACT_LEFT - _SLIGHT else "in {} more"
    return f"{so_far} and {word} {again.format(_steps(goal))}."


def _held_in_words(course: _Course, target: float) -> str:
    assert course.slope is not None
    off = course.entropy / target - 1
    target_text = f"its target of {_nats(target)} nats"
    where = (
        f"{percent(abs(off))} {'above' if off > 0 else 'below'} {target_text}"
        if abs(off) >= 0.005
        else f"at {target_text}"
    )
    if course.is_near_target:
        return f"Entropy is held at {_nats(course.entropy)} nats, {where}."
    if course.direction * off < 0:
        return f"Entropy is {where} and reaches it in {_steps(course.steps_until(target) or 0.0)} steps."
    return f"Entropy is {where} and {_moves(course.slope.value) if course.direction else 'level'}."


def _change_in_words(course: _Course, *, over: str) -> str:
    """`Entropy lost 52 % in 41 steps`."""
    lost = course.share_lost
    if lost is None:
        return f"Entropy was {_nats(course.entropy)} nats {over} {course.age} steps"
    return f"Entropy {'lost' if lost >= 0 else 'gained'} {percent(abs(lost))} {over} {course.age} steps"


def _from_early(lost: float) -> str:
    if abs(lost) < 0.005:
        return ", as at the start"
    return f", {percent(abs(lost))} {'below' if lost > 0 else 'above'} its early level"


def _moves(slope: float, *, past: bool = False) -> str:
    word = ("fell" if past else "falls") if slope < 0 else ("rose" if past else "rises")
    return f"{word} by {fixed(abs(slope), max(4, decimals_of(slope, 1)))} nats a step"


def _nats(entropy: float) -> str:
    return fixed(entropy, max(3, decimals_of(entropy, 2)) if abs(entropy) < 10 else 1)


def _steps(count: float) -> str:
    """A number of steps to come, no more precise than it can be known."""
    if count < 100:
        return f"{max(1, round(count))}"
    size = 10 ** (math.floor(math.log10(count)) - 1)
    return f"{round(count / size) * size}"
