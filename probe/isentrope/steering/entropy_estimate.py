"""Where the entropy stands after a step, and where it would come to rest if all further updates were neutral.

The mean over a step's tokens jitters with the prompts, and what an update sets in motion takes some steps. With the
regressor x, the gain g and gamma of `effect.py`, and b for what g x misses on average,

    dH_t = g x_t + b,   x_t = gamma x_(t-1) + (1 - gamma) a_t u_t      the change that step t brings about
    s_t = H_t + (g x_t + b) gamma / (1 - gamma)                        H after step t, and what is still to come

with the learning rate a_t, so that s_t = s_(t-1) + a_t g u_t + b: a unit prediction moves the resting point by its size in nats at once, however slowly
the entropy follows. The controller steers s, which is why it does not correct twice what is under way already; and it
makes up for b, without which the entropy would stay beside its target for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isentrope.steering.effect import Effect

NEWEST_WEIGHT = 0.3
"""Of a step's own mean entropy in the estimate; the rest is the estimate before it, moved on by the observed change."""

DRIFT_WEIGHT = 0.1
"""Of a step in the mean of what g x missed: slow enough to leave the noise out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyEstimate:
    """After one step."""

    mean_entropy: float
    """Under the policy that the step's update left, in nats."""
    gain: float | None
    """a_t g in nats per unit, at the step's learning rate; None while there is too little past to say it."""
    to_come: float = 0.0
    """What updates so far will still do to it, in nats."""
    drift: float = 0.0
    """b in nats: the mean observed change that g x does not explain."""

    @property
    def resting_point(self) -> float:
        """s: where the entropy would come to rest, in nats."""
        return self.mean_entropy + self.to_come


@dataclass(slots=True)
class EntropyEstimator:
    """Feed it one step at a time, in order."""

    _expected: float | None = None
    _drift: float = 0.0
    _effect: Effect = field(default_factory=Effect)

    def step(
        self,
        *,
        mean_entropy: float,
        unit_prediction: float,
        observed_change: float | None,
        momentum: float,
        learning_rate: float = 1.0,
    ) -> EntropyEstimate:
        """
        Args:
            mean_entropy: over the step's tokens, before its update, in nats.
            unit_prediction: -mean(keep r A S_c) of the step.
            observed_change: what its update did to the entropy, in nats; None when it was not measured.
            momentum: the optimiser's beta_1, 0 for plain SGD.
            learning_rate: of the step; a schedule then moves the gain at once.
        """
        regressor = self._effect.regressor(learning_rate * unit_prediction, momentum)
        before = self._effect.gain
        explained = None if before is None else before * regressor
        if observed_change is None:
            observed_change = (explained or 0.0) + self._drift
        else:
            if explained is not None:
                self._drift += DRIFT_WEIGHT * (observed_change - explained - self._drift)
            self._effect.learn(regressor, observed_change)
        last = mean_entropy if self._expected is None else self._expected
        self._expected = last + NEWEST_WEIGHT * (mean_entropy - last) + observed_change
        gain, memory = self._effect.gain, self._effect.memory(momentum)
        return EntropyEstimate(
            mean_entropy=self._expected,
            gain=None if gain is None else learning_rate * gain,
            to_come=((gain or 0.0) * regressor + self._drift) * memory / (1 - memory),
            drift=self._drift,
        )
