"""A run, a control and what the checks found, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from isentrope_wire.answers import Alert, HealthLevel, Status
from isentrope_wire.control import Control
from isentrope_wire.control_answers import (
    Estimate,
    Outcome,
    PredictedEffect,
)
from isentrope_wire.diagnosis.course import Course, tuning
from isentrope_wire.diagnosis.effect import (
    PROMISED_STEPS,
)
from isentrope_wire.diagnosis.guard import WINDOW as REWARDS
from isentrope_wire.diagnosis.guard import still_rises
from isentrope_wire.diagnosis.health.state import RunState, round_to_one_digit
from isentrope_wire.diagnosis.verdict import reward_in_words
from isentrope_wire.hold_action import HoldStatus
from isentrope_wire.numbers import (
    decimals_of,
    fixed,
    nats,
    percent,
)
from isentrope_wire.reports import ALERT_KINDS, AlertLevel, error_in_a_line
from isentrope_wire.what_if import knows

_SILENT = "No report has come for a while: the process is frozen, ended or cut off."


def describe_effect(state: RunState, control: Control, effect: PredictedEffect | None) -> str:
    if effect is None and not knows(control):
        return (
            f"{control.method.label}: {control.method.does}. No preview: its effect shows after a"
            " push."
        )
    if effect is None:
        return "Nothing is known: no step has what-if sums."
    clips = f"Clips {percent(effect.clip_fraction, 1)}"
    if 0 < effect.clip_fraction < 5e-4:
        clips = "Clips less than 0.1 %"
    if control.method == "kl_cov":
        share = control.number("k")
        decimals = max(1, decimals_of(100 * share, 1))
        clips = f"Penalises {percent(share, decimals)} of the tokens, clips none"
    now = None
    if state.course is not None:
        now = state.course.mean_pace(PROMISED_STEPS)
    if effect.pace is None or now is None:
        return (
            f"{clips}. The newest steps don't tell what that does to the entropy. You can push it"
            " all the same."
        )
    return f"{clips}: {describe_pace(now.value, effect.pace)}."


def describe_pace(now: float, pace: Estimate) -> str:
    """`ΔH −0.0031 → 0.0002 nats a step (−0.0008 to 0.0012) over the next 20 steps`."""
    decimals = max(4, decimals_of(now, 1))
    low, high, before, after = (
        fixed(value, decimals) for value in (pace.low, pace.high, now, pace.value)
    )
    return (
        f"ΔH {before} → {after} nats a step ({low} to {high}) over the next {PROMISED_STEPS} steps"
    )


def describe_state(state: RunState) -> str:
    measured, course = state.measured, state.course
    if course is None:
        said = "No entropy has been reported."
        if measured.step is None:
            said = "No step has been reported."
    elif measured.status.is_over:
        said = f"{_describe_change(state, course)}."
    else:
        said = _describe_course(state, course)
    if measured.status.is_over:
        word = measured.status.capitalize()
        error = error_in_a_line(measured.error).rstrip(".")
        if error:
            return f"{word}: {error}. {said}"
        return f"{word}: {said[:1].lower()}{said[1:]}"
    not_finite = state.newest_not_finite
    if not_finite is not None:
        said = f"The entropy of step {max(measured.entropies)} is {fixed(not_finite, 0)}."
    if measured.overshoot is not None:
        said = f"{measured.overshoot.message} {said}"
    elif state.fell_under_control is not None and measured.active is not None:
        fell = reward_in_words(state.fell_under_control).rstrip(".")
        said = f"{said} {fell} since version {measured.active.version} was applied."
    elif state.reward_fell is not None:
        best, now = state.reward_fell
        over = f"of {REWARDS} steps each"
        said = f"{said} The reward fell from {best:.2g} at best to {now:.2g} now (means {over})."
    if measured.hold_state == HoldStatus.ENDED:
        said = f"{measured.hold_why} {said}"
    elif measured.hold_state == HoldStatus.FALLBACK:
        said = f"{said} The hold waits: {measured.hold_why}"
    if measured.status == Status.SILENT:
        return f"{_SILENT} {said}"
    return said


def _describe_course(state: RunState, course: Course) -> str:
    measured, pace = state.measured, state.pace
    if pace is None:
        return (
            f"Entropy is {nats(course.entropy)} nats; its pace is known from the"
            f" {tuning.LEAST_POINTS}th step on."
        )
    lost = state.share_lost
    if measured.target is not None:
        return _describe_held(state, course, measured.target)
    if state.level == HealthLevel.HOLDING and measured.active is not None:
        since = (measured.step or 0) - (measured.active.applied_step or 0)
        version = measured.active.version
        below = ""
        if lost is not None:
            below = _name_early_level(lost)
        after = f"{since:,} steps after version {version} was applied"
        if state.is_steady:
            return f"Entropy holds at {nats(course.entropy)} nats{below}, {after}."
        ahead = _name_forecast(course, to="")
        return f"Entropy is at {nats(course.entropy)} nats{below}, {after}{ahead}."
    if lost is None:
        goes = "is level"
        if state.direction:
            goes = _goes(pace.value)
        return f"Entropy {goes}, at {nats(course.entropy)} nats."
    so_far = f"Entropy has {_describe_moved(lost)}"
    if state.direction == 0:
        if state.is_level and abs(lost) < tuning.SLIGHT:
            return f"Entropy is level at {nats(course.entropy)} nats{_name_early_level(lost)}."
        trend = "has no clear trend"
        if state.is_level:
            trend = "is level"
        return f"{so_far} and {trend} now, at {nats(course.entropy)} nats."
    if not _agrees(course, state.direction):
        return f"{so_far} and {_went(pace.value)} lately{_name_forecast(course)}."
    said = f"{so_far} and {_goes(pace.value)}{_name_forecast(course)}."
    if state.level == HealthLevel.HEALTHY and pace.value < 0 < lost:
        said = f"{said} {_reason_for_health(state, course, pace)}"
    return said


def _reason_for_health(state: RunState, course: Course, pace: Estimate) -> str:
    """`The reward still rises; half of today's entropy would last 300 steps.`"""
    half = round_to_one_digit(math.log(2) * course.entropy / -pace.value)
    lasts = f"half of today's entropy would last {half} steps."
    rewards = [reward for _, reward in sorted(state.measured.rewards.items())]
    if state.fell_under_control is not None or not still_rises(rewards):
        return lasts.capitalize()
    return f"The reward still rises; {lasts}"


def _name_forecast(course: Course, to: str = "to ") -> str:
    """`: to 0.21 nats in 50 steps (0.14 to 0.30)`; where this run's forecasts were no better than
    that nothing changes, their band alone. `to`: empty where no verb of movement goes before."""
    forecast = course.forecast()
    if forecast is None:
        return ""
    middle, low, high = (
        nats(column[-1]) for column in (forecast.entropy, forecast.low, forecast.high)
    )
    if course.score is not None and not course.score.is_better:
        return f": {to}between {low} and {high} nats in {tuning.AHEAD} steps"
    return f": {to}{middle} nats in {tuning.AHEAD} steps ({low} to {high})"


def _describe_held(state: RunState, course: Course, target: float) -> str:
    assert state.pace is not None
    off = course.entropy / target - 1
    target_text = f"its target of {nats(target)} nats"
    where = f"{percent(abs(off))} {_name_side(off)} {target_text}"
    if abs(off) < 0.005:
        where = f"at {target_text}"
    if state.is_near_target:
        return f"Entropy is held at {nats(course.entropy)} nats, {where}."
    verdict = state.measured.verdict
    if state.direction * off < 0:
        return f"Entropy is {where} and approaches it."
    if not state.direction and verdict is not None and verdict.outcome == Outcome.APPROACHING:
        return f"Entropy is {where} and approaches it."
    if not state.direction:
        return f"Entropy does not move now, {where}."
    return f"Entropy is {where} and {_goes(state.pace.value)}."


def _describe_change(state: RunState, course: Course) -> str:
    """`Entropy lost 52 % in 41 steps`."""
    lost = state.share_lost
    if lost is None:
        return f"Entropy was {nats(course.entropy)} nats over {state.age:,} steps"
    return f"Entropy {_describe_moved(lost)} over {state.age:,} steps"


def _describe_moved(lost: float) -> str:
    if abs(lost) < 0.005:
        return "kept its early level"
    if lost > 0:
        return f"lost {percent(lost)}"
    return f"gained {percent(-lost)}"


def _name_early_level(lost: float) -> str:
    if abs(lost) < 0.005:
        return ", as at the start"
    return f", {percent(abs(lost))} {_name_side(-lost)} its early level"


def _name_side(difference: float) -> str:
    if difference > 0:
        return "above"
    return "below"


def _agrees(course: Course, direction: int) -> bool:
    """Whether the forecast goes where the entropy went, over its next steps and to its end."""
    forecast, pace = course.forecast(), course.mean_pace(PROMISED_STEPS)
    if forecast is None or pace is None:
        return True
    ahead = forecast.entropy[-1] - course.entropy
    return direction * ahead > 0 and direction * pace.value > 0


def _went(slope: float) -> str:
    if slope < 0:
        return "fell"
    return "rose"


def _goes(slope: float) -> str:
    if slope < 0:
        return "falls"
    return "rises"


def describe_findings(findings: Sequence[Alert]) -> str:
    """The first finding, a longer step last, and the most urgent one."""
    if not findings:
        return ""
    first = next((alert for alert in findings if alert.kind != "throughput"), findings[0])
    words = f" Found at step {first.step}: {_named(first)}"
    urgent = next((alert for alert in findings if alert.level == AlertLevel.ACT), first)
    if urgent.kind != first.kind:
        words += f"; most urgent, at step {urgent.step}: {_named(urgent)}"
    return f"{words}."


def _named(alert: Alert) -> str:
    return begin_small(ALERT_KINDS.get(alert.kind, alert.kind))


def begin_small(title: str) -> str:
    """A title within a sentence; `KL` and `NaN` stay as they are."""
    if any(letter.isupper() for letter in title.partition(" ")[0][1:]):
        return title
    return title[:1].lower() + title[1:]


def format_mu(mu: float) -> str:
    return f"{mu:.{max(1, decimals_of(mu, 1))}f}"
