"""The calibrated prediction learns its gain from the past only, and knows how good it was."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from isentrope.hold.estimate import Effect, EntropyEstimator
from isentrope.statistics.calibration import WARM_UP, CalibratedPrediction, Calibration, Momentum
from isentrope.statistics.step import Coupled
from isentrope_wire.diagnosis.course import Course

ADAM, PLAIN = Momentum(0.9), Momentum()


def test_it_says_nothing_before_it_has_seen_enough() -> None:
    calibration = Calibration()
    for _ in range(WARM_UP):
        assert calibration.step(1.0, 2.0, PLAIN).predicted_change is None
    assert calibration.step(3.0, None, PLAIN).predicted_change == pytest.approx(6.0)


def test_with_momentum_it_follows_the_average_the_optimiser_moves_along() -> None:
    rng = random.Random(1)
    average, weight = 0.0, 0.0
    aware, unaware = Calibration(), Calibration()
    for _ in range(200):
        unit = rng.gauss(-0.2, 1)
        average, weight = 0.9 * average + 0.1 * unit, 0.9 * weight + 0.1
        observed = 0.5 * average / weight
        good, poor = aware.step(unit, observed, ADAM), unaware.step(unit, observed, PLAIN)
    assert good.r2 == pytest.approx(1.0)
    assert poor.r2 is not None
    assert poor.r2 < 0.6


def test_noise_without_relation_earns_no_trust() -> None:
    calibration, rng = Calibration(), random.Random(2)
    prediction = calibration.step(0.0, None, PLAIN)
    for _ in range(500):
        prediction = calibration.step(rng.gauss(0, 1), rng.gauss(0, 1), PLAIN)
    assert prediction.r2 is not None
    assert prediction.r2 < 0.1
    assert prediction.sign_agreement == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("unit", [math.nan, math.inf])
def test_a_step_that_is_not_finite_teaches_nothing(unit: float) -> None:
    calibration = Calibration()
    for _ in range(5):
        calibration.step(1.0, 2.0, ADAM)
    assert calibration.step(unit, 1.0, ADAM).predicted_change is None
    assert calibration.step(1.0, math.nan, ADAM).predicted_change == pytest.approx(2.0)
    assert calibration.step(1.0, None, ADAM).gain == pytest.approx(2.0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.99},
        {"momentum": 0.9, "dampening": 0.5},
        {"momentum": 0.9, "nesterov": True},
        {"dampening": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("max_norm", [math.inf, 0.5])
def test_sgd_is_predicted_exactly(settings: dict[str, Any], max_norm: float) -> None:
    """The entropy is a linear function of the parameters: its change is that of torch's own
    update."""
    generator = torch.Generator().manual_seed(0)
    slope = torch.randn(5, generator=generator, dtype=torch.float64)
    weights = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = torch.optim.SGD([weights], lr=0.03, **settings)
    momentum, calibration = Momentum.read(optimizer), Calibration()
    assert momentum is not None
    for step in range(60):
        weights.grad = torch.randn(5, generator=generator, dtype=torch.float64) - 0.2 * slope
        unit = -float(slope @ weights.grad)
        norm = torch.nn.utils.clip_grad_norm_([weights], max_norm)
        before = weights.detach().clone()
        optimizer.step()
        observed = float(slope @ (weights.detach() - before))
        prediction = calibration.step(
            unit, observed, momentum, 0.03, float((max_norm / (norm + 1e-6)).clamp(max=1))
        )
        if step >= WARM_UP:
            assert prediction.predicted_change == pytest.approx(observed, rel=1e-9, abs=1e-15)


def test_gain_counts_all_steps_moved() -> None:
    """A buffer moves the parameters along a gradient for many steps, an average for as much as
    one."""
    gains = []
    for momentum in (
        Momentum(),
        Momentum(0.9),
        Momentum(0.9, buffer=True),
        Momentum(0.9, buffer=True, nesterov=True),
    ):
        calibration, moved = Calibration(), 0.0
        for _ in range(400):
            moved = 1.0 if not momentum.buffer else 0.9 * moved + 1.0
            prediction = calibration.step(
                1.0, 0.2 * (1 + 0.9 * moved if momentum.nesterov else moved), momentum
            )
        gains.append(prediction.gain)
    assert gains == pytest.approx([0.2, 0.2, 2.0, 2.0])


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (torch.optim.AdamW, Momentum(0.9)),
        (partial(torch.optim.Adam, betas=(0.7, 0.99)), Momentum(0.7)),
        (torch.optim.SGD, Momentum(buffer=True)),
        (
            partial(torch.optim.SGD, momentum=0.8, dampening=0.1),
            Momentum(0.8, buffer=True, dampening=0.1),
        ),
        (partial(torch.optim.RMSprop, momentum=0.5), Momentum(0.5, buffer=True)),
        (torch.optim.Adagrad, Momentum()),
    ],
)
def test_momentum_is_read_from_optimisers(
    optimizer: Callable[..., Any], expected: Momentum
) -> None:
    assert Momentum.read(optimizer([torch.zeros(1, requires_grad=True)], lr=0.1)) == expected


def with_outlier(outlier: float, at: int = 200, steps: int = 400) -> list[CalibratedPrediction]:
    """Predictions of a stationary series, R² 0.4, whose observation at one step is off by so many
    standard deviations."""
    rng, calibration, found = random.Random(7), Calibration(), []
    average, weight = 0.0, 0.0
    for step in range(steps):
        unit, noise = rng.gauss(-0.5, 1), 0.293 * rng.gauss(0, 1)
        average, weight = 0.9 * average + 0.1 * unit, 0.9 * weight + 0.1
        if step == at:
            noise += 0.293 * outlier
        found.append(calibration.step(unit, average / weight + noise, ADAM))
    return found


@pytest.mark.parametrize("outlier", [100.0, -1000.0, 1e308])
@pytest.mark.parametrize("at", [12, 200])
def test_one_wild_step_decides_nothing(outlier: float, at: int) -> None:
    wild, calm = with_outlier(outlier, at), with_outlier(0.0, at)
    for one, other in zip(wild[at + 1 :], calm[at + 1 :], strict=True):
        assert one.gain == pytest.approx(other.gain, rel=0.3)
    assert width(wild[at + 21]) <= 1.5 * width(calm[at + 21])
    assert wild[-1].r2 == pytest.approx(calm[-1].r2, abs=0.1)


def width(prediction: CalibratedPrediction) -> float:
    assert prediction.low is not None
    assert prediction.high is not None
    return prediction.high - prediction.low


def holds(prediction: CalibratedPrediction, change: float) -> bool:
    assert prediction.low is not None
    assert prediction.high is not None
    return prediction.low <= change <= prediction.high


def test_larger_changes_are_learnt_soon() -> None:
    """A gain that rises fivefold makes errors far beyond the interval, and not of one step."""
    rng, calibration, found = random.Random(3), Calibration(), []
    for step in range(240):
        unit, gain = rng.gauss(-0.5, 1), 1.0 if step < 200 else 5.0
        found.append(calibration.step(unit, gain * unit + 0.01 * rng.gauss(0, 1), PLAIN).gain)
    assert found[199] == pytest.approx(1.0, rel=0.02)
    assert found[235] == pytest.approx(5.0, rel=0.5)


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e-9, 1e-6])
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 30])
def test_first_updates_without_effect_end_nothing(steps: int, size: float) -> None:
    """A GradScaler skips the first updates: changes of 0, or of round-off, for predictions that are
    not 0."""
    rng, calibration, inside, found = random.Random(steps), Calibration(), 0, []
    for step in range(steps + 200):
        unit = rng.gauss(-0.5, 1)
        change = size * rng.gauss(0, 1)
        if step >= steps:
            change = 0.5 * unit + 0.05 * rng.gauss(0, 1)
        found.append(calibration.step(unit, change, PLAIN))
        if step >= steps + 10:
            inside += holds(found[-1], change)
    assert found[steps + 20].gain == pytest.approx(0.5, rel=0.1)
    assert found[-1].gain == pytest.approx(0.5, rel=0.05)
    assert 0.8 <= inside / 190 <= 0.97


@pytest.mark.parametrize("tiny", [0.0, 1e-9])
def test_updates_of_every_fourth_step_are_learnt(tiny: float) -> None:
    """`step` after each of four accumulated micro-batches: three of four changes are 0."""
    rng, calibration, products, squares, inside = random.Random(7), Calibration(), 0.0, 0.0, 0
    for step in range(400):
        unit = rng.gauss(-0.5, 1)
        change = 0.5 * unit if step % 4 == 3 else tiny * rng.gauss(0, 1)
        prediction = calibration.step(unit, change, PLAIN)
        if step >= 300:
            products, squares = products + unit * change, squares + unit * unit
            inside += holds(prediction, change)
    assert prediction.gain == pytest.approx(products / squares, rel=0.5)
    assert inside >= 70


@pytest.mark.parametrize(("first", "counts"), [(0.05, False), (-0.01, True)])
def test_wild_first_update_teaches_nothing(first: float, counts: bool) -> None:
    """As of a language model at a low learning rate: its first update is Adam's largest, and raises
    what later ones lower."""
    units = [-0.012, -0.001, -0.015, 0.001, 0.006, -0.005, -0.008, 0.003]
    with_first, without = Calibration(), Calibration()
    hold, hold_without = Effect(), Effect()
    for step, unit in enumerate(units):
        change = first if step == 0 else 0.5 * unit
        prediction = with_first.step(unit, change, PLAIN)
        hold.learn(unit, change)
        if step > 0:
            of_others = without.step(unit, change, PLAIN)
            hold_without.learn(unit, change)
    assert (prediction.gain == of_others.gain) is not counts
    assert (hold.gain == hold_without.gain) is not counts


def test_without_any_change_nothing_is_claimed() -> None:
    calibration = Calibration()
    for _ in range(50):
        found = calibration.step(-0.5, 0.0, PLAIN)
    assert (found.gain, found.predicted_change, found.low, found.interval_coverage) == (None,) * 4


@pytest.mark.parametrize("steps", [3, 20])
def test_coupled_interval_recovers_from_no_effect(steps: int) -> None:
    rng, calibration, inside = random.Random(5), Calibration(), 0
    for step in range(steps + 200):
        coupled = rng.gauss(-0.01, 0.01)
        change = 0.0 if step < steps else coupled + 0.002 * rng.gauss(0, 1)
        product = Coupled(coupled, math.nan, math.nan, age=0)
        found = calibration.step(rng.gauss(-0.5, 1), change, PLAIN, coupled=product)
        if step >= steps + 10:
            inside += holds(found, change)
    assert 0.8 <= inside / 190 <= 0.97


@pytest.mark.parametrize("zeros", [3, 5, 30])
def test_hold_estimate_recovers_from_no_effect(zeros: int) -> None:
    rng, estimator = random.Random(2), EntropyEstimator()
    for step in range(zeros + 150):
        unit = rng.gauss(-0.5, 1)
        change = 0.0 if step < zeros else 0.01 * unit
        found = estimator.step(
            mean_entropy=2.0, unit_prediction=unit, observed_change=change, momentum=0.0
        )
    assert found.gain == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("level", [5, 20, 60])
def test_course_follows_after_steps_without_change(level: int) -> None:
    """No noise at first: a course whose scatter is 0 must still see the fall that follows."""
    course, raised = Course(), []
    for step in range(level + 60):
        entropy = 2.0 * 0.96 ** max(step - level, 0)
        raised.append(course.add(step, entropy))
    assert any("collapse" in found for found in raised)
    pace, forecast = course.pace, course.forecast()
    assert pace is not None
    assert forecast is not None
    assert pace.value == pytest.approx(math.log(0.96), rel=0.2)
    assert forecast.entropy[0] == pytest.approx(entropy, rel=0.15)
