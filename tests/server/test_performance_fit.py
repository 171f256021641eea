"""The entropy-performance fit: coefficients, intervals with their coverage, checks, refusals and
forecasts.

The series of known truth are those of `tests.benchmarks.performance_fit`, which measures them with
more seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isentrope_server.performance.fit import (
    CONFIDENCE,
    FitRefused,
    PerformanceFit,
    block_means,
    fit_performance,
    forecast,
)
from isentrope_server.performance.slow_noise import Floats, regress, smooth_trend
from tests.benchmarks.performance_fit import FALSE, NOISE, TRUE, A, B, curve, drift, falling, repeat


def noisy(entropies: Floats, seed: int, noise: float = NOISE) -> tuple[Floats, Floats]:
    return entropies, curve(entropies) + noise * np.random.default_rng(seed).normal(
        size=len(entropies)
    )


def passed(fit: PerformanceFit, code: str) -> bool:
    return {check.code: check.passed for check in fit.checks}[code]


def test_exact_without_noise() -> None:
    entropies = np.linspace(2, 0.3, 400)
    fit = fit_performance(entropies, curve(entropies))
    assert fit.ceiling is not None
    assert (fit.a.value, fit.b.value, fit.ceiling.value) == pytest.approx((A, B, B - A))
    assert fit.r2 == pytest.approx(1)
    assert fit.conclusive
    assert fit.rewards_at(np.ones(1))[0].value == pytest.approx(B - A * math.e)
    assert fit.a.high - fit.a.low < 1e-8


@pytest.mark.parametrize(
    ("case", "steps", "least"),
    [
        ("noise 0.03", 20, 0.87),
        ("64 rewards of 0 or 1 a step", 60, 0.87),
        ("entropy to and fro", 200, 0.83),
        ("AR(1) 0.99", 600, 0.85),
        ("AR(1) 0.99 and noise 0.03", 600, 0.83),
        ("entropy misread by 0.1", 200, 0.87),
        ("entropy jumps by 0.1 from batch to batch", 200, 0.87),
    ],
)
def test_true_curves_are_covered_and_conclusive(case: str, steps: int, least: float) -> None:
    found = repeat(TRUE[case], steps, 60)
    assert found.fits == 60
    assert least <= found.a / 60
    assert least <= found.ceiling / 60
    assert found.conclusive / 60 >= 0.87


@pytest.mark.parametrize(
    ("case", "steps"),
    [
        ("reward lags a tenth of the run", 600),
        ("entropy explodes, reward dies", 60),
        ("reward linear in H", 200),
        ("reward falls by 0.1 half-way", 60),
        ("no relation (a = 0)", 20),
    ],
)
def test_false_curves_are_not_conclusive(case: str, steps: int) -> None:
    assert repeat(FALSE[case], steps, 20).conclusive <= 2


def test_failed_check_is_named() -> None:
    bent = fit_performance(*FALSE["reward linear in H"](2000, np.random.default_rng(1)))
    changed = fit_performance(*FALSE["reward falls by 0.1 half-way"](600, np.random.default_rng(1)))
    rising = fit_performance(falling(200), 1 - noisy(falling(200), 1)[1])
    assert [check.code for check in bent.checks if not check.passed] == ["shape"]
    assert [check.code for check in changed.checks if not check.passed] == ["halves"]
    assert [check.code for check in rising.checks if not check.passed] == ["slope"]
    assert rising.a.high < 0
    assert all(fit.ceiling is None for fit in (bent, changed, rising))


def test_no_ceiling_far_from_seen_entropies() -> None:
    far = np.linspace(4.11, 4.03, 200)
    fit = fit_performance(
        far, 1.2 - 0.01 * np.exp(far) + 0.001 * np.random.default_rng(1).normal(size=200)
    )
    assert (fit.conclusive, fit.ceiling, passed(fit, "reach")) == (True, None, False)
    assert fit.lowest_entropy == pytest.approx(
        math.log(2 * math.exp(4.03) - math.exp(4.11)), abs=0.01
    )
    assert fit.reaches(4.0)
    assert not fit.reaches(3.9)
    assert not fit.reaches(4.3)


@pytest.mark.parametrize(("steps", "decay"), [(20, 4), (50, 4), (200, 20), (400, 100), (2000, 100)])
def test_ceiling_after_clean_fall(steps: int, decay: float) -> None:
    fit = fit_performance(*noisy(0.10 + 0.62 * np.exp(-np.arange(steps) / decay), 1, 0.01))
    assert fit.conclusive
    assert fit.ceiling is not None
    assert fit.ceiling.value == pytest.approx(B - A, abs=0.02)


def test_fall_within_few_steps_leaves_shape_open() -> None:
    fit = fit_performance(*noisy(0.10 + 0.62 * np.exp(-np.arange(2000) / 10), 1, 0.01))
    assert not passed(fit, "shape")
    assert fit.ceiling is None


def test_intervals_are_no_wider_than_needed() -> None:
    fits = [fit_performance(*noisy(falling(400), seed)) for seed in range(60)]
    widths = [(fit.a.high - fit.a.low) / 2 for fit in fits]
    assert np.mean(widths) == pytest.approx(1.645 * np.std([fit.a.value for fit in fits]), rel=0.45)


def test_drift_shows_as_autocorrelation() -> None:
    entropies, random = falling(600), np.random.default_rng(1)
    calm = fit_performance(*noisy(entropies, 2)).regression.autocorrelation
    slow = fit_performance(
        entropies, curve(entropies) + drift(600, random, 0.99)
    ).regression.autocorrelation
    assert calm < 0.5
    assert slow > 0.8


def test_regression_is_least_squares_in_white_noise() -> None:
    random = np.random.default_rng(1)
    design = np.stack([np.ones(50), random.normal(size=50)], axis=1)
    values = design @ [1.0, 2.0] + random.normal(size=50)
    found = regress(design, values, 1)
    assert found.weights.sum() == pytest.approx(1)
    assert found.mean == pytest.approx(np.linalg.lstsq(design, values)[0], abs=0.1)
    centre, low, high = found.estimates(np.array([[0.0, 1.0]]), CONFIDENCE)[0]
    assert (high - low) / 2 == pytest.approx(1.645 * math.sqrt(found.covariance[1, 1]), rel=0.1)
    assert low < centre < high


def test_trend_is_separated_from_noise() -> None:
    times = np.linspace(0, 1, 50)
    trend, covariance, scatter = smooth_trend(
        np.sin(3 * times) + 0.1 * np.random.default_rng(1).normal(size=50)
    )
    errors = trend - np.sin(3 * times)
    assert scatter == pytest.approx(0.1, rel=0.2)
    assert 0.3 < float((errors**2).mean() / np.diagonal(covariance).mean()) < 3
    line, _, none = smooth_trend(4 + 5 * times)
    assert line == pytest.approx(4 + 5 * times)
    assert none < 1e-6


@pytest.mark.parametrize(
    ("entropies", "rewards", "code"),
    [
        (np.linspace(2, 1, 19), np.linspace(0, 1, 19), "too_few_steps"),
        (np.array([]), np.array([]), "too_few_steps"),
        (np.ones(100), np.linspace(0, 1, 100), "entropy_not_moved"),
        (
            1 + 0.02 * np.random.default_rng(1).normal(size=300),
            np.linspace(0, 1, 300),
            "entropy_not_moved",
        ),
        (np.linspace(2, 1, 100), np.full(100, 0.25), "reward_constant"),
    ],
)
def test_undetermined_fit_is_refused(entropies: Floats, rewards: Floats, code: str) -> None:
    with pytest.raises(FitRefused) as refused:
        fit_performance(entropies, rewards)
    assert refused.value.code == code
    assert str(refused.value)


def test_forecast_from_first_steps() -> None:
    errors, held = [], 0
    for seed in range(60):
        entropies, rewards = noisy(0.3 + 1.7 * np.exp(-4 * np.linspace(0, 1, 400)), seed, 0.02)
        entropies[-20:] += 0.1  # an entropy that the first steps never saw
        rewards[-20:] += curve(entropies[-20:]) - curve(entropies[-20:] - 0.1)
        found = forecast(np.arange(400) + 5, entropies, rewards, horizon=400)
        assert (found.through_step, found.final_steps) == (64, 20)
        assert found.actual == pytest.approx(rewards[-20:].mean())
        assert found.at_entropy == pytest.approx(entropies[-20:].mean(), abs=0.01)
        errors.append(found.error)
        held += found.reward.low <= curve(np.array([found.at_entropy]))[0] <= found.reward.high
    assert np.sqrt(np.mean(np.square(errors))) < 0.03
    assert held / 60 >= 0.8


@pytest.mark.parametrize(
    ("steps", "horizon", "code"),
    [(200, 2000, "too_early"), (100, 100, "too_few_steps"), (400, 400, "too_far")],
)
def test_forecast_is_refused(steps: int, horizon: int, code: str) -> None:
    entropies, rewards = noisy(
        np.linspace(2.0, 0.3, steps), 1
    )  # the first 15 % fall by a quarter of a nat
    with pytest.raises(FitRefused) as refused:
        forecast(np.arange(steps), entropies, rewards, horizon=horizon)
    assert refused.value.code == code


def test_forecast_counts_steps_by_number() -> None:
    entropies, rewards = noisy(0.3 + 1.7 * np.exp(-4 * np.linspace(0, 1, 200)), 1)
    every_tenth = np.arange(200) * 10  # 2000 steps, a reward at every tenth
    assert forecast(every_tenth, entropies, rewards, horizon=2000).through_step == 290


def test_blocks_cover_every_step_once() -> None:
    values = np.arange(103.0)
    means = block_means(values, 50)
    assert len(means) == 50
    assert np.average(means, weights=np.diff(np.linspace(0, 103, 51).astype(int))) == pytest.approx(
        51
    )
    assert block_means(values, 200) is values
