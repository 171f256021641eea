"""The 90 % interval around a calibrated prediction covers what it says, and knows only the past."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import NamedTuple

import pytest

from isentrope.statistics.calibration import (
    FEWEST,
    WARM_UP,
    Bend,
    Calibration,
    CoupledLevel,
    Momentum,
    PredictionInterval,
    student_quantile,
)

Residual = Callable[[random.Random, int], float]
ADAM = Momentum(0.9)


def heavy_tailed(rng: random.Random, _: int) -> float:
    return rng.gauss(0, 1) / math.sqrt(sum(rng.gauss(0, 1) ** 2 for _ in range(3)) / 3)


def covered(residual: Residual, seed: int, steps: int = 400) -> tuple[float, float]:
    """Share of the steps after the 30th inside their interval, and what the run itself says at its
    end."""
    rng, calibration, average, weight, inside = random.Random(seed), Calibration(), 0.0, 0.0, 0
    for step in range(steps):
        unit = rng.gauss(-0.5, 1)
        average, weight = 0.9 * average + 0.1 * unit, 0.9 * weight + 0.1
        observed = 0.5 * average / weight + 0.2 * residual(rng, step)
        prediction = calibration.step(unit, observed, ADAM)
        if step >= 30:
            assert prediction.low is not None
            assert prediction.high is not None
            inside += prediction.low <= observed <= prediction.high
    assert prediction.interval_coverage is not None
    return inside / (steps - 30), prediction.interval_coverage


@pytest.mark.parametrize(
    "residual",
    [
        pytest.param(lambda rng, _: rng.gauss(0, 1), id="normal"),
        pytest.param(heavy_tailed, id="heavy tails"),
        pytest.param(lambda rng, step: rng.gauss(0, 1) * math.exp(-step / 80), id="shrinking"),
        pytest.param(
            lambda rng, step: rng.gauss(0, 1) * math.exp(-step / 25),
            id="of a task that is soon solved",
        ),
        pytest.param(lambda rng, step: rng.gauss(0, 1) * math.exp(step / 80), id="growing"),
        pytest.param(lambda rng, step: rng.gauss(0, 4 if step // 100 % 2 else 1), id="jumping"),
    ],
)
def test_the_interval_covers_between_80_and_97_percent_after_30_steps(residual: Residual) -> None:
    for seed in range(5):
        share, stated = covered(residual, seed)
        assert 0.8 <= share <= 0.97
        assert stated == pytest.approx(share, abs=0.05)


def test_there_is_no_interval_before_there_are_residuals() -> None:
    calibration, rng = Calibration(), random.Random(0)
    found = [
        calibration.step(rng.gauss(0, 1), rng.gauss(0, 1), Momentum())
        for _ in range(WARM_UP + FEWEST + 2)
    ]
    bounded = [one.low is not None for one in found]
    assert bounded == [False] * (WARM_UP + FEWEST) + [True] * 2
    assert all((one.low is None) == (one.high is None) for one in found)
    assert found[WARM_UP + FEWEST - 1].interval_coverage is None
    assert found[WARM_UP + FEWEST].interval_coverage in (0.0, 1.0)


def test_an_interval_does_not_know_the_change_it_is_for() -> None:
    one, other = Calibration(), Calibration()
    rng = random.Random(3)
    for _ in range(20):
        unit, observed = rng.gauss(0, 1), rng.gauss(0, 1)
        one.step(unit, observed, ADAM)
        other.step(unit, observed, ADAM)
    left, right = one.step(1.0, 50.0, ADAM), other.step(1.0, -50.0, ADAM)
    assert (left.low, left.high) == (right.low, right.high)


@pytest.mark.parametrize("residual", [math.nan, math.inf])
def test_a_residual_that_is_not_finite_teaches_nothing(residual: float) -> None:
    interval = PredictionInterval()
    for _ in range(10):
        interval.learn(1.0)
    before = interval
    width, coverage = before.half_width(), before.coverage
    interval.learn(residual)
    assert (interval.half_width(), interval.coverage) == (width, coverage)


def test_the_quantile_is_students() -> None:
    assert student_quantile(3) == pytest.approx(2.353, rel=0.02)
    assert student_quantile(10) == pytest.approx(1.812, rel=0.002)
    assert student_quantile(1e9) == pytest.approx(1.6449, rel=1e-4)


@pytest.mark.parametrize(("noise", "early"), [(0.5, 1.0), (1.0, 1.0), (1.5, 1.0), (1.0, 8.0)])
def test_interval_is_of_the_change_not_its_measurement(noise: float, early: float) -> None:
    """Measured on few tokens a change scatters; the interval is as wide as the change needs, also
    after larger changes."""
    inside = 0
    for seed in range(5):
        rng, interval = random.Random(seed), PredictionInterval()
        for step in range(400):
            change = rng.gauss(0, early if step < 75 else 1)
            half_width = interval.half_width()
            if step >= 100:
                assert half_width is not None
                inside += abs(change) <= half_width
            interval.learn(change + rng.gauss(0, noise), noise=noise)
    assert 0.82 <= inside / 1500 <= 0.97


def test_level_of_coupled_predictions_is_unbiased() -> None:
    """What came is 0.8 of predictions that are as noisy as they are large; least squares gives half
    of that. The prior keeps it nearer to 1."""
    factors = []
    for seed in range(20):
        rng, level = random.Random(seed), CoupledLevel()
        for _ in range(200):
            level.learn(rng.gauss(-1, 1), rng.gauss(-0.8, 0.5))
        factors.append(level.factor)
    assert statistics.fmean(factors) == pytest.approx(0.86, abs=0.03)


@pytest.mark.parametrize("zeros", [1, 3, 10])
def test_changes_of_zero_do_not_end_the_calibration(zeros: int) -> None:
    """Updates that a gradient scaler skips change nothing; those after them do."""
    rng, calibration = random.Random(2), Calibration()
    for step in range(200):
        unit = rng.gauss(0, 1)
        prediction = calibration.step(unit, 0.0 if step < zeros else 0.5 * unit, Momentum(0.0))
    assert prediction.gain == pytest.approx(0.5, rel=0.02)
    assert prediction.low is not None


class Product(NamedTuple):
    """<h, update> and how many updates were made with this h before."""

    change: float
    age: float


class Measured(NamedTuple):
    mean: float
    error: float


class Unseen(NamedTuple):
    judge: Measured
    made_from: Measured | None


def test_first_updates_do_not_teach_coupled_predictions() -> None:
    """Adam's first updates do three times what is predicted; later ones what is."""
    rng, calibration = random.Random(4), Calibration()
    for step in range(14):
        change, share = -0.010 + rng.gauss(0, 0.002), 3.0 if step < 5 else 1.0
        came = Measured(share * change + rng.gauss(0, 0.0005), 0.0)
        prediction = calibration.step(
            -1.0, came.mean, ADAM, coupled=Product(change, step % 4), unseen=Unseen(came, came)
        )
    assert prediction.predicted_change == pytest.approx(change, rel=0.1)
    assert prediction.low is not None
    assert change - prediction.low < 0.003


def test_bend_is_what_older_gradients_miss() -> None:
    """Of a quadratic the k-th update made with one gradient misses by (k + 1/2) times the same."""
    bend = Bend()
    for _ in range(10):
        bend.learn(Product(-0.010, 3), -0.010 + 3.5 * 0.0004)
    assert bend.nats == pytest.approx(0.0004, rel=1e-2)
    assert [bend.correct(Product(-0.010, age)) for age in (0, 1, 3)] == pytest.approx(
        [-0.0098, -0.0094, -0.0086], rel=1e-3
    )
    assert bend.correct(Product(-0.0001, 3)) == pytest.approx(-0.00005)
    assert bend.correct(Product(0.0001, 3)) == 0.0001
    assert bend.correct(Product(0.0, 3)) == 0.0
    bend.learn(Product(-0.010, 3), math.nan)
    assert bend.nats == pytest.approx(0.0004, rel=1e-2)


def test_an_interval_is_never_narrower_than_its_sample() -> None:
    interval = PredictionInterval()
    for _ in range(50):
        interval.learn(0.001, noise=0.001)
    narrow = interval.half_width()
    interval.note_sample(0.01)
    wide = interval.half_width()
    assert narrow is not None
    assert wide is not None
    assert wide > 5 * narrow
