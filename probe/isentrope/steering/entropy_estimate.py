"""Where the entropy stands after a step, and where it would come to rest if all further updates were neutral.

The mean over a step's tokens jitters with the prompts, and what an update sets in motion takes some steps. With the
regressor x, the gain g and gamma of `effect.py`, and b for what g x misses on average,

    dH_t = g x_t + b,   x_t = gamma x_(t-1) + (1 - gamma) a_t u_t      the change that step t brings about
    s_t = H_t + (g x_t + b) gamma / (1 - gamma)                        H after step t, and what is still to come

with the learning rate a_t, so that s_t = s_(t-1) + a_t g u_t + b: a unit prediction moves the resting point by its size
in nats at once, however slowly the entropy follows. The controller steers s, which is why it does not correct twice what
is under way already; and it makes up for b, without which the entropy would stay beside its target for good.

The observed change is of the very tokens that the update learned from, and those lose more entropy than the next step's
do: in runs of the reference trainer held at a quarter of the start, 0.0005 to 0.001 nats more per step, with which the
entropy came to rest 5 % above its target. So what the observed changes miss is learnt from the steps' own means, slowly and within bounds:

    H_t = H_(t-1) + NEWEST_WEIGHT e_t + dH_t + c_t,   c_t = c_(t-1) + MISSED_WEIGHT e_t,   e_t: mean entropy - H_(t-1)
    |c_t| <= LARGEST_MISSED H_(t-1)

Without the bound c remembered what a steep fall had missed, three times as much, and held the entropy 3 % too low for a
hundred steps after.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isentrope.steering.effect import Effect

NEWEST_WEIGHT = 0.3
"""Of a step's own mean entropy in the estimate; the rest is the estimate before it, moved on by the observed change."""

MISSED_WEIGHT = 0.01
"""Of a step's surprise in what observed changes miss. Less than a quarter of NEWEST_WEIGHT^2, beyond which the estimate
would swing; this little because a batch's own mean is mostly noise: it takes 25 steps to half of a constant bias."""

LARGEST_MISSED = 0.004
"""Of the entropy, what observed changes may miss per step: held runs missed 0.003 to 0.006 of theirs."""

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
    """b in nats: the mean change that g x does not explain."""

    @property
    def resting_point(self) -> float:
        """s: where the entropy would come to rest, in nats."""
        return self.mean_entropy + self.to_come


@dataclass(slots=True)
class EntropyEstimator:
    """Feed it one step at a time, in order."""

    _expected: float | None = None
    _missed: float = 0.0
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
        last = mean_entropy if self._expected is None else self._expected
        surprise = mean_entropy - last
        if observed_change is None:
            change = (explained or 0.0) + self._drift
        else:
            largest = LARGEST_MISSED * abs(last)
            self._missed = min(max(self._missed + MISSED_WEIGHT * surprise, -largest), largest)
            change = observed_change + self._missed
            if explained is not None:
                self._drift += DRIFT_WEIGHT * (change - explained - self._drift)
            self._effect.learn(regressor, observed_change)
        self._expected = last + NEWEST_WEIGHT * surprise + change
        gain, memory = self._effect.gain, self._effect.memory(momentum)
        return EntropyEstimate(
            mean_entropy=self._expected,
            gain=None if gain is None else learning_rate * gain,
            to_come=((gain or 0.0) * regressor + self._drift) * memory / (1 - memory),
            drift=self._drift,
        )
