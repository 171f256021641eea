"""What a control is predicted to do, and the verdict on hand-made courses before and after it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from isentrope_wire.control import Control
from isentrope_wire.control_answers import PredictedEffect, Verdict, VerdictState
from isentrope_wire.diagnosis.verdict import predicted_effect, verdict_on
from tests.wire.test_diagnosis import sums, version

CLIP = Control(method="clip_v", mu_low=1.0, mu_high=1.0)
PREDICTED = PredictedEffect(steps=10, clip_fraction=0.12, clip_fraction_std=0.01, change=0.0, change_std=0.0005)


def judge(
    before: float = -0.004,
    after: float = 0.0,
    *,
    steps: int = 20,
    clipped: float = 0.12,
    predicted: PredictedEffect | None = PREDICTED,
    control: Control = CLIP,
    **known: Any,
) -> Verdict:
    """The verdict on a control that is applied at step 21, with these slopes before and after it."""
    scatter = random.Random(0)
    at = {step: 0.6 + (before if step <= 21 else after) * (step - 21) for step in range(1, 22 + steps)}
    verdict = verdict_on(
        version(control, predicted=predicted),
        {step: value + scatter.gauss(0, 0.002) for step, value in at.items()},
        {step: 0.0 if step < 21 else clipped for step in range(1, 22 + steps)},
        **known,
    )
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    ("course", "state", "message"),
    [
        ({"after": 0.0}, VerdictState.HOLDS, "Both within the predicted spread."),
        ({"after": -0.0008, "clipped": 0.05}, VerdictState.HOLDS, "Clips less than predicted, and holds."),
        ({"after": -0.003}, VerdictState.TOO_WEAK, "Clips as predicted, but too little."),
        ({"after": -0.003, "clipped": 0.02}, VerdictState.TOO_WEAK, "Clips less than predicted, and too little."),
        ({"after": 0.004}, VerdictState.TOO_STRONG, "Clips as predicted, but too much."),
        ({"after": 0.004, "predicted": replace(PREDICTED, change=0.004)}, VerdictState.RISES, "Clips as predicted, and rises as predicted."),
        ({"before": 0.0, "after": 0.004}, VerdictState.RISES, "Clips as predicted, but rises by 0.0040 nats a step."),
        ({"before": 0.0, "after": -0.004}, VerdictState.TOO_WEAK, "Clips as predicted, but too little."),
        ({"before": 0.004, "after": -0.004}, VerdictState.TOO_STRONG, "Clips as predicted, but too much."),
        ({"before": 0.0, "after": 0.0}, VerdictState.HOLDS, "Both within the predicted spread."),
        ({"predicted": None}, VerdictState.HOLDS, "Entropy holds."),
        ({"after": -0.003, "predicted": None}, VerdictState.TOO_WEAK, "Entropy falls by 0.0030 nats a step."),
        ({"after": -0.003, "steps": 8}, VerdictState.PENDING, "No verdict yet: 8 of 20 steps."),
        ({"after": -0.003, "steps": 9, "replaced_at": 30}, VerdictState.TOO_WEAK, "Clips as predicted, but too little."),
        ({"after": -0.003, "steps": 30, "replaced_at": 24}, VerdictState.PENDING, "No verdict yet: 3 of 20 steps."),
    ],
)  # fmt: skip
def test_the_verdict_compares_before_and_after(course: dict[str, Any], state: VerdictState, message: str) -> None:
    verdict = judge(**course)
    assert (verdict.state, verdict.message) == (state, message)


def test_a_verdict_in_numbers() -> None:
    verdict = judge(after=-0.001)
    assert (verdict.version, verdict.steps, verdict.steps_needed) == (3, 20, 20)
    assert (verdict.clip_fraction.before, verdict.clip_fraction.predicted) == (0.0, 0.12)
    assert verdict.clip_fraction.realised == pytest.approx(0.12)
    assert verdict.slope.before == pytest.approx(-0.004, abs=2e-4)
    assert verdict.slope.predicted == 0.0
    assert verdict.slope.realised == pytest.approx(-0.001, abs=2e-4)
    # What comes after its twenty steps does not change it.
    assert judge(after=-0.001, steps=20) == judge(after=-0.001, steps=40)


@pytest.mark.parametrize(
    ("before", "after", "target", "state"),
    [
        (0.0, 0.0, 0.6, VerdictState.HOLDS),
        (0.0, -0.004, 0.2, VerdictState.PENDING),
        (0.0, 0.0, 0.2, VerdictState.TOO_WEAK),
        (0.0, -0.004, 0.8, VerdictState.TOO_WEAK),
    ],
    ids=["near", "on its way", "far and level", "away from it"],
)
def test_a_hold_is_judged_by_its_target(before: float, after: float, target: float, state: VerdictState) -> None:
    control = Control(hold={"target_entropy": target})
    assert judge(before, after, control=control, predicted=None, target=target).state == state


def test_only_an_applied_and_pushed_version_has_a_verdict() -> None:
    for known in ({"applied_step": None}, {"version": 0}):
        assert verdict_on(version(CLIP, **known), {1: 0.6}, {}) is None


def test_without_a_measured_step_nothing_is_compared() -> None:
    verdict = verdict_on(version(CLIP, predicted=PREDICTED), {}, {})
    assert verdict is not None
    assert (verdict.state, verdict.steps) == (VerdictState.PENDING, 0)
    assert (verdict.slope.before, verdict.slope.realised, verdict.clip_fraction.realised) == (None, None, None)


def test_an_effect_is_predicted_from_each_step() -> None:
    effect = predicted_effect(Control(method="clip_v", mu_low=3.0), [sums(-4.0), sums(-2.0)], 0.5)
    assert effect is not None
    assert (effect.steps, effect.clip_fraction_std) == (2, 0.0)
    assert effect.clip_fraction == pytest.approx(0.05)
    # The five tokens beyond 3 make 40 % of the change.
    assert effect.change == pytest.approx(0.5 * 0.6 * -0.03)
    assert effect.change_std is not None
    unknown = predicted_effect(CLIP, [sums(-4.0)], None)
    assert unknown is not None
    assert (unknown.change, unknown.clip_fraction_std) == (None, 0.0)


@pytest.mark.parametrize("control", [Control(), Control(method="clip_cov"), Control(hold={"target_entropy": 0.5})])
def test_only_fixed_thresholds_are_predicted(control: Control) -> None:
    assert predicted_effect(control, [sums(-4.0)], 0.5) is None


def test_a_cap_limits_what_is_predicted() -> None:
    capped = Control(method="clip_v", mu_low=1.0, parameters={"max_fraction": 0.05})
    effect = predicted_effect(capped, [sums(-4.0)], 0.5)
    assert effect is not None
    assert effect.clip_fraction == pytest.approx(0.05)
