"""Where the entropy stands after a step, and where it would come to rest if all further updates were neutral.

The mean over a step's tokens jitters with the prompts, and an optimiser with momentum goes on along past gradients. With
the calibrated prediction's regressor x and gain g (`statistics/calibration.py`), the optimiser's beta_1, and b for what
the prediction misses on average,

    dH_t = g x_t + b,   x_t = beta_1 x_(t-1) + (1 - beta_1) u_t        the change that step t brings about
    s_t = H_t + (g x_t + b) beta_1 / (1 - beta_1)                      H after step t, and what momentum still adds

so that s_t = s_(t-1) + g u_t + b: a unit prediction moves the resting point by its calibrated size at once, however
slowly the entropy follows. The controller steers s, which is why momentum does not make it swing; and it makes up for b,
without which a gain that is a little wrong would leave the entropy beside its target for good.
"""

from __future__ import annotations

from dataclasses import dataclass

NEWEST_WEIGHT = 0.3
"""Of a step's own mean entropy in the estimate; the rest is the estimate before it, moved on by the observed change."""

DRIFT_WEIGHT = 0.1
"""Of a step in the mean of what the prediction missed: slow enough to leave the noise out."""

LARGEST_MOMENTUM = 0.99
"""Beyond it the resting point lies hundreds of steps ahead, and is not worth steering for."""


@dataclass(frozen=True, slots=True)
class EntropyEstimate:
    """After one step."""

    mean_entropy: float
    """Under the policy that the step's update left, in nats."""
    regressor: float
    """x: the exponential average of the unit prediction."""
    drift: float
    """b in nats: the mean observed change that g x does not explain."""
    inertia: float
    """beta_1 / (1 - beta_1)."""

    def resting_point(self, gain: float) -> float:
        """s: where the entropy would come to rest, in nats."""
        return self.mean_entropy + (gain * self.regressor + self.drift) * self.inertia


@dataclass(slots=True)
class EntropyEstimator:
    """Feed it one step at a time, in order."""

    _expected: float | None = None
    _average: float = 0.0
    _average_weight: float = 0.0
    _drift: float = 0.0

    def step(
        self,
        *,
        mean_entropy: float,
        unit_prediction: float,
        observed_change: float | None,
        gain: float | None,
        momentum: float,
    ) -> EntropyEstimate:
        """
        Args:
            mean_entropy: over the step's tokens, before its update, in nats.
            unit_prediction: -mean(keep r A S_c) of the step.
            observed_change: what its update did to the entropy, in nats; None when it was not measured.
            gain: of the calibration, None before it has one.
            momentum: the optimiser's beta_1, 0 for plain SGD.
        """
        momentum = min(momentum, LARGEST_MOMENTUM)
        self._average = momentum * self._average + (1 - momentum) * unit_prediction
        self._average_weight = momentum * self._average_weight + (1 - momentum)
        regressor = self._average / self._average_weight
        explained = None if gain is None else gain * regressor
        if observed_change is not None and explained is not None:
            self._drift += DRIFT_WEIGHT * (observed_change - explained - self._drift)
        if observed_change is None:
            observed_change = (explained or 0.0) + self._drift
        before = mean_entropy if self._expected is None else self._expected
        self._expected = before + NEWEST_WEIGHT * (mean_entropy - before) + observed_change
        return EntropyEstimate(self._expected, regressor, self._drift, momentum / (1 - momentum))
