"""The calibrated prediction learns its gain from the past only, and knows how good it was."""

from __future__ import annotations

import math
import random

import pytest

from isentrope.statistics.calibration import WARM_UP, Calibration


def test_it_says_nothing_before_it_has_seen_enough() -> None:
    calibration = Calibration()
    for _ in range(WARM_UP):
        assert calibration.step(1.0, 2.0, 0.0).predicted_change is None
    assert calibration.step(3.0, None, 0.0).predicted_change == pytest.approx(6.0)


def test_a_constant_gain_is_found_and_predicts_perfectly() -> None:
    calibration, rng = Calibration(), random.Random(0)
    prediction = calibration.step(0.0, None, 0.0)
    for _ in range(60):
        unit = rng.gauss(-1, 1)
        prediction = calibration.step(unit, -0.3 * unit, 0.0)
    assert prediction.gain == pytest.approx(-0.3)
    assert prediction.r2 == pytest.approx(1.0)
    assert prediction.sign_agreement == pytest.approx(1.0)


def test_with_momentum_it_follows_the_average_the_optimiser_moves_along() -> None:
    rng = random.Random(1)
    average, weight = 0.0, 0.0
    aware, unaware = Calibration(), Calibration()
    for _ in range(200):
        unit = rng.gauss(-0.2, 1)
        average, weight = 0.9 * average + 0.1 * unit, 0.9 * weight + 0.1
        observed = 0.5 * average / weight
        good, poor = aware.step(unit, observed, 0.9), unaware.step(unit, observed, 0.0)
    assert good.r2 == pytest.approx(1.0)
    assert poor.r2 is not None
    assert poor.r2 < 0.6


def test_a_gain_that_shrinks_with_the_entropy_and_the_learning_rate_is_followed_without_delay() -> None:
    rng = random.Random(4)
    told, untold = Calibration(), Calibration()
    for step in range(150):
        size = 1e-4 * (1 - step / 200) * math.exp(-step / 40)
        unit = rng.gauss(-1, 0.3)
        observed = 7000 * size * unit
        good, poor = told.step(unit, observed, 0.0, size), untold.step(unit, observed, 0.0)
    assert good.predicted_change == pytest.approx(observed)
    assert good.gain == pytest.approx(7000 * size)
    assert poor.gain is not None
    assert poor.gain > 1.5 * 7000 * size


@pytest.mark.parametrize("size", [math.nan, math.inf])
def test_a_size_that_is_not_finite_teaches_nothing(size: float) -> None:
    calibration = Calibration()
    for _ in range(5):
        calibration.step(1.0, 2.0, 0.0, 3.0)
    assert calibration.step(1.0, 50.0, 0.0, size).predicted_change is None
    assert calibration.step(1.0, None, 0.0, 1.5).gain == pytest.approx(1.0)


def test_a_prediction_does_not_know_the_change_it_predicts() -> None:
    one, other = Calibration(), Calibration()
    for unit in (1.0, 2.0, -1.0, 0.5):
        one.step(unit, 0.1 * unit, 0.9)
        other.step(unit, 0.1 * unit, 0.9)
    assert one.step(1.5, 100.0, 0.9).predicted_change == other.step(1.5, -100.0, 0.9).predicted_change


def test_noise_without_relation_earns_no_trust() -> None:
    calibration, rng = Calibration(), random.Random(2)
    prediction = calibration.step(0.0, None, 0.0)
    for _ in range(500):
        prediction = calibration.step(rng.gauss(0, 1), rng.gauss(0, 1), 0.0)
    assert prediction.r2 is not None
    assert prediction.r2 < 0.1
    assert prediction.sign_agreement == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("unit", [math.nan, math.inf])
def test_a_step_that_is_not_finite_teaches_nothing(unit: float) -> None:
    calibration = Calibration()
    for _ in range(5):
        calibration.step(1.0, 2.0, 0.9)
    assert calibration.step(unit, 1.0, 0.9).predicted_change is None
    assert calibration.step(1.0, math.nan, 0.9).predicted_change == pytest.approx(2.0)
    assert calibration.step(1.0, None, 0.9).gain == pytest.approx(2.0)
