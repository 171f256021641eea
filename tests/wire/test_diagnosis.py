"""The diagnosis of hand-made courses: its numbers, its level, its suggestion."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from isentrope_wire.answers import HealthLevel, Status
from isentrope_wire.control import Control
from isentrope_wire.control_answers import Compared, ControlVersion, State, Verdict, VerdictState
from isentrope_wire.diagnosis.course import slope_of
from isentrope_wire.diagnosis.health import Measured, diagnose
from isentrope_wire.what_if import EDGES, SIDES, BinSums, TokenGroup, WhatIfSums, what_if


def run(course: Callable[[int], float], steps: int, **known: Any) -> Measured:
    """A run of steps 1, 2 ... whose entropy follows a course."""
    entropies = {step: course(step) for step in range(1, steps + 1)}
    early = [value for value in entropies.values() if math.isfinite(value)][:3]
    return Measured(
        step=steps or None,
        first_step=1 if steps else None,
        early_entropies=early,
        entropies={step: value for step, value in entropies.items() if step > steps - 60},
        **known,
    )


def collapse(step: float) -> float:
    """Loses 2.5 % a step."""
    return 0.6 * math.exp(-0.025 * step)


def version(control: Control, **known: Any) -> ControlVersion:
    fields = {name: getattr(control, name) for name in control.to_document()}
    state = {"version": 3, "state": State.APPLIED, "author": "ada", "requested_at": 1.0, "requested_step": 20}
    applied = {"expires_at": None, "applied_step": 21, "applied_at": 1.0, "ended_at": None, "code": "", "message": ""}
    applied |= {"predicted": None, "verdict": None}
    return ControlVersion(**(fields | state | applied | known))


def verdict_of(state: VerdictState) -> Verdict:
    """On version 3, after a fall by 0.0081 nats a step."""
    clipped, slope = (
        Compared(before=0.0, predicted=0.1, realised=0.1),
        Compared(before=-0.0081, predicted=0.0, realised=0.0),
    )
    return Verdict(version=3, state=state, steps=20, steps_needed=20, clip_fraction=clipped, slope=slope, message="")


def test_a_collapse_in_numbers() -> None:
    found = diagnose(run(collapse, 41))
    early, entropy = collapse(2), sum(collapse(step) for step in range(32, 42)) / 10
    assert (found.level, found.step, found.lost_in_steps) == (HealthLevel.ACT, 41, 41)
    assert found.early_level == pytest.approx(early)
    assert found.entropy == pytest.approx(entropy)
    assert found.share_lost == pytest.approx(1 - entropy / early)
    # The slope of the last twenty steps, and all that is derived from it.
    assert found.slope is not None
    assert found.slope == pytest.approx(-0.025 * collapse(31.5), rel=0.02)
    assert found.slope_low is not None
    assert found.slope_high is not None
    assert found.slope_low <= found.slope <= found.slope_high < 0
    assert found.halving_steps == pytest.approx(-entropy * math.log(2) / found.slope)
    assert found.steps_to_three_quarters_lost == pytest.approx(entropy * math.log(early / 4 / entropy) / found.slope)
    assert found.message == "Entropy has lost 58 % in 41 steps and halves again in 24."


@pytest.mark.parametrize(
    ("course", "steps", "level", "words"),
    [
        (collapse, 12, HealthLevel.HEALTHY, "has lost 20 % in 12 steps and halves in 25 more."),
        (collapse, 24, HealthLevel.WATCH, "has lost 39 % in 24 steps and halves in 23 more."),
        (collapse, 32, HealthLevel.WATCH, "has lost 48 % in 32 steps and halves again in 24."),
        (lambda step: 0.6 if step < 30 else 0.42, 60, HealthLevel.WATCH, "lost 30 % in 60 steps and is level"),
        (lambda step: 0.6 if step < 30 else 0.1, 60, HealthLevel.WATCH, "lost 83 % in 60 steps and is level"),
        (lambda step: 0.6, 60, HealthLevel.HEALTHY, "is level at 0.600 nats, as at the start."),
        (lambda step: 0.6 - 0.0005 * step, 60, HealthLevel.HEALTHY, "has lost 4 % in 60 steps and falls by 0.0005"),
        (lambda step: 0.6 * math.exp(0.02 * step), 60, HealthLevel.ACT, "has gained 192 % in 60 steps and doubles again in 38."),
        (lambda step: 0.6 * math.exp(0.006 * step), 60, HealthLevel.WATCH, "has gained 38 % in 60 steps and doubles in 120 more."),
        (lambda step: 0.6 if step < 4 else 0.1 + 0.002 * step, 60, HealthLevel.WATCH, "and rises by 0.0020 nats a step now."),
        (collapse, 0, HealthLevel.NO_DATA, "No step has been reported."),
        (lambda step: math.nan, 9, HealthLevel.WATCH, "The entropy of step 9 is NaN."),
        (collapse, 2, HealthLevel.HEALTHY, "Entropy is 0.578 nats; its pace is known from the 5th step on."),
        (lambda step: math.nan if step == 60 else 0.6, 60, HealthLevel.WATCH, "The entropy of step 60 is NaN."),
        (lambda step: 0.0, 60, HealthLevel.HEALTHY, "Entropy is level, at 0.000 nats."),
    ],
)  # fmt: skip
def test_level_and_sentence_of_a_course(
    course: Callable[[int], float], steps: int, level: HealthLevel, words: str
) -> None:
    found = diagnose(run(course, steps))
    assert words in found.message
    assert found.level == level


def test_only_a_clear_fall_is_extrapolated() -> None:
    scatter = random.Random(0)
    noisy = diagnose(run(lambda step: scatter.gauss(0.6, 0.06), 60))
    assert (noisy.level, noisy.halving_steps, noisy.steps_to_three_quarters_lost) == (HealthLevel.HEALTHY, None, None)
    rising = diagnose(run(lambda step: 0.6 + 0.01 * step, 60))
    assert rising.slope == pytest.approx(0.01)
    assert (rising.halving_steps, rising.steps_to_three_quarters_lost) == (None, None)


def test_one_odd_step_does_not_move_the_slope() -> None:
    values = [0.6 - 0.002 * step for step in range(20)]
    values[17] = 5.0
    slope = slope_of(range(20), values)
    assert slope is not None
    assert slope.value == pytest.approx(-0.002, rel=0.02)
    assert slope.direction == -1
    assert slope_of(range(4), values[:4]) is None


@pytest.mark.parametrize("persistence", [0.0, 0.6])
def test_a_level_course_seldom_has_a_clear_slope(persistence: float) -> None:
    """Of 90 % intervals one in ten misses 0; with steps that resemble each other not many more."""
    scatter = random.Random(1)
    misses = 0
    for _ in range(200):
        values, rest = [], 0.0
        for _ in range(20):
            rest = persistence * rest + scatter.gauss(0, 0.01)
            values.append(0.6 + rest)
        slope = slope_of(range(20), values)
        misses += slope is not None and slope.direction != 0
    assert misses < (40 if persistence == 0 else 70)


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (Status.FINISHED, "", "Finished: entropy lost 58 % over 41 steps."),
        (Status.FAILED, "Traceback\nValueError: bad batch.\n", "Failed: ValueError: bad batch. Entropy lost 58 % over 41 steps."),
        (Status.ENDED, "", "Ended: entropy lost 58 % over 41 steps."),
    ],
)  # fmt: skip
def test_an_ended_run_is_over_and_needs_no_control(status: Status, error: str, message: str) -> None:
    found = diagnose(run(collapse, 41, status=status, error=error, sums=[sums(-4.0)]))
    assert (found.level, found.message, found.suggestion) == (HealthLevel.ACT, message, None)


def test_a_silent_run_is_watched() -> None:
    level = diagnose(run(lambda step: 0.6, 41, status=Status.SILENT))
    assert level.level == HealthLevel.WATCH
    assert level.message.startswith("No report has come for a while")


@pytest.mark.parametrize(
    ("entropy", "target", "level", "words"),
    [
        (0.31, 0.3, HealthLevel.HOLDING, "Entropy is held at 0.310 nats, 3 % above its target of 0.300 nats."),
        (0.21, 0.3, HealthLevel.WATCH, "Entropy is 30 % below its target of 0.300 nats and level."),
        (0.45, 0.3, HealthLevel.HEALTHY, "Entropy is 50 % above its target of 0.300 nats and level."),
    ],
)
def test_a_held_entropy_is_counted_from_its_target(
    entropy: float, target: float, level: HealthLevel, words: str
) -> None:
    found = diagnose(run(lambda step: 0.6 if step < 30 else entropy, 60, target=target))
    assert (found.level, found.message, found.target) == (level, words, target)


def test_a_control_that_holds_ends_the_alarm_while_it_does() -> None:
    verdict = verdict_of(VerdictState.HOLDS)
    active = version(Control(method="clip_v", mu_low=1.0, mu_high=1.0))
    held = run(lambda step: max(collapse(step), collapse(40)), 60, verdict=verdict, active=active, newest=active)
    found = diagnose(held)
    assert found.level == HealthLevel.HOLDING
    assert (
        found.message == "Entropy has held at 0.221 nats for 39 steps; before the push it fell by 0.0081 nats a step."
    )
    assert diagnose(replace(run(collapse, 60), verdict=verdict, active=active, newest=active)).level == HealthLevel.ACT


def test_the_cause_is_the_largest_quadrant_with_its_share() -> None:
    parts = {"change/negative_low": -0.6, "change/positive_high": -0.3, "change/positive_low": 0.5}
    falling = diagnose(run(collapse, 41, parts=[parts, parts])).cause
    assert falling is not None
    assert (falling.quadrant, falling.mechanism) == ("change/negative_low", None)
    assert falling.share == pytest.approx(2 / 3)
    assert falling.message == "Tokens with A < 0, S_c < 0 make 67 % of the pull."
    by_bonus = parts | {"change/by_policy_loss": -0.1, "change/by_kl_penalty": -0.3}
    named = diagnose(run(collapse, 41, parts=[by_bonus])).cause
    assert named is not None
    assert named.mechanism == "change/by_kl_penalty"
    assert "kl penalty" in named.message
    assert diagnose(run(lambda step: 0.6, 41, parts=[parts])).cause is None


def sums(change: float, *, tokens: int = 100) -> WhatIfSums:
    """Ten tokens 1.4 sigma below the centre and five beyond 3 make the whole change."""
    near, far = ((TokenGroup.NEGATIVE_DECREASING * SIDES) * len(EDGES) + EDGES.index(mu) for mu in (1.4, 3.0))
    table = BinSums((near, far), (10, 5), (0.8 * change, 0.4 * change))
    return WhatIfSums(tokens=tokens, change_sum=change, by_method={"clip_v": table})


def test_the_suggestion_is_the_cheapest_control_of_the_last_steps() -> None:
    steps = [sums(-4.0), sums(-2.0, tokens=200)]
    found = diagnose(run(collapse, 41, sums=steps, gain=0.5)).suggestion
    assert found is not None
    control = Control.from_document(found.control)
    assert (control.method, control.mu_low, control.mu_high, control.scope) == ("clip_v", 1.4, 1.4, "decreasing")
    each = [what_if(one, 1.4, 1.4, control.scope, control.method) for one in steps]
    assert found.clip_fraction == pytest.approx((each[0].clip_fraction + 2 * each[1].clip_fraction) / 3)
    assert found.clip_fraction_std == pytest.approx(abs(each[0].clip_fraction - each[1].clip_fraction) / math.sqrt(2))
    assert found.change_before == pytest.approx(0.5 * -6.0 / 300)
    assert found.change_after == pytest.approx(
        0.5 * (each[0].unit_predicted_change + 2 * each[1].unit_predicted_change) / 3
    )
    assert found.stops
    assert found.message == "Clip_V µ 1.4 would stop it: clips 10.0 %, ΔH −0.0100 → 0.0020 nats a step."
    assert "halves again" in control.reason


def test_a_suggestion_before_the_gain_is_known_names_no_change() -> None:
    found = diagnose(run(collapse, 41, sums=[sums(-4.0)])).suggestion
    assert found is not None
    assert (found.change_before, found.change_after) == (None, None)
    assert found.message == "Clip_V µ 1.4 would stop it: clips 15.0 %."


def test_the_change_before_is_that_under_the_active_control() -> None:
    active = version(Control(method="clip_v", mu_low=3.0, mu_high=3.0))
    found = diagnose(run(collapse, 41, sums=[sums(-4.0)], gain=1.0, active=active, newest=active)).suggestion
    assert found is not None
    assert found.change_before == pytest.approx(-0.024)
    assert found.change_after == pytest.approx(0.008)


@pytest.mark.parametrize(
    ("newest", "offered"),
    [
        ({"mu_low": 1.4, "mu_high": 1.4}, False),
        ({"mu_low": 1.0, "mu_high": 1.5, "scope": "all"}, False),
        ({"mu_low": 3.0, "mu_high": 3.0}, True),
        ({"mu_low": 1.4}, True),
        ({"mu_low": 1.4, "mu_high": 1.4, "scope": "positive"}, True),
    ],
)
def test_what_is_requested_is_not_suggested_again(newest: dict[str, Any], offered: bool) -> None:
    control = version(Control(method="clip_v", **({"scope": "decreasing"} | newest)))
    assert (diagnose(run(collapse, 41, sums=[sums(-4.0)], newest=control)).suggestion is not None) == offered
    refused = replace(control, state=State.REJECTED)
    assert diagnose(run(collapse, 41, sums=[sums(-4.0)], newest=refused)).suggestion is not None


def test_a_control_that_was_too_weak_is_followed_by_a_stronger_one() -> None:
    newest = version(Control(method="clip_v", mu_low=1.4, mu_high=1.0, scope="all"))
    verdict = verdict_of(VerdictState.TOO_WEAK)
    weak = run(collapse, 41, sums=[sums(-4.0)], gain=1.0, newest=newest, active=newest, verdict=verdict)
    found = diagnose(weak).suggestion
    assert found is not None
    control = Control.from_document(found.control)
    assert (control.method, control.mu_low, control.mu_high, control.scope) == ("clip_v", 0.5, 0.5, "decreasing")
    assert found.message.startswith("Clip_V µ 0.5 is stronger than v3, which was too weak: clips 15.0 %, ΔH ")
    for given in (None, replace(verdict, state=VerdictState.PENDING), replace(verdict, version=2)):
        assert diagnose(replace(weak, verdict=given)).suggestion is None
    strongest = version(Control(method="clip_v", mu_low=0.1, mu_high=0.1))
    assert diagnose(replace(weak, newest=strongest)).suggestion is None


def test_nothing_is_suggested_where_nothing_is_needed_or_helps() -> None:
    assert diagnose(run(collapse, 41)).suggestion is None  # no sums
    assert diagnose(run(collapse, 41, sums=[sums(4.0)])).suggestion is None  # these tokens raise it
    assert diagnose(run(collapse, 12, sums=[sums(-4.0)])).suggestion is None  # healthy
    assert diagnose(run(lambda step: 0.6 if step < 30 else 0.1, 60, sums=[sums(-4.0)])).suggestion is None  # level


def test_a_control_that_leaves_most_of_the_change_is_not_suggested() -> None:
    cell = TokenGroup.NEGATIVE_DECREASING * SIDES * len(EDGES) + EDGES.index(2.0)
    little, most = (
        WhatIfSums(tokens=100, change_sum=-4.0, by_method={"clip_v": BinSums((cell,), (5,), (change,))})
        for change in (-1.0, -3.0)
    )
    assert diagnose(run(collapse, 41, sums=[little])).suggestion is None
    found = diagnose(run(collapse, 41, sums=[most], gain=0.5)).suggestion
    assert found is not None
    assert not found.stops
    assert found.message == "Clip_V µ 2.0 would slow it: clips 5.0 %, ΔH −0.0200 → −0.0050 nats a step."


def test_a_hold_is_left_its_time() -> None:
    hold = version(Control(hold={"target_entropy": 0.3}))
    judged = verdict_of(VerdictState.PENDING)
    falling = run(collapse, 41, sums=[sums(-4.0)], newest=hold, active=hold, target=0.5, verdict=judged)
    assert diagnose(falling).suggestion is None
    failed = replace(falling, verdict=replace(judged, state=VerdictState.TOO_WEAK))
    assert diagnose(failed).suggestion is not None


def test_a_slope_that_may_be_steep_is_not_called_level() -> None:
    scatter = random.Random(3)
    found = diagnose(run(lambda step: 0.6 if step < 30 else scatter.gauss(0.3, 0.05), 60))
    assert found.message == "Entropy has lost 54 % in 60 steps and has no clear trend over the last 20, at 0.278 nats."
