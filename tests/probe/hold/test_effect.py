"""The gain of a step's unit prediction is found beside a drift, in its own units, and without momentum's full memory."""

from __future__ import annotations

import random

import pytest

from isentrope.hold import WARM_UP, Effect


def fed(steps: int, *, gain: float, drift: float, level: float, spread: float, scale: float = 1.0) -> Effect:
    """Unit predictions that hover around a level, and changes that follow their average with a little noise."""
    rng, effect = random.Random(1), Effect()
    for _ in range(steps):
        x = effect.regressor(scale * rng.gauss(level, spread), 0.9)
        effect.learn(x, gain * x / scale + drift + rng.gauss(0, 1e-5))
    return effect


def through_the_origin(effect: Effect) -> float:
    return effect._xy / effect._xx


def test_the_gain_of_a_held_entropy_is_not_mistaken_for_its_standing_still() -> None:
    # Held: the mean change is 2 * 0.0015 - 0.003 = 0.
    effect = fed(200, gain=2.0, drift=-0.003, level=0.0015, spread=0.003)
    assert effect.gain == pytest.approx(2.0, rel=0.3)
    assert through_the_origin(effect) < 0.6 * (effect.gain or 0.0)


def test_a_gain_counts_per_unit_of_what_is_predicted() -> None:
    one, thousand = (
        fed(100, gain=2.0, drift=-0.001, level=0.002, spread=0.003, scale=scale) for scale in (1.0, 1000.0)
    )
    assert one.gain is not None
    assert thousand.gain == pytest.approx(one.gain / 1000)


def test_a_run_just_begun_takes_its_fall_for_the_effect_of_its_updates() -> None:
    effect = fed(8, gain=2.0, drift=0.0, level=-0.01, spread=1e-5)
    assert effect.gain == pytest.approx(2.0, rel=0.02)
    # Level and change hardly vary: a free line would have any slope.
    level = fed(8, gain=0.0, drift=-0.02, level=-0.01, spread=1e-5)
    assert level.gain == pytest.approx(2.0, rel=0.05)


def test_there_is_no_gain_before_some_steps_were_observed() -> None:
    assert fed(WARM_UP - 1, gain=2.0, drift=0.0, level=-0.01, spread=0.001).gain is None
    assert fed(WARM_UP, gain=2.0, drift=0.0, level=-0.01, spread=0.001).gain is not None


def test_an_effect_fades_faster_than_momentum() -> None:
    effect = Effect()
    averages = [effect.regressor(unit, 0.9) for unit in [1.0, *[0.0] * 20]]
    assert averages[0] == 1.0
    assert averages[20] == pytest.approx(0.19 * 0.81**20 / (1 - 0.81**21))
    assert Effect.memory(0.0) == 0.0
    assert Effect.memory(0.9999) < 0.99


def test_a_gain_that_changed_is_learnt_anew() -> None:
    rng, effect = random.Random(1), Effect()
    for step in range(300):
        x = effect.regressor(rng.gauss(0.0, 0.003), 0.9)
        effect.learn(x, (2.0 if step < 100 else 0.7) * x)
    assert effect.gain == pytest.approx(0.7, rel=0.15)
