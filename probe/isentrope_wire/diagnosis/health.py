"""The diagnosis of a run, and the preview of a control: level, sentence, cause, forecast,
suggestion.

`diagnose` and `preview` are pure functions of what was measured over a run's first and last steps.
Page, terminal, list of runs, assistants and the preview of a control show their numbers and
sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from isentrope_wire.answers import Alert, HealthLevel, Status
from isentrope_wire.control import LARGEST_ENTROPY, Control, Hold, HoldSide, Scope
from isentrope_wire.control_answers import (
    ControlVersion,
    EffectCurves,
    EntropyForecast,
    Estimate,
    ForecastScore,
    Outcome,
    PredictedEffect,
    State,
    Verdict,
)
from isentrope_wire.diagnosis.course import (
    AHEAD,
    LEAST_POINTS,
    MOVES,
    OVER_LEFT,
    WATCH_LEFT,
    Course,
)
from isentrope_wire.diagnosis.effect import (
    PROMISED_STEPS,
    LastSteps,
    dead_parts,
    effect_curves,
    expected_action,
    predicted_effect,
    stopping_control,
    why_unknown,
)
from isentrope_wire.diagnosis.guard import WINDOW as REWARDS
from isentrope_wire.diagnosis.guard import lost_reward
from isentrope_wire.diagnosis.pull import Cause, cause_of
from isentrope_wire.diagnosis.slope import slope_of
from isentrope_wire.diagnosis.trust import PredictionTrust, prediction_trust
from isentrope_wire.hold_action import Action, HoldStatus, control_under
from isentrope_wire.methods import Method
from isentrope_wire.numbers import (
    Answer,
    Number,
    decimals_of,
    fixed,
    is_usable,
    percent,
    round_to_step,
)
from isentrope_wire.numbers import nats as _nats
from isentrope_wire.reports import ALERT_KINDS, AlertLevel, error_in_a_line
from isentrope_wire.what_if import knows

_RECENT_STEPS = 50
"""Least number of newest steps whose findings count for the health line."""
_SLIGHT = 0.05
"""A share lost or gained below which a level entropy is near its early level."""
_SILENT = "No report has come for a while: the process is frozen, ended or cut off."
_HOLD_SETTLES = 10.0
"""Steps after which a hold that acts has left 1 / e of the way to its target, in recorded runs."""
_HOLD_WORDS: Mapping[HoldStatus, str] = {
    HoldStatus.HOLDING: "would hold it",
    HoldStatus.SLEWING: "would move its threshold there",
    HoldStatus.LIMIT: "would clip as hard as µ min or the share limit allows, which is too little",
    HoldStatus.APPROACHING: "would clip nothing: the entropy moves to the target by itself",
    HoldStatus.RESTING: "would clip nothing: none is needed",
    HoldStatus.SIDE: "would clip nothing: only the side that is not allowed would help",
    HoldStatus.FALLBACK: "would wait",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion(Answer):
    """The control that would stop the change with the fewest tokens clipped, or hold the entropy
    where it is."""

    control: dict[str, Any]
    """The document to PUT."""
    stops: bool
    """Whether the forecast under it does not go on that way. False: this one comes nearest."""
    clip_fraction: float | None
    """Share of the tokens that it clips; null of a hold."""
    pace: Estimate | None
    """Mean pace over the next twenty steps under it, in nats a step; null while the gain is not
    known, and of a hold."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Answer):
    """How a run is doing. Entropies in nats, paces in nats a step, shares in [0, 1]; null: not
    measured."""

    level: HealthLevel
    step: int | None
    entropy: Number | None
    """Median of the last five steps."""
    early_level: Number | None
    """Median of the first three steps."""
    share_lost: Number | None
    """1 - entropy / early level: negative where it rose."""
    lost_in_steps: int | None
    """Age of the run: its steps so far."""
    pace: Estimate | None
    """How fast the entropy moves now, with a 90 % interval."""
    mean_pace: Estimate | None
    """Mean over the next twenty steps by the forecast: what a preview calls `unchanged`."""
    forecast: EntropyForecast | None
    """The next fifty steps, if the control stays as it is, a held entropy up to its target; null
    before the tenth step and of a run that is over."""
    forecast_score: ForecastScore | None
    """How far the run's earlier forecasts were off; null before one of twenty steps could be
    compared."""
    prediction_trust: PredictionTrust | None
    """What the prediction of a step is good for now, by the run's own past; null before thirty
    steps could be compared."""
    steps_to_three_quarters_lost: int | None
    """Steps until a quarter of the early level is left, in one digit; null where the forecast does
    not come to that, 0 where it is."""
    target: Number | None
    """The entropy to hold; null where none is held."""
    message: str
    """One sentence: what the entropy did, and where it is going."""
    cause: Cause | None
    """Null where the entropy is held, or neither clearly falls nor rises."""
    suggestion: Suggestion | None
    """Null where none is needed or helps, or the newest control already asks for it."""
    alert: Alert | None
    """The newest collapse or explosion."""
    verdict: Verdict | None
    """Verdict on the newest applied control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(Answer):
    """What a control would do if it were pushed now."""

    entropy: Number | None
    """Now: the median of the last five steps, in nats."""
    forecast: EntropyForecast | None
    """The next fifty steps under it; null before the tenth step, and where its effect is not
    known."""
    clip_fraction: float | None
    """Share of the tokens that it clips; null of methods that the steps' sums do not answer for."""
    clip_fraction_std: float | None
    """How much it scatters over the last ten steps."""
    change: Number | None
    """What it adds to the change of each step, in nats, against the active control; null while the
    gain is not known."""
    pace: Estimate | None
    """Mean pace over the next twenty steps under it, in nats a step."""
    unchanged: Estimate | None
    """The same if the control stays as it is."""
    curves: EffectCurves | None
    """Both thresholds over their range; null unless asked for, and of methods without
    thresholds."""
    message: str
    """What it would do, in a sentence."""
    warnings: list[str]
    """What would have no effect, or less than its number; a push is possible all the same."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a diagnosis is made of."""

    status: Status = Status.RUNNING
    error: str = ""
    """Why a failed run failed."""
    step: int | None = None
    """The newest."""
    first_step: int | None = None
    early_entropies: Sequence[float] = ()
    """Mean entropies of the first steps, finite."""
    entropies: Mapping[int, float] = field(default_factory=dict)
    """Step -> entropy of the last steps that measured it, STEPS_READ at most."""
    observed: Mapping[int, float] = field(default_factory=dict)
    """Step -> observed change of the entropy of its own tokens, finite."""
    predicted: Mapping[int, float] = field(default_factory=dict)
    """Step -> calibrated prediction of its change, made before it was observed; finite."""
    by_control: Mapping[int, float] = field(default_factory=dict)
    """Step -> part of the predicted change that the active control made, in nats, finite."""
    explained: Mapping[int, float] = field(default_factory=dict)
    """Step -> R² of the predictions so far, finite."""
    targets: Mapping[int, float] = field(default_factory=dict)
    """Step -> the entropy that it held, finite."""
    is_acting: bool = False
    """Whether a hold clips in the newest step."""
    rewards: Mapping[int, float] = field(default_factory=dict)
    """Step -> mean reward, finite."""
    applied_steps: Sequence[int] = ()
    """The steps from which another control was active."""
    parts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Step -> its `change_parts`, of the last CAUSE_STEPS steps."""
    last: LastSteps = field(default_factory=LastSteps)
    newest: ControlVersion | None = None
    """The newest control, in any state."""
    active: ControlVersion | None = None
    verdict: Verdict | None = None
    alert: Alert | None = None
    findings: Sequence[Alert] = ()
    """What the checks found: the newest alerts of their kinds."""
    overshoot: Alert | None = None
    """That the active control does harm."""
    hold_state: str = ""
    """What a hold did in the newest step, `HoldStatus`; empty: there is none."""
    hold_why: str = ""
    """Why it does not act."""
    said: int | None = None
    """Urgency of the course as the probe says it, where the course's own is higher."""

    @cached_property
    def course(self) -> Course | None:
        """None where no finite entropy was reported."""
        finite = [
            (step, value) for step, value in sorted(self.entropies.items()) if is_usable(value)
        ]
        if not finite or self.step is None:
            return None
        first = min(self.first_step or 0, finite[0][0])
        course = Course(age=max(0, finite[0][0] - first))
        # Where the first steps are among those that are added, the course finds its early level by
        # itself.
        for value in self.early_entropies if course.age else ():
            course.early.add(value)
        applied = sorted(self.applied_steps, reverse=True)
        for step, value in finite:
            is_new = bool(applied) and applied[-1] <= step
            while applied and applied[-1] <= step:
                applied.pop()
            course.add(
                step,
                value,
                observed=self.observed.get(step),
                target=self.targets.get(step),
                is_new_control=is_new and course.steps > 0,
                by_control=self.by_control.get(step),
                explained=self.explained.get(step),
            )
        return course

    @property
    def target(self) -> float | None:
        """The entropy that the newest step held."""
        return None if self.step is None else self.targets.get(self.step)


def diagnose(measured: Measured) -> Diagnosis:
    """Level, sentence, cause, forecast and suggestion of a run as it is now."""
    state = _State(measured)
    course = state.course
    findings = recent_findings(measured, state.age)
    message = _message(state) + findings_in_words(findings)
    suggestion, why_none = _suggestion(state, message)
    is_over = measured.status.is_over
    forecast, mean_pace = (None, None) if is_over else _unchanged(state)
    return Diagnosis(
        level=level_with(state.level, findings),
        step=measured.step,
        entropy=None if course is None else course.entropy,
        early_level=state.early,
        share_lost=state.share_lost,
        lost_in_steps=None if course is None else state.age,
        pace=state.pace,
        mean_pace=mean_pace,
        forecast=forecast,
        forecast_score=None if course is None else course.score,
        prediction_trust=prediction_trust(
            measured.predicted, measured.observed, of_unseen=measured.last.of_unseen
        ),
        steps_to_three_quarters_lost=None if is_over else state.steps_to_quarter(),
        target=measured.target,
        message=f"{message} {why_none}".rstrip(),
        cause=(
            None
            if state.level == HealthLevel.HOLDING
            else cause_of(measured.parts, state.direction)
        ),
        suggestion=suggestion,
        alert=measured.alert,
        verdict=measured.verdict,
    )


def recent_findings(measured: Measured, age: int) -> list[Alert]:
    """What the checks found in the newest fifth of the run, 50 steps at least; the first in time
    first. An alert is never withdrawn, so older ones say nothing of now."""
    since = counts_since(measured.step or 0, age)
    recent = [alert for alert in measured.findings if alert.step >= since]
    return sorted(recent, key=lambda alert: alert.step)


def counts_since(step: int, age: int) -> int:
    """The first step whose findings still count at a step of a run of this age."""
    return step - max(_RECENT_STEPS, age // 5)


def findings_in_words(findings: Sequence[Alert]) -> str:
    """The first in time, which the others may follow from, and the most urgent where it is
    another."""
    if not findings:
        return ""
    first = findings[0]
    words = f" First found, at step {first.step}: {_named(first)}"
    urgent = next((alert for alert in findings if alert.level == AlertLevel.ACT), first)
    if urgent.kind != first.kind:
        words += f"; most urgent, at step {urgent.step}: {_named(urgent)}"
    return f"{words}."


def _named(alert: Alert) -> str:
    title = ALERT_KINDS.get(alert.kind, alert.kind)
    if title[:2].isupper():
        return title
    return title[:1].lower() + title[1:]


def level_with(level: HealthLevel, findings: Sequence[Alert]) -> HealthLevel:
    """The level of the entropy's course, raised to that of what the checks found."""
    levels = {alert.level for alert in findings}
    if AlertLevel.ACT in levels:
        return HealthLevel.ACT
    if levels and level in (HealthLevel.HEALTHY, HealthLevel.NO_DATA):
        return HealthLevel.WATCH
    return level


def preview(measured: Measured, control: Control, *, curves: bool = False) -> Preview:
    """What a control would do if it were pushed now; with `curves` also its thresholds over their
    range."""
    state = _State(measured)
    course, last = state.course, measured.last
    warnings = (
        dead_parts(control, last)
        if control.method != Method.NONE or control.hold is not None
        else []
    )
    if control.held is not None:
        effect, forecast, message = _preview_hold(state, control)
    else:
        effect = predicted_effect(control, last, course)
        forecast = None
        if course is not None and effect is not None and effect.change is not None:
            forecast = course.forecast(effect.change, effect.change_error or 0.0)
        elif (
            course is not None
            and measured.active is not None
            and control == measured.active.control
        ):
            forecast = course.forecast()
        message = _effect_in_words(state, control, effect)
    return Preview(
        entropy=None if course is None else course.entropy,
        forecast=forecast,
        clip_fraction=None if effect is None else effect.clip_fraction,
        clip_fraction_std=None if effect is None else effect.clip_fraction_std,
        change=None if effect is None else effect.change,
        pace=None if effect is None else effect.pace,
        unchanged=_unchanged(state)[1],
        curves=effect_curves(control, last, course) if curves else None,
        message=message,
        warnings=warnings,
    )


def _unchanged(state: _State) -> tuple[EntropyForecast | None, Estimate | None]:
    """The next steps if the control stays as it is, and their mean pace; a held entropy goes to its
    target."""
    course, target = state.course, state.measured.target
    if course is None:
        return None, None
    forecast = course.forecast()
    if forecast is None or target is None:
        return forecast, course.mean_pace(PROMISED_STEPS)
    if state.measured.is_acting and not state.is_stuck:
        forecast = _moved(forecast, _approach(course.entropy, [target] * AHEAD))
    else:
        forecast = _stay_at_target(forecast, target, is_there=state.is_near_target)
    return forecast, _pace_of(forecast, course.entropy)


def _pace_of(forecast: EntropyForecast, entropy: float) -> Estimate:
    """Its mean over the next steps, from this entropy on."""
    value, low, high = (
        (line[PROMISED_STEPS - 1] - entropy) / PROMISED_STEPS
        for line in (forecast.entropy, forecast.low, forecast.high)
    )
    return Estimate(value=value, low=low, high=high)


def _decision(state: _State, control: Control) -> Action | None:
    """What the probe would decide to hold the entropy; None where nothing is known."""
    measured, course = state.measured, state.course
    if course is None or not measured.last.sums or measured.step is None:
        return None
    highest = max([*filter(is_usable, measured.entropies.values()), state.early or 0.0])
    return expected_action(
        control, measured.last, measured.step, course.entropy, state.early, highest
    )


def _preview_hold(
    state: _State, control: Control
) -> tuple[PredictedEffect | None, EntropyForecast | None, str]:
    """What the thresholds do that the probe would choose, the forecast up to the target, and the
    decision in words."""
    measured, course = state.measured, state.course
    action = _decision(state, control)
    if course is None or action is None:
        return None, None, "The hold would wait: no step has what-if sums."
    acts = action.mu is not None or action.bonus is not None
    is_moved = acts and action.status == HoldStatus.APPROACHING
    has_curve = control.held is not None and control.held.target_curve is not None
    words = f"The hold {'would move the entropy there' if is_moved else _HOLD_WORDS[action.status]}"
    if action.target is not None:
        words += f" (target {_nats(action.target)} nats, now {_nats(course.entropy)})"
    under = Control()
    if acts:
        under = replace(control_under(action, control), hold=None)
    effect = predicted_effect(under, measured.last, course)
    if action.mu is not None and effect is not None:
        words += f": µ {_mu(action.mu)}, {action.scope}, clips {percent(effect.clip_fraction, 1)}"
    forecast = None
    if effect is not None and effect.change is not None:
        forecast = course.forecast(effect.change, effect.change_error or 0.0, is_kept=acts)
    if effect is not None and forecast is not None:
        if action.target is not None and (
            action.status in (HoldStatus.HOLDING, HoldStatus.SLEWING) or (is_moved and has_curve)
        ):
            targets = [action.target] * AHEAD
            if control.held is not None and has_curve:
                curve = [control.held.target_at(step, state.early) for step in forecast.step]
                targets = [target or action.target for target in curve]
            forecast = _moved(forecast, _approach(course.entropy, targets))
        elif action.target is not None and action.status != HoldStatus.FALLBACK:
            forecast = _stay_at_target(forecast, action.target, is_there=False)
        effect = effect if not acts else replace(effect, pace=_pace_of(forecast, course.entropy))
    if (
        action.status == HoldStatus.APPROACHING
        and not has_curve
        and action.target is not None
        and forecast is not None
    ):
        target = action.target
        near = next(
            (
                at
                for at, to in enumerate(forecast.entropy, 1)
                if abs(to / target - 1) <= 1 - OVER_LEFT
            ),
            None,
        )
        steps = f"more than {AHEAD}" if near is None else _round_to_one_digit(near)
        return effect, forecast, f"{words}. It is near in {steps} steps."
    return effect, forecast, f"{words}. {action.reason}".strip()


def _stay_at_target(found: EntropyForecast, target: float, *, is_there: bool) -> EntropyForecast:
    """A forecast that stays at a target once it has come to it; where it is there, from now on."""
    way = 1 if target > found.entropy[0] else -1
    return _moved(
        found,
        [target if is_there or way * value >= way * target else value for value in found.entropy],
    )


def _approach(entropy: float, targets: Sequence[float]) -> list[float]:
    """The way of a hold that acts to its targets, of the next steps; its course so far shows what
    it does too late."""
    way, left = [], math.exp(-1 / _HOLD_SETTLES)
    for target in targets:
        entropy = target + (entropy - target) * left
        way.append(entropy)
    return way


def _moved(found: EntropyForecast, entropies: list[float]) -> EntropyForecast:
    """A forecast that goes another way, with a band as wide in shares of it."""
    low, high = (
        [
            to * edge / middle
            for edge, middle, to in zip(edges, found.entropy, entropies, strict=True)
        ]
        for edges in (found.low, found.high)
    )
    return EntropyForecast(step=found.step, entropy=entropies, low=low, high=high)


class _State:
    """The course of a run, and what follows from it."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured
        self.course = course = measured.course
        self.age = (
            0
            if measured.step is None
            else measured.step - min(measured.first_step or 0, measured.step) + 1
        )
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
        return [] if self.course is None else self.course.levels

    @property
    def _slack(self) -> float:
        """How far log H may be from where it is kept: an eighth, or two standard errors of this
        run's own scatter, whichever is larger."""
        assert self.course is not None
        return max(-math.log(OVER_LEFT), 2 * self.course.level_error)

    @cached_property
    def is_stuck(self) -> bool:
        """Whether a target has been held for long, and not even half of the way to it was made."""
        measured = self.measured
        held = sorted(measured.targets.keys() & measured.entropies.keys())[-AHEAD:]
        if len(held) < AHEAD or measured.target is None or self.course is None:
            return False
        before = median(measured.entropies[step] for step in held[:LEAST_POINTS])
        return abs(self.course.entropy - measured.target) > abs(before - measured.target) / 2

    @cached_property
    def is_level(self) -> bool:
        """Whether not even the ends of the pace's interval change the entropy by a tenth over the
        forecast."""
        course, pace = self.course, None if self.course is None else self.course.pace
        if course is None or pace is None:
            return False
        return (
            max(abs(course.gone_in(AHEAD, pace.low)), abs(course.gone_in(AHEAD, pace.high))) < MOVES
        )

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
        return HealthLevel.WATCH if self._needs_a_look and level != HealthLevel.ACT else level

    @property
    def _needs_a_look(self) -> bool:
        """What is not healthy whatever the entropy's level is."""
        measured, course = self.measured, self.course
        return (
            measured.status == Status.SILENT
            or self.newest_not_finite is not None
            or measured.hold_state == HoldStatus.ENDED
            or self.reward_fell is not None
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
        return (fmean(best), fmean(newest)) if lost_reward(best, newest) else None

    @cached_property
    def _is_random_again(self) -> bool:
        """Whether the entropy is back where it began, and most of the reward is gone: the policy
        has forgotten what it learnt."""
        if self.reward_fell is None or self.share_lost is None:
            return False
        best, now = self.reward_fell
        return self.share_lost < 1 - OVER_LEFT and now < best / 2

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
        further = self.direction * way > 0 and abs(self.course.gone_in(AHEAD)) >= MOVES
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
        applied = None if self.measured.active is None else self.measured.active.applied_step
        if applied is None:
            return None
        under = (
            value for step, value in sorted(self.measured.entropies.items()) if step >= applied
        )
        known = [value for value in under if math.isfinite(value) and value > 0][:PROMISED_STEPS]
        return median(known) if known else None

    @cached_property
    def newest_not_finite(self) -> float | None:
        """The newest entropy, where it is NaN or infinite."""
        entropies = self.measured.entropies
        newest = entropies[max(entropies)] if entropies else 0.0
        return None if math.isfinite(newest) else newest

    def steps_to_quarter(self) -> int | None:
        """Until a quarter of the early level is left, in one digit; of a held entropy, which goes
        to its target, not ahead."""
        if self.share_lost is None or self.course is None or self.direction >= 0:
            return None
        left, is_held = 1 - self.share_lost, self.measured.target is not None
        found = 0.0 if left <= 0.25 else None if is_held else self.course.steps_until(0.25 / left)
        return None if found is None else _round_to_one_digit(found)


# ---- suggestion
# --------------------------------------------------------------------------------------------------


def _suggestion(state: _State, why: str) -> tuple[Suggestion | None, str]:
    """What to push, and where nothing is known to be safe, why not."""
    measured, lost = state.measured, state.share_lost
    if (
        measured.overshoot is not None
        and measured.overshoot.suggestion
        and not measured.status.is_over
    ):
        revert = Suggestion(
            control=measured.overshoot.suggestion,
            stops=True,
            clip_fraction=None,
            pace=None,
            message="Take it back: the control before it comes again.",
        )
        return revert, ""
    urgent = (
        state.level in (HealthLevel.WATCH, HealthLevel.ACT) and measured.status != Status.SILENT
    )
    if (
        not urgent
        or measured.status.is_over
        or state.course is None
        or lost is None
        or measured.target is not None
    ):
        return None, ""
    findings = recent_findings(measured, state.age)
    if any(alert.kind == "zero_advantage" for alert in findings):
        return (
            None,
            "Most groups teach nothing: no control of the entropy changes that, see the check.",
        )
    direction = -1 if lost > 0 else 1
    is_far = abs(lost) >= 1 - WATCH_LEFT
    # What comes back, or is level, needs no threshold. One clear step of the last ten is enough:
    # else a threshold would alternate with a hold from step to step.
    found = _threshold(state, direction, why) if direction in state.course.directions else None
    if found is not None or not is_far or _has_its_time(state):
        return found, ""
    return _hold_here(state, direction, why)


def _has_its_time(state: _State) -> list[ControlVersion]:
    """The versions that are on their way, or have no verdict yet."""
    newest, active, verdict = state.measured.newest, state.measured.active, state.measured.verdict
    found = [] if newest is None or newest.state.is_final else [newest]
    is_judged = (
        active is None
        or verdict is None
        or verdict.version != active.version
        or verdict.judged_steps
    )
    return found if is_judged or active is None else [*found, active]


def _threshold(state: _State, direction: int, why: str) -> Suggestion | None:
    measured, course = state.measured, state.course
    now = None if course is None else course.mean_pace(PROMISED_STEPS)
    if course is None or now is None:
        return None
    found = stopping_control(course, measured.last, direction, why)
    if found is None:
        return None
    control, pace = found.control, found.effect.pace
    if any(_is_enough(version, control, direction) for version in _has_its_time(state)):
        return None
    paces = "" if pace is None else f", {_pace_in_words(now.value, pace)}"
    does = "stop it" if found.stops else "slow it"
    if found.stops and state.direction == 0:
        does = f"keep it from {'falling' if direction < 0 else 'rising'}"
    return Suggestion(
        control=control.to_document(),
        stops=found.stops,
        clip_fraction=found.effect.clip_fraction,
        pace=pace,
        message=(
            f"{control.method.label} µ {_mu(control.mu_low or 0.0)} would {does}: clips "
            f"{percent(found.effect.clip_fraction, 1)}{paces}."
        ),
    )


def _is_enough(version: ControlVersion, control: Control, direction: int) -> bool:
    """Whether a version was promised to end the change, clips what `control` would, or holds:
    thresholds read from ten steps scatter."""
    promised = None if version.predicted is None else version.predicted.pace
    if promised is not None and (
        direction * promised.value <= 0 or promised.low <= 0 <= promised.high
    ):
        return True
    enough = 1.25 * (control.mu_low or 0.0)
    clipping = all(mu is not None and mu <= enough for mu in (version.mu_low, version.mu_high))
    is_same = (
        version.method == control.method
        and clipping
        and version.scope in (control.scope, Scope.ALL)
    )
    return version.hold is not None or is_same


def _hold_here(state: _State, direction: int, why: str) -> tuple[Suggestion | None, str]:
    """A hold at today's level: what is left to do where no threshold is sure to help; else why the
    hold is not known to help, either."""
    course, newest = state.course, state.measured.newest
    if course is None or (
        newest is not None and newest.hold is not None and newest.state != State.EXPIRED
    ):
        return None, ""
    target = round_to_step(course.entropy)
    if target > LARGEST_ENTROPY:
        # A loop's own number by the name of the entropy: no vocabulary has that many.
        return None, ""
    # One side alone: what comes back by itself is left to.
    side = HoldSide.RAISE if direction < 0 else HoldSide.LOWER
    control = _hold_of(target, side, why)
    action, active = _decision(state, _hold_of(course.entropy, side)), state.measured.active
    waits = action is not None and action.status == HoldStatus.FALLBACK
    if waits and active is not None and active.method != Method.NONE:
        return None, ""  # it would wait, and the active control would be gone
    unsafe = _why_no_hold(state.measured.last, action)
    if unsafe:
        # Without the newest step's numbers, as in a list of runs, there is nothing to say of it.
        is_known = state.measured.last.scalars is not None
        return None, f"No control is known to be safe. {unsafe}" if is_known else ""
    going = "fall" if direction < 0 else "rise"
    because = f"so that it does not {going} further"
    if direction * state.direction > 0:
        because = f"no threshold is sure to stop the {going}"
    message = f"Hold {_nats(target)} nats: {because}."
    if waits and action is not None:
        message += f" It would wait at first: {action.reason}"
    found = Suggestion(
        control=control.to_document(), stops=True, clip_fraction=None, pace=None, message=message
    )
    return found, ""


def _hold_of(entropy: float, side: HoldSide, why: str = "") -> Control:
    return Control(hold=Hold(target_entropy=entropy, side=side).to_document(), reason=why)


def _why_no_hold(last: LastSteps, action: Action | None) -> str:
    """Why a hold could not act, or would do harm, in a sentence; empty where it is safe. One that
    waits until the prediction is good enough is."""
    if action is None or last.gain is None:
        return why_unknown(last)
    if action.status == HoldStatus.LIMIT:
        return "A hold would clip as hard as it may, which would be too little."
    return ""


# ---- sentences
# --------------------------------------------------------------------------------------------------


def _effect_in_words(state: _State, control: Control, effect: PredictedEffect | None) -> str:
    if effect is None and not knows(control):
        return (
            f"{control.method.label}: {control.method.does}. No preview: its effect shows after a"
            " push."
        )
    if effect is None:
        return "Nothing is known yet: no step has what-if sums."
    clips = f"Clips {percent(effect.clip_fraction, 1)}"
    if 0 < effect.clip_fraction < 5e-4:
        clips = "Clips less than 0.1 %"
    if control.method == "kl_cov":
        clips = f"Penalises {percent(control.number('k'), 1)} of the tokens, clips none"
    now = None if state.course is None else state.course.mean_pace(PROMISED_STEPS)
    if effect.pace is None or now is None:
        return f"{clips}; what that does to the entropy is not known while the gain is not."
    return f"{clips}: {_pace_in_words(now.value, effect.pace)}."


def _pace_in_words(now: float, pace: Estimate) -> str:
    """`ΔH −0.0031 → 0.0002 nats a step (−0.0008 to 0.0012) over the next 20 steps`."""
    decimals = max(4, decimals_of(now, 1))
    low, high, before, after = (
        fixed(value, decimals) for value in (pace.low, pace.high, now, pace.value)
    )
    return (
        f"ΔH {before} → {after} nats a step ({low} to {high}) over the next {PROMISED_STEPS} steps"
    )


def _message(state: _State) -> str:
    measured, course = state.measured, state.course
    if course is None:
        said = (
            "No step has been reported."
            if measured.step is None
            else "No entropy has been reported."
        )
    elif measured.status.is_over:
        said = f"{_change_in_words(state, course, over='over')}."
    else:
        said = _course_in_words(state, course)
    if measured.status.is_over:
        word = measured.status.capitalize()
        error = error_in_a_line(measured.error).rstrip(".")
        return f"{word}: {error}. {said}" if error else f"{word}: {said[:1].lower()}{said[1:]}"
    not_finite = state.newest_not_finite
    if not_finite is not None:
        said = f"The entropy of step {max(measured.entropies)} is {fixed(not_finite, 0)}."
    if measured.overshoot is not None:
        said = f"{measured.overshoot.message} {said}"
    elif state.reward_fell is not None:
        best, now = state.reward_fell
        said = f"{said} The reward fell from {best:.2g} to {now:.2g}."
    if measured.hold_state == HoldStatus.ENDED:
        said = f"{measured.hold_why} {said}"
    elif measured.hold_state == HoldStatus.FALLBACK:
        said = f"{said} The hold waits: {measured.hold_why}"
    return f"{_SILENT} {said}" if measured.status == Status.SILENT else said


def _course_in_words(state: _State, course: Course) -> str:
    measured, pace = state.measured, state.pace
    if pace is None:
        return (
            f"Entropy is {_nats(course.entropy)} nats; its pace is known from the {LEAST_POINTS}th"
            " step on."
        )
    if measured.target is not None:
        return _held_in_words(state, course, measured.target)
    if state.level == HealthLevel.HOLDING and measured.active is not None:
        since = (measured.step or 0) - (measured.active.applied_step or 0)
        version = measured.active.version
        return (
            f"Entropy holds at {_nats(course.entropy)} nats, {since:,} steps after version"
            f" {version} was applied."
        )
    lost = state.share_lost
    if lost is None:
        return (
            f"Entropy {_goes(pace.value) if state.direction else 'is level'}, at"
            f" {_nats(course.entropy)} nats."
        )
    so_far = f"Entropy has {_moved_in_words(lost)}"
    if state.direction == 0:
        if state.is_level and abs(lost) < _SLIGHT:
            return f"Entropy is level at {_nats(course.entropy)} nats{_name_early_level(lost)}."
        return (
            f"{so_far} and {'is level' if state.is_level else 'has no clear trend'} now, at"
            f" {_nats(course.entropy)} nats."
        )
    said = f"{so_far} and {_goes(pace.value)}{_name_forecast(course)}."
    if state.level == HealthLevel.HEALTHY and pace.value < 0 < lost:
        said = f"{said} {_reason_for_health(state, course, pace)}"
    return said


def _reason_for_health(state: _State, course: Course, pace: Estimate) -> str:
    """`The reward still rises; half of today's entropy would last 300 steps.`"""
    half = _round_to_one_digit(math.log(2) * course.entropy / -pace.value)
    lasts = f"half of today's entropy would last {half} steps."
    rewards = state.measured.rewards
    slope = slope_of([*rewards], [*rewards.values()])
    if slope is None or slope.direction <= 0:
        return lasts.capitalize()
    return f"The reward still rises; {lasts}"


def _name_forecast(course: Course) -> str:
    """`: 0.21 nats in 50 steps (0.14 to 0.30)`; where this run's forecasts were no better than that
    nothing changes, their band alone."""
    found = course.forecast()
    if found is None:
        return ""
    middle, low, high = (_nats(column[-1]) for column in (found.entropy, found.low, found.high))
    if course.score is not None and not course.score.is_better:
        return f": {low} to {high} nats in {AHEAD} steps"
    return f": {middle} nats in {AHEAD} steps ({low} to {high})"


def _held_in_words(state: _State, course: Course, target: float) -> str:
    assert state.pace is not None
    off = course.entropy / target - 1
    target_text = f"its target of {_nats(target)} nats"
    where = (
        f"{percent(abs(off))} {'above' if off > 0 else 'below'} {target_text}"
        if abs(off) >= 0.005
        else f"at {target_text}"
    )
    if state.is_near_target:
        return f"Entropy is held at {_nats(course.entropy)} nats, {where}."
    verdict = state.measured.verdict
    if state.direction * off < 0:
        return f"Entropy is {where} and approaches it."
    if not state.direction and verdict is not None and verdict.outcome == Outcome.APPROACHING:
        return f"Entropy is {where} and approaches it."
    return f"Entropy is {where} and {_goes(state.pace.value) if state.direction else 'level'}."


def _change_in_words(state: _State, course: Course, *, over: str) -> str:
    """`Entropy lost 52 % in 41 steps`."""
    lost = state.share_lost
    if lost is None:
        return f"Entropy was {_nats(course.entropy)} nats {over} {state.age:,} steps"
    return f"Entropy {_moved_in_words(lost)} {over} {state.age:,} steps"


def _moved_in_words(lost: float) -> str:
    if abs(lost) < 0.005:
        return "kept its early level"
    return f"{'lost' if lost > 0 else 'gained'} {percent(abs(lost))}"


def _name_early_level(lost: float) -> str:
    if abs(lost) < 0.005:
        return ", as at the start"
    return f", {percent(abs(lost))} {'below' if lost > 0 else 'above'} its early level"


def _goes(slope: float) -> str:
    return "falls" if slope < 0 else "rises"


def _round_to_one_digit(steps: float) -> int:
    return int(float(f"{steps:.0e}"))


def _mu(mu: float) -> str:
    return f"{mu:.{max(1, decimals_of(mu, 1))}f}"


def finite(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Step -> value, of the values that can be calculated with."""
    return {step: value for step, value in values if is_usable(value)}
