"""Runs made of numbers alone: what a probe would report of a loop whose entropy moves in a known way."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from isentrope.statistics.calibration import Calibration
from isentrope.statistics.report_scalars import calibration_scalars
from isentrope_wire.metrics import ADVANTAGE_ZERO_GROUP_FRACTION, ENTROPY_MEAN, SCORE_SELF_CHECK_Z

Course = Callable[[int], float]
"""The policy's entropy at a step, in nats."""

MOMENTUM = 0.9
GAIN = 0.4


def collapsing(time_constant: float) -> Course:
    return lambda step: 2.0 * math.exp(-step / time_constant)


def falling_in_a_line(steps: float) -> Course:
    return lambda step: max(2.0 * (1 - step / steps), 0.0)


def settling(share: float, time_constant: float) -> Course:
    return lambda step: 2.0 * (share + (1 - share) * math.exp(-step / time_constant))


def exploding(time_constant: float) -> Course:
    return lambda step: min(2.0 * math.exp(step / time_constant), 9.0)


def waving(period: float) -> Course:
    return lambda step: 2.0 + 0.3 * math.sin(2 * math.pi * step / period)


def flat(step: int) -> float:
    return 2.0


def reports_of(course: Course, steps: int, seed: int, *, noise: float = 0.3) -> Iterator[dict[str, float]]:
    """Scalars of each step, as the probe makes them.

    Args:
        noise: of the observed change, as a share of its usual size; the mean over a batch scatters on its own by 2 %.
    """
    rng, calibration, average = random.Random(seed), Calibration(), 0.0
    changes = [course(step + 1) - course(step) for step in range(steps)]
    size = math.sqrt(sum(change**2 for change in changes) / steps) + 0.002
    for step, change in enumerate(changes):
        # The optimiser moves along the average; what it is given scatters about what makes the course.
        given = change + rng.gauss(0, size)
        average = MOMENTUM * average + (1 - MOMENTUM) * given
        observed = average / (1 - MOMENTUM ** (step + 1)) + rng.gauss(0, noise * size)
        prediction = calibration.step(given / GAIN, observed, MOMENTUM)
        yield {
            ENTROPY_MEAN: course(step) * (1 + rng.gauss(0, 0.02)),
            SCORE_SELF_CHECK_Z: rng.gauss(0, 1.5),
            ADVANTAGE_ZERO_GROUP_FRACTION: min(max(0.3 + rng.gauss(0, 0.1), 0.0), 1.0),
            **calibration_scalars(prediction),
        }
