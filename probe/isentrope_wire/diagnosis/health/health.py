"""The diagnosis of a run, and the preview of a control.

`diagnose` and `preview` are pure functions of what was measured over a run's first and last steps.
Page, terminal, list of runs, assistants and the preview of a control show their numbers and
sentences."""

from __future__ import annotations

from isentrope_wire.answers import HealthLevel
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.course import Course, tuning
from isentrope_wire.diagnosis.effect import (
    LastSteps,
    dead_parts,
    effect_curves,
    predicted_effect,
)
from isentrope_wire.diagnosis.health.answers import Diagnosis, Preview
from isentrope_wire.diagnosis.health.held import forecast_unchanged, preview_hold
from isentrope_wire.diagnosis.health.measured import Measured
from isentrope_wire.diagnosis.health.sentences import (
    describe_effect,
    describe_findings,
    describe_state,
)
from isentrope_wire.diagnosis.health.state import RunState, level_with, recent_findings
from isentrope_wire.diagnosis.health.suggestion import suggest_control
from isentrope_wire.diagnosis.pull import cause_of
from isentrope_wire.diagnosis.trust import prediction_trust
from isentrope_wire.methods import Method
from isentrope_wire.numbers import nats


def diagnose(measured: Measured) -> Diagnosis:
    """Level, sentence, cause, forecast and suggestion of a run as it is now."""
    state = RunState(measured)
    course = state.course
    findings = recent_findings(measured, state.age)
    message = describe_state(state) + describe_findings(findings)
    suggestion, why_none = suggest_control(state, message)
    cause = None
    if state.level != HealthLevel.HOLDING:
        cause = cause_of(measured.parts, state.direction)
    is_over = measured.status.is_over
    forecast, mean_pace = None, None
    if not is_over:
        forecast, mean_pace = forecast_unchanged(state)
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
            measured.predicted,
            measured.observed,
            measured.observed_errors,
            of_unseen=measured.last.of_unseen,
        ),
        steps_to_three_quarters_lost=None if is_over else state.steps_to_quarter(),
        target=measured.target,
        message=f"{message} {why_none}".rstrip(),
        cause=cause,
        suggestion=suggestion,
        alert=measured.alert,
        verdict=measured.verdict,
    )


def _warn_of_early_level(course: Course, highest: float) -> list[str]:
    """Of a control that lifts the entropy; `highest` is that of its forecast, in nats. An entropy
    so high was not measured, and the vocabulary may not even allow it."""
    early = course.early.level
    if early is None or not course.entropy <= early < highest:
        return []
    return [
        f"This would lift the entropy above its early level, {nats(early)} nats. Forecasts so high"
        + " are often not reached: choose a weaker control."
    ]


def _why_it_does_nothing(control: Control, last: LastSteps) -> str:
    """Why a control changes no gradient at all; empty where it changes one, or that is not
    known."""
    dead = dead_parts(control, last)
    if control.method == Method.NONE or not dead:
        return ""
    if control.method.thresholds or control.method == "clip_cov":
        answers = last.evaluate(control)
        if answers is None or any(answer.clip_fraction for answer in answers):
            return ""
    return dead[0]


def _warn_of_curve(state: RunState, control: Control) -> list[str]:
    """Where the curve of a hold begins far from the present level, or ends after the run."""
    measured, course = state.measured, state.course
    if control.held is None or control.held.curve_end is None or course is None:
        return []
    said, step = list[str](), measured.step or 0
    target = control.held.target_at(step + 1, state.early)
    if target is not None and not tuning.OVER_LEFT < target / course.entropy < 1 / tuning.OVER_LEFT:
        off = target - course.entropy
        side = "below"
        if off > 0:
            side = "above"
        said.append(
            f"The curve starts {nats(abs(off))} nats {side} the present level of"
            f" {nats(course.entropy)} nats."
        )
    last, planned = control.held.curve_end, measured.planned_steps
    if planned and last > planned:
        end = control.held.target_at(planned, state.early)
        comes = ""
        if end is not None:
            comes = f", where it is at {nats(end)} nats"
        said.append(
            f"The curve ends at step {last:,}, after the run's last step {planned:,}{comes}."
        )
    return said


def preview(measured: Measured, control: Control, *, curves: bool = False) -> Preview:
    """What a control would do if it were pushed now; with `curves` also its thresholds over their
    range."""
    state = RunState(measured)
    course, last = state.course, measured.last
    warnings = []
    if control.method != Method.NONE or control.hold is not None:
        warnings = dead_parts(control, last)
    if control.held is not None:
        effect, forecast, message = preview_hold(state, control)
    else:
        why_idle, does = _why_it_does_nothing(control, last), control
        if why_idle:
            does = Control()
        effect = predicted_effect(does, last, course)
        forecast = None
        if course is not None and effect is not None and effect.change is not None:
            forecast = course.forecast(effect.change, effect.change_error or 0.0)
            if effect.change > 0 and forecast is not None:
                warnings = [*warnings, *_warn_of_early_level(course, max(forecast.entropy))]
        elif course is not None and measured.active and control == measured.active.control:
            forecast = course.forecast()
        message = describe_effect(state, control, effect)
        if why_idle:
            message, warnings = f"Would do nothing: {why_idle}", [why_idle]
    warnings += _warn_of_curve(state, control)
    return Preview(
        entropy=None if course is None else course.entropy,
        forecast=forecast,
        clip_fraction=None if effect is None else effect.clip_fraction,
        clip_fraction_std=None if effect is None else effect.clip_fraction_std,
        change=None if effect is None else effect.change,
        pace=None if effect is None else effect.pace,
        unchanged=forecast_unchanged(state)[1],
        curves=effect_curves(control, last, course) if curves else None,
        message=message,
        warnings=warnings,
    )
