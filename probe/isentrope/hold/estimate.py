"""What a step's update does to the entropy, and where the entropy comes to rest."""

from __future__ import annotations

from dataclasses import dataclass, field

from isentrope_wire.hold_decision import EntropyEstimate
from isentrope_wire.numbers import FIRST_UPDATES, is_first_wild

HALF_LIFE = 50.0
"""Steps after which an observation counts half."""

WARM_UP = 3
"""Observations before the first gain."""

PULL = 10.0
"""Weight, in steps, of a prior b = 0: early in a run a drift can't be distinguished from the effect
of the run's own updates, whose averages hardly differ."""

LARGEST_MOMENTUM = 0.99
"""Beyond it the effect of a step lasts for hundreds of steps, and is of no use for steering."""

NEWEST_WEIGHT = 0.3
"""Weight of a step's own mean entropy in the estimate; the rest is the estimate before it plus the
observed change."""

MISSED_WEIGHT = 0.01
"""Weight of a step's surprise in what observed changes miss. Less than a quarter of
NEWEST_WEIGHT^2, beyond which the estimate would swing; this little because a batch's own mean is
mostly noise: it takes 25 steps to half of a constant bias."""

LARGEST_MISSED = 0.004
"""Share of the entropy that observed changes may miss per step: held runs missed 0.003 to 0.006."""

DRIFT_WEIGHT = 0.1
"""Weight of a step in the mean of what g x missed: slow enough to leave the noise out."""


@dataclass(slots=True)
class Effect:
    """What a step's unit prediction does to the entropy. Feed it one step at a time, in order.

        dH_t = g x_t + b,   x_t = gamma x_(t-1) + (1 - gamma) a_t u_t
        gamma = beta_1^2, a_t: learning rate

    by least squares with weights that halve every HALF_LIFE steps, without a wild first step. The
    calibration's gain (`statistics/calibration.py`) has no b and can't be used to steer: a held
    entropy is constant because g x makes up for b, a line through the origin reads that as a gain
    near 0, and a controller that trusts half the gain corrects twice as much, until the entropy
    oscillates.

    gamma is smaller than the optimiser's beta_1 because an update older than a few steps changes
    the entropy of today's tokens less than momentum predicts.
    """

    _average: float = 0.0
    _average_weight: float = 0.0
    _observations: int = 0
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0
    _first: list[tuple[float, float]] | None = field(default_factory=list)
    """x and y of the first FIRST_UPDATES steps; None once the first of them was judged."""

    def regressor(self, scaled_prediction: float, momentum: float) -> float:
        """x of the step, in nats of unit prediction times the learning rate; call it once a
        step."""
        memory = self.memory(momentum)
        self._average = memory * self._average + (1 - memory) * scaled_prediction
        self._average_weight = memory * self._average_weight + (1 - memory)
        return self._average / self._average_weight

    @staticmethod
    def memory(momentum: float) -> float:
        """gamma: the share of a step's effect that remains for the steps after it."""
        return min(momentum, LARGEST_MOMENTUM) ** 2

    def learn(self, regressor: float, observed_change: float) -> None:
        """Add one step to the fit: its x, and y, the change of the entropy by its update, in
        nats."""
        self._add(regressor, observed_change)
        if self._first is None:
            return
        self._first.append((regressor, observed_change))
        if len(self._first) == FIRST_UPDATES:
            if is_first_wild([change for _, change in self._first]):
                self._observations = 0
                self._weight = self._x = self._y = self._xx = self._xy = 0.0
                for step in self._first[1:]:
                    self._add(*step)
            self._first = None

    def _add(self, regressor: float, observed_change: float) -> None:
        keep = 0.5 ** (1 / HALF_LIFE)
        self._observations += 1
        self._weight = keep * self._weight + 1
        self._x = keep * self._x + regressor
        self._y = keep * self._y + observed_change
        self._xx = keep * self._xx + regressor * regressor
        self._xy = keep * self._xy + regressor * observed_change

    @property
    def gain(self) -> float | None:
        """g in nats per unit of x; None before WARM_UP observations."""
        if self._observations < WARM_UP:
            return None
        # Least squares with PULL b^2 added: b = (Y - g X) / (W + PULL), put into the normal
        # equation of g.
        variation = self._xx - self._x * self._x / (self._weight + PULL)
        if variation > 0:
            return (self._xy - self._x * self._y / (self._weight + PULL)) / variation
        return None


@dataclass(slots=True)
class EntropyEstimator:
    """The entropy after a step, and where it would come to rest if all further updates were
    neutral.

    The mean over a step's tokens varies with the prompts, and the effect of an update takes some
    steps. With x, g and gamma of `Effect`, and b for what g x misses on average,

        dH_t = g x_t + b,   x_t = gamma x_(t-1) + (1 - gamma) a_t u_t     the change by step t
        s_t = H_t + (g x_t + b) gamma / (1 - gamma)       H after step t, and what is still to come

    with the learning rate a_t, so that s_t = s_(t-1) + a_t g u_t + b: a unit prediction moves the
    resting point by its size in nats at once, however slowly the entropy follows. The controller
    steers s, so it does not correct again what is under way already; and it makes up for b, without
    which the entropy would stay beside its target.

    The observed change is of the very tokens that the update learned from, and those lose more
    entropy than the next step's do. So what the observed changes miss is learnt from the steps' own
    means, slowly and within bounds:

        H_t = H_(t-1) + NEWEST_WEIGHT e_t + dH_t + c_t,   e_t: mean entropy - H_(t-1)
        c_t = c_(t-1) + MISSED_WEIGHT e_t
        |c_t| <= LARGEST_MISSED H_(t-1)

    Without the bound c would keep what a steep fall missed, and hold the entropy too low long
    after. Feed it one step at a time, in order.
    """

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
        """The estimate after one more step: of its tokens' mean entropy before the update, in nats,
        its unit prediction, in nats per unit gain, the observed change, None where it was not
        measured, and the optimiser's beta_1. With the step's learning rate a schedule moves the
        gain at once."""
        regressor = self._effect.regressor(learning_rate * unit_prediction, momentum)
        before = self._effect.gain
        if before is None:
            explained = None
        else:
            explained = before * regressor
        if self._expected is None:
            last = mean_entropy
        else:
            last = self._expected
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
