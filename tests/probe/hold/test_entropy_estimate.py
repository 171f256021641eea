"""The resting point is where the entropy ends up when nothing more is done to it."""

from __future__ import annotations

import pytest

from isentrope.hold.estimate import (
    DRIFT_WEIGHT,
    LARGEST_MISSED,
    MISSED_WEIGHT,
    NEWEST_WEIGHT,
    Effect,
    EntropyEstimator,
)

MEMORY = Effect.memory(0.9)


def test_the_resting_point_is_where_updates_carry_the_entropy() -> None:
    estimator, entropy, average, gain = EntropyEstimator(), 1.0, 0.0, 0.5
    units = [-0.04, -0.02] * 30 + [0.0] * 200
    for step, unit in enumerate(units):
        average = MEMORY * average + (1 - MEMORY) * unit
        change = gain * average / (1 - MEMORY ** (step + 1))
        estimate = estimator.step(
            mean_entropy=entropy, unit_prediction=unit, observed_change=change, momentum=0.9
        )
        entropy += change
        if step == 59:
            estimated = estimate
    assert estimated.gain == pytest.approx(gain, rel=0.01)
    assert estimated.resting_point == pytest.approx(entropy, abs=2e-3)
    assert estimated.resting_point < estimated.mean_entropy - 0.05


def test_the_estimate_follows_what_was_observed_and_a_step_s_own_mean_only_in_part() -> None:
    estimator = EntropyEstimator()
    for mean in (0.5, 0.6):
        estimate = estimator.step(
            mean_entropy=mean, unit_prediction=0.0, observed_change=-0.01, momentum=0.9
        )
    assert estimate.mean_entropy == pytest.approx(
        0.49 + (NEWEST_WEIGHT + MISSED_WEIGHT) * 0.11 - 0.01
    )
    assert (estimate.drift, estimate.gain) == (0.0, None)


def test_drift_is_what_the_prediction_misses_and_stands_in_where_nothing_was_observed() -> None:
    estimator, entropy = EntropyEstimator(), 0.5
    for unit in (0.02, -0.02, 0.04, -0.04):
        learnt = estimator.step(
            mean_entropy=entropy, unit_prediction=unit, observed_change=0.5 * unit, momentum=0.0
        )
        entropy += 0.5 * unit
    assert learnt.gain == pytest.approx(0.5)
    missed = estimator.step(
        mean_entropy=0.5, unit_prediction=0.02, observed_change=0.006, momentum=0.0
    )
    assert missed.drift == pytest.approx(DRIFT_WEIGHT * -0.004)
    unseen = estimator.step(
        mean_entropy=0.516, unit_prediction=0.02, observed_change=None, momentum=0.0
    )
    assert unseen.gain == missed.gain is not None
    expected = missed.mean_entropy + NEWEST_WEIGHT * (0.516 - missed.mean_entropy)
    assert unseen.mean_entropy == pytest.approx(expected + missed.gain * 0.02 + missed.drift)


def test_a_constant_error_moves_neither_estimate_nor_drift() -> None:
    # Clipping makes up for a drift of -0.002, so the entropy goes up and down around 0.15. The
    # tokens that an update learned from lose 0.0005 more than it shows.
    estimator, entropy = EntropyEstimator(), 0.15
    for step in range(400):
        unit = 0.004 + (0.02 if step % 2 else -0.02)
        change = 0.5 * unit - 0.002
        estimate = estimator.step(
            mean_entropy=entropy,
            unit_prediction=unit,
            observed_change=change - 0.0005,
            momentum=0.0,
        )
        entropy += change
    assert estimate.gain == pytest.approx(0.5, rel=0.01)
    assert estimate.mean_entropy == pytest.approx(entropy, abs=1e-4)
    assert estimate.drift == pytest.approx(-0.002, abs=1e-4)


def test_what_a_steep_fall_misses_is_not_remembered_for_long() -> None:
    # A third of what is observed is of the tokens alone.
    estimator, entropy = EntropyEstimator(), 0.6
    for step in range(60):
        change = -0.012 if step < 30 else 0.0
        estimate = estimator.step(
            mean_entropy=entropy,
            unit_prediction=0.01 * (-1) ** step,
            observed_change=1.5 * change,
            momentum=0.0,
        )
        entropy += change
    assert estimate.mean_entropy - entropy == pytest.approx(
        0.0, abs=LARGEST_MISSED * entropy / NEWEST_WEIGHT
    )


def test_a_learning_rate_counts_at_once() -> None:
    # Learnt at a rate of 0.1: a unit prediction moves the entropy by 5 nats per unit of rate.
    estimator, entropy = EntropyEstimator(), 0.5
    for unit in (0.02, -0.02, 0.04, -0.04):
        learnt = estimator.step(
            mean_entropy=entropy,
            unit_prediction=unit,
            observed_change=0.5 * unit,
            momentum=0.0,
            learning_rate=0.1,
        )
        entropy += 0.5 * unit
    halved = estimator.step(
        mean_entropy=0.5,
        unit_prediction=0.02,
        observed_change=0.005,
        momentum=0.0,
        learning_rate=0.05,
    )
    assert learnt.gain == pytest.approx(0.5)
    assert halved.gain == pytest.approx(0.25)
    assert halved.drift == pytest.approx(0.0, abs=1e-12)
