"""The guard of a control: what it calls harm, and what it does not."""

from __future__ import annotations

import json
import random

import pytest

from isentrope_wire.control import Control
from isentrope_wire.diagnosis.course import Course
from isentrope_wire.diagnosis.guard import ControlGuard, Overshoot, lost_reward
from isentrope_wire.numbers import document_of, read_exactly

CLIP = Control(method="clip_v", mu_low=1.0, mu_high=1.0, scope="decreasing")


def watch(
    rise: float, reward_change: float, *, control: Control = CLIP, steps: int = 60, seed: int = 0
) -> list[Overshoot]:
    """What is found where the entropy falls for 40 steps, a control is applied, and both move so a
    step from then on."""
    draw, course, guard = random.Random(seed), Course(), ControlGuard()
    entropy, reward, harms = 2.0, 0.8, []
    for step in range(1, 41 + steps):
        under = step > 40
        entropy += rise if under else -0.01
        reward += reward_change if under else 0.0
        version = int(under)
        course.add(step, max(entropy + draw.gauss(0, 0.01), 0.05), is_new_control=step == 41)
        acting = control if under else None
        harm = guard.step(version, acting, reward + draw.gauss(0, 0.03), course)
        guard = read_exactly(ControlGuard, json.loads(json.dumps(document_of(guard))))
        harms += [] if harm is None else [harm]
    return harms


def test_a_control_that_ruins_the_run_is_found_soon() -> None:
    first = watch(rise=0.05, reward_change=-0.02)[0]
    assert first.steps <= 15
    assert first.reward_lost > 0.08
    assert first.entropy_change > 0.2
    assert first.before == Control()
    assert first.message.startswith("Version 1 overshoots: entropy +")


def test_an_entropy_past_its_early_level_is_harm() -> None:
    """Also where no reward was reported."""
    harms = watch(rise=0.02, reward_change=0.0)
    assert harms
    assert {harm.reward_lost for harm in harms} == {0.0}


@pytest.mark.parametrize("seed", range(20))
def test_a_cure_is_no_harm(seed: int) -> None:
    assert watch(rise=0.0, reward_change=0.0, seed=seed) == []
    assert watch(rise=0.003, reward_change=0.001, seed=seed) == []


def test_a_hold_has_a_guard_of_its_own() -> None:
    hold = Control(hold={"target_entropy": 1.6})
    assert watch(rise=0.05, reward_change=-0.02, control=hold) == []


def test_a_slow_loss_is_certain_by_levels() -> None:
    draw = random.Random(1)
    before = [0.36 + draw.gauss(0, 0.04) for _ in range(30)]
    slow = [0.36 - 0.0017 * step + draw.gauss(0, 0.04) for step in range(100)]
    assert lost_reward(before, slow[:10], 10) == 0
    assert lost_reward(before, slow, 100) == pytest.approx(0.145, abs=0.03)
    assert lost_reward(before[:5], slow, 100) == 0


def test_a_fall_from_before_is_not_its_harm() -> None:
    falling = [0.9 - 0.004 * step for step in range(130)]
    assert lost_reward(falling[:30], falling[30:], 100) == 0
    flat = [0.8] * 30
    assert lost_reward(flat, falling[30:], 100) == pytest.approx(0.8 - sum(falling[-30:]) / 30)


@pytest.mark.parametrize(("steps_before", "most"), [(30, 2), (70, 0)])
def test_a_noisy_fall_from_before_seldom_counts_as_harm(steps_before: int, most: int) -> None:
    """Of twenty runs whose reward falls steadily before the control and under it, by 0.003 a step
    with ten times as much noise; while a loss that begins with it is found."""
    alarms, losses = 0, 0
    for seed in range(20):
        draw = random.Random(seed)
        noise = [draw.gauss(0, 0.03) for _ in range(steps_before + 60)]
        falling = [0.6 - 0.003 * step + more for step, more in enumerate(noise)]
        lost = [0.6 - 0.005 * max(0, step - steps_before) + more for step, more in enumerate(noise)]
        for steps in range(10, 60, 6):
            end = steps_before + steps
            if lost_reward(falling[:steps_before], falling[steps_before:end], steps):
                alarms += 1
                break
        losses += lost_reward(lost[:steps_before], lost[steps_before:], 60) > 0
    assert alarms <= most
    assert losses >= 19


def test_a_level_entropy_seldom_counts_as_harm() -> None:
    """Of thirty runs without an effect, whose noise resembles the step before, in one at most."""
    alarms = 0
    for seed in range(30):
        draw, course, guard, harms = random.Random(seed), Course(), ControlGuard(), 0
        entropy = reward = 0.0
        for step in range(120):
            entropy = 0.5 * entropy + draw.gauss(0, 0.026)
            reward = 0.5 * reward + draw.gauss(0, 0.04)
            course.add(step, 1 + entropy, is_new_control=step == 40)
            acting = CLIP if step >= 40 else None
            harms += guard.step(int(step >= 40), acting, 0.5 + reward, course) is not None
        alarms += harms > 0
    assert alarms <= 1


@pytest.mark.parametrize(
    ("alike", "change", "least", "most"), [(0.8, 0.0, 0, 2), (0.4, -0.001, 22, 40)]
)
def test_autocorrelated_rewards_alarm_by_their_loss_alone(
    alike: float, change: float, least: int, most: int
) -> None:
    """Of forty runs of a hundred steps under a control."""
    alarms = 0
    for seed in range(40):
        draw, noise, rewards = random.Random(seed), 0.0, list[float]()
        for step in range(160):
            noise = alike * noise + draw.gauss(0, 0.05 * (1 - alike**2) ** 0.5)
            rewards.append(0.6 + change * max(0, step - 60) + noise)
        before, since = rewards[:60], rewards[60:]
        alarms += any(lost_reward(before, since[:steps], steps) for steps in range(10, 101, 10))
    assert least <= alarms <= most
