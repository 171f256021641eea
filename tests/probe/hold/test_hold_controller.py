"""Decisions of a hold controller over the steps: what is pushed beside the hold, and the reward
guard."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from isentrope.hold.controller import HoldController
from isentrope_wire.control import Control
from isentrope_wire.hold_action import Action, HoldStatus, hold_labels, hold_scalars, undecided
from isentrope_wire.hold_decision import SLEW_FACTOR, SLEW_STEP
from isentrope_wire.reports import ControlSnapshot, StepReport
from tests.probe.hold.collapsing_plant import step_sums

HELD = ControlSnapshot(
    version=3, control=Control(hold={"target_entropy": 0.5}), author="ada", requested_at=0.0
)
SUMS = step_sums(lowering=0.09, raising=0.05)


def report(step: int) -> StepReport:
    """Of an entropy that falls towards its target and beyond."""
    scalars = {
        "entropy/mean": 0.6 - 0.01 * step,
        "entropy/unit_predicted_change": -0.04 + 0.001 * step,
        "entropy/observed_change": -0.01,
        "entropy/predicted_change": -0.012,
        "entropy/gain": 0.5,
        "entropy/prediction_r2": 0.4,
        "entropy/prediction_sign_agreement": 0.9,
    }
    return StepReport(step=step, recorded_at=0.0, scalars=scalars, control_version=3, what_if=SUMS)


def run_steps(
    controller: HoldController, steps: range, pushed: ControlSnapshot = HELD
) -> list[Action]:
    actions = []
    for step in steps:
        controller.begin_step(pushed, controller.decide(pushed))
        assert controller.action is not None
        actions.append(controller.action)
        controller.end_step()
        controller.learner(0.9)(report(step))
    return actions


def test_thresholds_pushed_beside_the_same_hold_do_not_interrupt_it() -> None:
    through, pushed_to, changed = HoldController(), HoldController(), HoldController()
    expected = run_steps(through, range(14))
    thresholds = Control(method="clip_v", mu_low=0.7, mu_high=0.7, hold={"target_entropy": 0.5})
    run_steps(pushed_to, range(12))
    again = run_steps(pushed_to, range(12, 14), replace(HELD, version=4, control=thresholds))
    assert again == [replace(action, version=4) for action in expected[12:]]
    assert again[-1].mu is not None
    assert pushed_to.control.mu_low == again[-1].mu < (2.0 - SLEW_STEP) / SLEW_FACTOR / 2
    # Another target begins with its own way there.
    run_steps(changed, range(12))
    other = Control(hold={"target_entropy": 0.52})
    (first,) = run_steps(changed, range(12, 13), replace(HELD, version=4, control=other))
    assert first.mu == pytest.approx((2.0 - SLEW_STEP) / SLEW_FACTOR)


def test_the_pushed_cap_and_denominator_are_counted_with() -> None:
    hold = {"target_entropy": 0.9}
    decided = []
    for parameters in ({}, {"max_fraction": 0.05}, {"denominator": "shrink"}):
        pushed = replace(HELD, control=Control(method="clip_v", hold=hold, parameters=parameters))
        controller = HoldController()
        decided.append((run_steps(controller, range(16), pushed)[-1], controller.state()))
    free, capped, shrunken = decided
    assert free[0].mu == 0.0
    assert capped[0].status == HoldStatus.LIMIT
    assert capped[0].mu == pytest.approx(1.75, abs=1e-6)
    # At the same threshold the mean over the kept is another.
    assert shrunken[0].mu == free[0].mu
    assert shrunken[1] != free[1]


def guarded(rewards: list[float], *, guard: bool = True) -> list[Action]:
    """The actions of a hold that acts at the target while the loop reports these rewards."""
    pushed = replace(HELD, control=Control(hold={"target_entropy": 0.6, "reward_guard": guard}))
    controller, actions = HoldController(), []
    for step, reward in enumerate(rewards):
        controller.begin_step(pushed, controller.decide(pushed))
        actions.append(controller.action or undecided(0))
        controller.end_step()
        steady = report(0)
        controller.learner(0.9)(
            replace(steady, step=step, scalars=dict(steady.scalars) | {"reward/mean": reward})
        )
    return actions


def test_a_reward_that_turns_ends_the_hold() -> None:
    rewards = [0.3 + 0.004 * min(step, 60) - 0.01 * max(0, step - 60) for step in range(120)]
    actions = guarded(rewards)
    held = [not action.status.is_idle for action in actions]
    ended = held.index(False, 10)
    assert 65 < ended < 90
    assert not any(held[ended:])
    assert "reward" in actions[ended].reason
    assert actions[ended].status == HoldStatus.ENDED
    # The target's line ends with it.
    assert hold_scalars(actions[ended], HELD.control) == {}
    assert hold_labels(actions[ended])["hold/state"] == "ended"
    assert all(
        action.status != HoldStatus.FALLBACK for action in guarded(rewards, guard=False)[10:]
    )


def test_a_slow_loss_of_reward_ends_the_hold() -> None:
    """From 0.36 to 0.19 in a hundred steps: no thirty of them fall by more than their noise."""
    noise = random.Random(3)
    rewards = [0.355 - 0.0017 * max(0, step - 30) + noise.gauss(0, 0.03) for step in range(140)]
    assert any(action.status == HoldStatus.ENDED for action in guarded(rewards))
    steady = [0.355 + noise.gauss(0, 0.03) for _ in range(140)]
    assert not any(action.status == HoldStatus.ENDED for action in guarded(steady))


def test_a_hold_pushed_again_begins_again() -> None:
    controller = HoldController()
    run_steps(controller, range(12))
    state: Any = json.loads(json.dumps(controller.state()))
    state["stopped"] = "The reward fell."
    controller.restore(state)
    assert run_steps(controller, range(12, 13))[0].reason == "The reward fell."
    assert (
        run_steps(controller, range(13, 15), replace(HELD, version=4))[1].status
        != HoldStatus.FALLBACK
    )
