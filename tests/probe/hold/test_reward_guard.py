"""A reward that falls is distinguished from one that only jitters."""

from __future__ import annotations

import random

import pytest

from isentrope.hold.reward_guard import REWARD_WINDOW, own_fall, reward_falls


def first_alarm(rewards: list[float], own: float = 0.0) -> int | None:
    return next(
        (count for count in range(len(rewards) + 1) if reward_falls(own, rewards[:count])), None
    )


@pytest.mark.parametrize("slope", [0.001, 1.0])
def test_a_noise_free_turn_is_found_at_any_scale(slope: float) -> None:
    rewards = [slope * min(step, 120 - step) for step in range(120)]
    alarm = first_alarm(rewards)
    assert alarm is not None
    assert 60 < alarm < 60 + REWARD_WINDOW


@pytest.mark.parametrize("seed", range(5))
def test_a_turn_within_noise_is_found_later(seed: int) -> None:
    noise = random.Random(seed)
    alarm = first_alarm(
        [0.5 - 0.005 * max(0, step - 40) + noise.gauss(0, 0.05) for step in range(120)]
    )
    assert alarm is not None
    assert alarm > 45


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("slope", [0.0, 0.002])
def test_noise_is_no_fall(seed: int, slope: float) -> None:
    noise = random.Random(seed)
    assert first_alarm([slope * step + noise.gauss(0, 0.05) for step in range(150)]) is None


def test_a_constant_reward_is_no_fall() -> None:
    assert first_alarm([0.4] * 100) is None


def test_a_fall_the_run_had_before_is_not_the_hold_s() -> None:
    falling = [1 - 0.002 * step for step in range(100)]
    assert first_alarm(falling) == REWARD_WINDOW
    assert own_fall(falling[:40]) == pytest.approx(0.002)
    assert first_alarm(falling[40:], own_fall(falling[:40])) is None
    assert own_fall(falling[:5]) == own_fall(falling[::-1]) == 0.0
