"""The next steps of a held entropy, and of a hold that would be pushed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from isentrope_wire.control import Control
from isentrope_wire.control_answers import (
    EntropyForecast,
    Estimate,
    PredictedEffect,
)
from isentrope_wire.diagnosis.course import tuning
from isentrope_wire.diagnosis.effect import (
    PROMISED_STEPS,
    expected_action,
    predicted_effect,
)
from isentrope_wire.diagnosis.health.sentences import format_mu
from isentrope_wire.diagnosis.health.state import RunState, round_to_one_digit
from isentrope_wire.hold_action import Action, HoldStatus, control_under
from isentrope_wire.numbers import (
    is_usable,
    nats,
    percent,
)

_HOLD_WORDS: Mapping[HoldStatus, str] = {
    HoldStatus.HOLDING: "would hold it",
    HoldStatus.SLEWING: "would move its threshold there",
    HoldStatus.LIMIT: "would clip as hard as µ min or the share limit allows, which is too little",
    HoldStatus.APPROACHING: "would clip nothing: the entropy moves to the target by itself",
    HoldStatus.RESTING: "would clip nothing: none is needed",
    HoldStatus.SIDE: "would clip nothing: only the side that is not allowed would help",
    HoldStatus.FALLBACK: "would wait",
}


def forecast_unchanged(state: RunState) -> tuple[EntropyForecast | None, Estimate | None]:
    """The next steps if the control stays as it is, and their mean pace; a held entropy goes to its
    target."""
    course, target = state.course, state.measured.target
    if course is None:
        return None, None
    forecast = course.forecast()
    if forecast is None or target is None:
        return forecast, course.mean_pace(PROMISED_STEPS)
    if state.measured.is_acting and not state.is_stuck:
        control = Control()
        if state.measured.active is not None:
            control = state.measured.active.control
        targets = _targets_ahead(control, forecast.step, target, state.early)
        forecast = _moved(forecast, _approach(course.entropy, targets), course.largest)
    else:
        forecast = _stay_at_target(forecast, target, course.largest, is_there=state.is_near_target)
    return forecast, _pace_of(forecast, course.entropy)


def _targets_ahead(
    control: Control, steps: Sequence[int], target: float, early: float | None
) -> list[float]:
    """What a hold aims at in these steps, in nats: along its curve, or `target` in all of them."""
    if control.held is None or control.held.curve_end is None:
        return [target] * len(steps)
    return [control.held.target_at(step, early) or target for step in steps]


def _pace_of(forecast: EntropyForecast, entropy: float) -> Estimate:
    """Its mean over the next steps, from this entropy on."""
    value, low, high = (
        (line[PROMISED_STEPS - 1] - entropy) / PROMISED_STEPS
        for line in (forecast.entropy, forecast.low, forecast.high)
    )
    return Estimate(value=value, low=low, high=high)


def decide_hold(state: RunState, control: Control) -> Action | None:
    """What the probe would decide to hold the entropy; None where nothing is known."""
    measured, course = state.measured, state.course
    if course is None or not measured.last.sums or measured.step is None:
        return None
    highest = max([*filter(is_usable, measured.entropies.values()), state.early or 0.0])
    return expected_action(
        control, measured.last, measured.step, course.entropy, state.early, highest
    )


def preview_hold(
    state: RunState, control: Control
) -> tuple[PredictedEffect | None, EntropyForecast | None, str]:
    """What the thresholds do that the probe would choose, the forecast up to the target, and the
    decision in words."""
    measured, course = state.measured, state.course
    action = decide_hold(state, control)
    if course is None or action is None:
        return None, None, "The hold would wait: no step has what-if sums."
    acts = action.mu is not None or action.bonus is not None
    is_moved = acts and action.status == HoldStatus.APPROACHING
    has_curve = control.held is not None and control.held.curve_end is not None
    does = _HOLD_WORDS[action.status]
    if is_moved:
        does = "would move the entropy there"
    words = f"The hold {does}"
    if action.target is not None:
        words += f" (target {nats(action.target)} nats, now {nats(course.entropy)})"
    under = Control()
    if acts:
        under = replace(control_under(action, control), hold=None)
    effect = predicted_effect(under, measured.last, course)
    if action.mu is not None and effect is not None:
        clips = percent(effect.clip_fraction, 1)
        words += f": µ {format_mu(action.mu)}, {action.scope}, clips {clips}"
    forecast = None
    if effect is not None and effect.change is not None:
        forecast = course.forecast(effect.change, effect.change_error or 0.0, is_kept=acts)
    if effect is None or forecast is None:
        return effect, forecast, f"{words}. {action.reason}".strip()
    target = action.target
    goes_there = action.status in (HoldStatus.HOLDING, HoldStatus.SLEWING)
    if target is not None and (goes_there or (is_moved and has_curve)):
        targets = _targets_ahead(control, forecast.step, target, state.early)
        forecast = _moved(forecast, _approach(course.entropy, targets), course.largest)
    elif target is not None and action.status != HoldStatus.FALLBACK:
        forecast = _stay_at_target(forecast, target, course.largest, is_there=False)
    if acts:
        effect = replace(effect, pace=_pace_of(forecast, course.entropy))
    if action.status != HoldStatus.APPROACHING or has_curve or target is None:
        return effect, forecast, f"{words}. {action.reason}".strip()
    steps = f"more than {tuning.AHEAD}"
    for step, entropy in enumerate(forecast.entropy, 1):
        if abs(entropy / target - 1) <= 1 - tuning.OVER_LEFT:
            steps = str(round_to_one_digit(step))
            break
    return effect, forecast, f"{words}. It is near in {steps} steps."


def _stay_at_target(
    forecast: EntropyForecast, target: float, largest: float, *, is_there: bool
) -> EntropyForecast:
    """A forecast that stays at a target once it has come to it; where it is there, from now on."""
    entropies = [target] * len(forecast.entropy)
    if not is_there and target > forecast.entropy[0]:
        entropies = [min(value, target) for value in forecast.entropy]
    elif not is_there:
        entropies = [max(value, target) for value in forecast.entropy]
    return _moved(forecast, entropies, largest)


def _approach(entropy: float, targets: Sequence[float]) -> list[float]:
    """The way of a hold that acts to its targets, of the next steps; its course so far shows what
    it does too late."""
    way, left = [], math.exp(-1 / tuning.HOLD_SETTLES)
    for target in targets:
        entropy = target + (entropy - target) * left
        way.append(entropy)
    return way


def _moved(forecast: EntropyForecast, entropies: list[float], largest: float) -> EntropyForecast:
    """A forecast that goes another way, with a band as wide in shares of it, up to the largest
    possible entropy."""
    low, high = (
        [
            min(to * edge / middle, max(to, largest))
            for edge, middle, to in zip(edges, forecast.entropy, entropies, strict=True)
        ]
        for edges in (forecast.low, forecast.high)
    )
    return EntropyForecast(step=forecast.step, entropy=entropies, low=low, high=high)
