"""The control to push: one that stops the change, or a hold; or why none is known to be safe."""

from __future__ import annotations

from dataclasses import replace

from isentrope_wire.answers import HealthLevel, Status
from isentrope_wire.control import LARGEST_ENTROPY, Control, Hold, HoldSide, Scope
from isentrope_wire.control_answers import (
    ControlVersion,
    State,
)
from isentrope_wire.diagnosis.course import tuning
from isentrope_wire.diagnosis.effect import (
    PROMISED_STEPS,
    LastSteps,
    stopping_control,
    why_unknown,
)
from isentrope_wire.diagnosis.guard import MOST_LOST
from isentrope_wire.diagnosis.health.answers import Suggestion
from isentrope_wire.diagnosis.health.held import decide_hold
from isentrope_wire.diagnosis.health.sentences import describe_pace, format_mu
from isentrope_wire.diagnosis.health.state import RunState, recent_findings
from isentrope_wire.hold_action import Action, HoldStatus
from isentrope_wire.methods import Method
from isentrope_wire.numbers import (
    nats,
    percent,
    round_to_step,
)

PRICE = " More reward is not shown."
"""Of a control that keeps an entropy up: recorded runs (`beyond-pay`, five seeds of one task) ended
with no more reward under it than left to itself, though with more Pass@8."""

_NOT_YET = (
    "The reward still rises, so leave the run alone. Look here again when it stops rising, or"
    f" {percent(MOST_LOST)} of the entropy is gone."
)


def suggest_control(state: RunState, why: str) -> tuple[Suggestion | None, str]:
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
    if _should_be_reverted(state):
        return _revert(state), ""
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
            "No control is suggested while so many groups teach nothing: see the check.",
        )
    if state.is_learning and _does_something(measured.active):
        return None, ""
    if state.is_learning:
        return None, _NOT_YET
    direction = 1
    if lost > 0:
        direction = -1
    is_far = abs(lost) >= 1 - tuning.WATCH_LEFT
    # What comes back, or is level, needs no threshold. One clear step of the last ten is enough:
    # else a threshold would alternate with a hold from step to step.
    found = None
    if direction in state.course.directions:
        found = _threshold(state, direction, why)
    if found is not None or not is_far or _has_its_time(state):
        return found, ""
    return _hold_here(state, direction, why)


def _does_something(active: ControlVersion | None) -> bool:
    """Whether a control that was pushed acts, or holds."""
    if active is None or not active.version:
        return False
    return active.method != Method.NONE or active.hold is not None


def _should_be_reverted(state: RunState) -> bool:
    """Whether the reward fell under the newest control, and did not fall before it."""
    measured = state.measured
    if measured.status.is_over or measured.before is None or state.fell_under_control is None:
        return False
    newest, active = measured.newest, measured.active
    is_newest = newest is None or active is None or newest.version == active.version
    return is_newest and _does_something(active) and not state.fell_before_control


def _revert(state: RunState) -> Suggestion:
    before, active = state.measured.before, state.measured.active
    assert before is not None
    assert active is not None
    back = replace(before, reason=f"Reverts version {active.version}")
    return Suggestion(
        control=back.to_document(),
        stops=True,
        clip_fraction=None,
        pace=None,
        message=f"Revert version {active.version}: the reward fell under it.",
    )


def _has_its_time(state: RunState) -> list[ControlVersion]:
    """The versions that are on their way, or have no verdict yet."""
    newest, active, verdict = state.measured.newest, state.measured.active, state.measured.verdict
    if newest is None or newest.state.is_final:
        found = []
    else:
        found = [newest]
    is_judged = (
        active is None
        or verdict is None
        or verdict.version != active.version
        or verdict.judged_steps
    )
    if is_judged or active is None:
        return found
    return [*found, active]


def _threshold(state: RunState, direction: int, why: str) -> Suggestion | None:
    measured, course = state.measured, state.course
    if course is None:
        now = None
    else:
        now = course.mean_pace(PROMISED_STEPS)
    if course is None or now is None:
        return None
    found = stopping_control(course, measured.last, direction, why)
    if found is None:
        return None
    control, pace = found.control, found.effect.pace
    if any(_is_enough(version, control, direction) for version in _has_its_time(state)):
        return None
    if pace is None:
        paces = ""
    else:
        paces = f", {describe_pace(now.value, pace)}"
    does = "slow it"
    if found.stops:
        does = "stop it"
    if found.stops and state.direction == 0:
        does = f"keep it from {'falling' if direction < 0 else 'rising'}"
    message = (
        f"{control.method.label} µ {format_mu(control.mu_low or 0.0)} would {does}: clips "
        f"{percent(found.effect.clip_fraction, 1)}{paces}."
    )
    if direction < 0:
        message += PRICE
    return Suggestion(
        control=control.to_document(),
        stops=found.stops,
        clip_fraction=found.effect.clip_fraction,
        pace=pace,
        message=message,
    )


def _is_enough(version: ControlVersion, control: Control, direction: int) -> bool:
    """Whether a version was promised to end the change, clips what `control` would, or holds:
    thresholds read from ten steps scatter."""
    if version.predicted is None:
        promised = None
    else:
        promised = version.predicted.pace
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


def _hold_here(state: RunState, direction: int, why: str) -> tuple[Suggestion | None, str]:
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
    if direction < 0:
        side = HoldSide.RAISE
    else:
        side = HoldSide.LOWER
    control = _hold_of(target, side, why)
    action, active = decide_hold(state, _hold_of(course.entropy, side)), state.measured.active
    waits = action is not None and action.status == HoldStatus.FALLBACK
    if waits and active is not None and active.method != Method.NONE:
        return None, ""  # it would wait, and the active control would be gone
    unsafe = _why_no_hold(state.measured.last, action)
    if unsafe:
        # Without the newest step's numbers, as in a list of runs, there is nothing to say of it.
        is_known = state.measured.last.scalars is not None
        return None, f"No control is known to be safe. {unsafe}" if is_known else ""
    going = "rise"
    if direction < 0:
        going = "fall"
    because = f"so that it does not {going} further"
    if direction * state.direction > 0:
        because = f"no threshold is sure to stop the {going}"
    message = f"Hold {nats(target)} nats: {because}."
    if direction < 0:
        message += PRICE
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
