"""The resting point is where the entropy ends up when nothing more is done to it."""

from __future__ import annotations

import pytest

from isentrope.steering.entropy_estimate import DRIFT_WEIGHT, NEWEST_WEIGHT, EntropyEstimator


def test_the_resting_point_is_where_momentum_carries_the_entropy() -> None:
    estimator, entropy, average, gain = EntropyEstimator(), 1.0, 0.0, 0.5
    units = [-0.04] * 60 + [0.0] * 200
    for step, unit in enumerate(units):
        average = 0.9 * average + 0.1 * unit
        change = gain * average / (1 - 0.9 ** (step + 1))
        estimate = estimator.step(
            mean_entropy=entropy, unit_prediction=unit, observed_change=change, gain=gain, momentum=0.9
        )
        entropy += change
        if step == 59:
            foreseen = estimate.resting_point(gain)
    assert foreseen == pytest.approx(entropy, abs=1e-3)
    assert foreseen < 1.0 - 60 * 0.02


def test_without_momentum_the_entropy_rests_where_it_stands() -> None:
    estimate = EntropyEstimator().step(
        mean_entropy=0.7, unit_prediction=-0.1, observed_change=-0.03, gain=0.5, momentum=0.0
    )
    assert estimate.resting_point(0.5) == pytest.approx(0.67)


def test_the_estimate_follows_what_was_observed_and_a_step_s_own_mean_only_in_part() -> None:
    estimator = EntropyEstimator()
    for mean in (0.5, 0.6):
        estimate = estimator.step(
            mean_entropy=mean, unit_prediction=0.0, observed_change=-0.01, gain=None, momentum=0.9
        )
    assert estimate.mean_entropy == pytest.approx(0.49 + NEWEST_WEIGHT * 0.11 - 0.01)
    assert estimate.drift == 0.0


def test_drift_is_what_the_prediction_misses_and_stands_in_where_nothing_was_observed() -> None:
    estimator = EntropyEstimator()
    estimator.step(mean_entropy=0.5, unit_prediction=0.02, observed_change=0.006, gain=0.5, momentum=0.0)
    estimate = estimator.step(mean_entropy=0.506, unit_prediction=0.02, observed_change=None, gain=0.5, momentum=0.0)
    assert estimate.drift == pytest.approx(DRIFT_WEIGHT * -0.004)
    assert estimate.mean_entropy == pytest.approx(0.506 + 0.01 + estimate.drift)
