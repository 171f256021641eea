"""The law is found where it holds, with intervals that hold as often as they say, and refused where nothing is told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from isentrope_server.api.performance_law import (
    CONFIDENCE,
    LawRefused,
    block_means,
    fit_law,
    forecast,
    t_quantile,
)
from isentrope_wire.control_answers import Estimate

Floats = NDArray[np.float64]
A, B = 0.15, 1.1


def correlated(random: np.random.Generator, count: int, rho: float, deviation: float) -> Floats:
    """An AR(1) process of this standard deviation."""
    shocks = random.normal(size=count + 100) * deviation * math.sqrt(1 - rho**2)
    values = np.zeros(count + 100)
    for index in range(1, count + 100):
        values[index] = rho * values[index - 1] + shocks[index]
    return values[100:]


def run(count: int, seed: int, *, rho: float = 0.0, white: float = 0.05, drift: float = 0.0) -> tuple[Floats, Floats]:
    """A run whose entropy falls from 2 to 0.33 nats, and whose reward follows the law with noise."""
    random = np.random.default_rng(seed)
    entropies = 0.3 + 1.7 * np.exp(-4 * np.linspace(0, 1, count)) + correlated(random, count, 0.5, 0.02)
    noise = random.normal(size=count) * white + correlated(random, count, rho, drift)
    return entropies, -A * np.exp(entropies) + B + noise


def holds(estimate: Estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


def test_without_noise_the_coefficients_are_found_exactly() -> None:
    entropies = np.linspace(2, 0.3, 400)
    fit = fit_law(entropies, -A * np.exp(entropies) + B)
    assert (fit.a.value, fit.b.value, fit.ceiling.value) == pytest.approx((A, B, B - A))
    assert fit.r2 == pytest.approx(1)
    assert fit.conclusive
    assert fit.reward_at(1.0).value == pytest.approx(B - A * math.e)
    assert fit.a.high - fit.a.low < 1e-9


@pytest.mark.parametrize(
    ("count", "noise"),
    [
        (60, {}),
        (200, {}),
        (200, {"white": 0.03, "rho": 0.9, "drift": 0.05}),
        (600, {"rho": 0.95, "drift": 0.03}),
        (2000, {"rho": 0.98, "drift": 0.02}),
        (600, {"white": 0.0, "rho": 0.5, "drift": 0.05}),
    ],
)
def test_intervals_hold_as_often_as_they_say(count: int, noise: dict[str, float]) -> None:
    runs = 150
    held = np.zeros(3)
    for seed in range(runs):
        fit = fit_law(*run(count, seed, **noise))
        held += (holds(fit.a, A), holds(fit.b, B), holds(fit.ceiling, B - A))
    # Of 150 runs, 90 % is 135 with a standard deviation of 3.7.
    assert np.all(held / runs >= CONFIDENCE - 0.07)
    assert np.all(held / runs <= CONFIDENCE + 0.07)


def test_the_autocorrelation_of_a_short_series_is_not_underestimated() -> None:
    found = [fit_law(*run(50, seed, white=0.0, rho=0.6, drift=0.05)).autocorrelation for seed in range(200)]
    assert np.mean(found) == pytest.approx(0.6, abs=0.03)


def test_intervals_are_no_wider_than_the_noise_asks_for() -> None:
    widths, errors = [], []
    for seed in range(60):
        fit = fit_law(*run(400, seed))
        widths.append((fit.a.high - fit.a.low) / 2)
        errors.append(fit.a.value - A)
    assert np.mean(widths) == pytest.approx(1.645 * np.std(errors), rel=0.35)


def test_a_reward_that_falls_with_entropy_or_ignores_it_is_not_conclusive() -> None:
    entropies, rewards = run(300, 3)
    assert not fit_law(entropies, 1 - rewards).conclusive
    assert not fit_law(entropies, np.random.default_rng(4).normal(size=300)).conclusive


@pytest.mark.parametrize(
    ("entropies", "rewards", "code"),
    [
        (np.linspace(2, 1, 19), np.linspace(0, 1, 19), "too_few_steps"),
        (np.array([]), np.array([]), "too_few_steps"),
        (np.ones(100), np.linspace(0, 1, 100), "entropy_not_moved"),
        (1 + 0.02 * np.random.default_rng(1).normal(size=300), np.linspace(0, 1, 300), "entropy_not_moved"),
        (np.linspace(2, 1, 100), np.full(100, 0.25), "reward_constant"),
    ],
)
def test_a_run_that_tells_nothing_is_refused_with_the_reason(entropies: Floats, rewards: Floats, code: str) -> None:
    with pytest.raises(LawRefused) as refused:
        fit_law(entropies, rewards)
    assert refused.value.code == code
    assert str(refused.value)


def test_the_last_rewards_are_foretold_from_the_first_steps() -> None:
    errors, held = [], 0
    for seed in range(60):
        entropies, rewards = run(400, seed, white=0.02)
        entropies[-20:] += 0.1  # an entropy that the first steps never saw
        rewards[-20:] += -A * (np.exp(entropies[-20:]) - np.exp(entropies[-20:] - 0.1))
        found = forecast(np.arange(400) + 5, entropies, rewards, horizon=400)
        assert (found.through_step, found.final_steps) == (64, 20)
        assert found.actual == pytest.approx(rewards[-20:].mean())
        assert found.at_entropy == pytest.approx(entropies[-20:].mean(), abs=0.01)
        errors.append(found.error)
        held += holds(found.reward, B - A * math.exp(found.at_entropy))
    assert np.sqrt(np.mean(np.square(errors))) < 0.03
    assert held / 60 >= 0.8


def test_a_forecast_waits_for_its_part_of_the_run_and_needs_that_to_tell_something() -> None:
    entropies, rewards = run(200, 1)
    steps = np.arange(200)
    with pytest.raises(LawRefused, match="200"):
        forecast(steps, entropies, rewards, horizon=2000)
    with pytest.raises(LawRefused, match=r"15%.*100.*20"):
        forecast(steps[:100], entropies[:100], rewards[:100], horizon=100)


def test_blocks_cover_every_step_once() -> None:
    values = np.arange(103.0)
    means = block_means(values, 50)
    assert len(means) == 50
    assert np.average(means, weights=np.diff(np.linspace(0, 103, 51).astype(int))) == pytest.approx(51)
    assert block_means(values, 200) is values


@pytest.mark.parametrize(("degrees", "quantile"), [(3, 2.3534), (5, 2.0150), (10, 1.8125), (30, 1.6973), (48, 1.6772)])
def test_quantiles_are_students(degrees: float, quantile: float) -> None:
    assert t_quantile(0.95, degrees) == pytest.approx(quantile, rel=0.01)


def test_a_forecast_counts_steps_by_their_numbers_where_rewards_are_rare() -> None:
    entropies, rewards = run(200, 1)
    every_tenth = np.arange(200) * 10  # 2000 steps, a reward at every tenth
    assert forecast(every_tenth, entropies, rewards, horizon=2000).through_step == 290
