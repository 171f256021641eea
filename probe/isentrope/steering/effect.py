"""What a step's unit prediction does to the entropy, told apart from what happens anyway.

    dH_t = g x_t + b        x_t = gamma x_(t-1) + (1 - gamma) a_t u_t, gamma = beta_1^2, a_t: learning rate

by least squares with weights that halve every HALF_LIFE steps. The calibration's gain (`statistics/calibration.py`) has
no b and is no gain to steer by. A held entropy stands still because g x makes up for b; a line through the origin reads
that as a gain near 0, and a controller that believes in half the gain corrects twice as much, until the entropy swings.
In a held run of the reference trainer the line through the origin fell from 2.0 to 0.95 within 190 steps, while a free
fit of ten steps' effects summed to 1.9 to 2.3 all along.

gamma is smaller than the optimiser's beta_1 because an update that is older than a few steps moves the entropy of today's
tokens less than momentum says: on three stretches of that run gamma = beta_1^2 explained 0.39, 0.34 and 0.47 of the
variance, beta_1 itself 0.26, 0.38 and 0.50, and on the run that once swung 0.40 and 0.55 against 0.30 and 0.42.
"""

from __future__ import annotations

from dataclasses import dataclass

HALF_LIFE = 50.0
"""Steps after which an observation counts half."""

WARM_UP = 3
"""Observations before the first gain."""

PULL = 10.0
"""Steps' weight with which b is held at 0: a run just begun can't tell a drift from the effect of its own updates, whose
averages hardly differ."""

LARGEST_MOMENTUM = 0.99
"""Beyond it the effect of a step lasts for hundreds, and is not worth steering by."""


@dataclass(slots=True)
class Effect:
    """Feed it one step at a time, in order."""

    _average: float = 0.0
    _average_weight: float = 0.0
    _observations: int = 0
    _weight: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    def regressor(self, scaled_prediction: float, momentum: float) -> float:
        """x of the step, once a step.

        Args:
            scaled_prediction: the unit prediction times the learning rate.
            momentum: the optimiser's beta_1, 0 for plain SGD.
        """
        memory = self.memory(momentum)
        self._average = memory * self._average + (1 - memory) * scaled_prediction
        self._average_weight = memory * self._average_weight + (1 - memory)
        return self._average / self._average_weight

    @staticmethod
    def memory(momentum: float) -> float:
        """gamma: the share of a step's effect that is left for the steps after it."""
        return min(momentum, LARGEST_MOMENTUM) ** 2

    def learn(self, regressor: float, observed_change: float) -> None:
        """
        Args:
            observed_change: y, what the step's update did to the entropy, in nats.
        """
        keep = 0.5 ** (1 / HALF_LIFE)
        self._observations += 1
        self._weight = keep * self._weight + 1
        self._x = keep * self._x + regressor
        self._y = keep * self._y + observed_change
        self._xx = keep * self._xx + regressor * regressor
        self._xy = keep * self._xy + regressor * observed_change

    @property
    def gain(self) -> float | None:
        """g, nats per unit of x; None while there is too little past to say it."""
        if self._observations < WARM_UP:
            return None
        # Least squares with PULL b^2 added: b = (Y - g X) / (W + PULL), put into the normal equation of g.
        variation = self._xx - self._x * self._x / (self._weight + PULL)
        return (self._xy - self._x * self._y / (self._weight + PULL)) / variation if variation > 0 else None
