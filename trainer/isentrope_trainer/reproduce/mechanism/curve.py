"""The curve R = -a exp(H) + b (2505.22617, eq. 6), fitted by least squares: it is linear in a and b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isentrope_trainer.reproduce.runs import Run
from isentrope_wire.metrics import ENTROPY_MEAN, EVAL_AVG_AT_K, REWARD_MEAN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

NEIGHBOURS = 5
"""Steps whose mean entropy goes with an evaluation: those before it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A fitted curve; called with entropies in nats it gives rewards."""

    a: float
    b: float
    r_squared: float
    """Of the points it was fitted to."""

    def __call__(self, entropies: Values) -> Values:
        return -self.a * np.exp(entropies) + self.b


def fitted(entropies: Values, rewards: Values) -> Curve:
    """The least-squares curve through these points, of which there are at least three.

    Args:
        entropies: in nats.
        rewards: of the same places.
    """
    design = np.stack([-np.exp(entropies), np.ones_like(entropies)], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, rewards, rcond=None)
    residual = rewards - design @ [a, b]
    whole = float(np.sum((rewards - rewards.mean()) ** 2))
    return Curve(float(a), float(b), 1 - float(np.sum(residual**2)) / whole if whole else float("nan"))


def every_step(run: Run) -> tuple[Values, Values]:
    """Entropy and training reward of every step."""
    return run.series(ENTROPY_MEAN), run.series(REWARD_MEAN)


def measured(run: Run) -> tuple[Values, Values]:
    """The run's held-out evaluations, with the mean entropy of the steps before each.

    Returns:
        Entropies and rewards, in the order of the steps.
    """
    entropies, rewards = run.series(ENTROPY_MEAN), run.series(EVAL_AVG_AT_K)
    places = np.flatnonzero(~np.isnan(rewards))
    means = [np.nanmean(entropies[max(0, place + 1 - NEIGHBOURS) : place + 1]) for place in places]
    return np.array(means), rewards[places]
