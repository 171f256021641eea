"""From the unit prediction to nats: a gain fitted on the past only, with its R² and sign agreement.

The unit prediction contains neither the learning rate nor the effects of Adam and of shared weights. An optimiser with
momentum moves along past gradients too, which is why the prediction enters as its exponential average with the
optimiser's own beta_1:

    m_t = beta_1 m_(t-1) + (1 - beta_1) u_t          x_t = m_t / (1 - beta_1^t)          (bias-corrected, as in Adam)
    z_t = a_t H_t x_t                                a: learning rate, H: the step's mean entropy
    predicted_t = g_(t-1) z_t                        g = sum w y z / sum w z^2           (y: observed change)

with weights w halving every HALF_LIFE steps. Of the gain a_t H_t g only the factor g is fitted: the learning rate is
known, and a gain was found to shrink as the policy grows certain, about as the entropy does (docs/prediction.md compares
regressors). Every figure is prequential: step t is predicted before it is observed.

The 90 % interval around a prediction is fitted to the residuals of earlier ones, and widens with its own misses:

    half width_t = q_t z_n s_t      s^2 = sum w e^2 / sum w      ln q_(t+1) = ln q_t + RATE (missed_t - 0.1)

with e the residuals of earlier predictions, weights w halving every INTERVAL_HALF_LIFE residuals, and z_n Student's
quantile for as many residuals as the weights amount to. With normal residuals of a constant scale q stays near 1; heavy
tails and a moving scale move it, because in the long run it comes to rest only where one change in ten is missed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

LEVEL = 0.9
"""Share of the observed changes meant to lie in the interval."""

INTERVAL_HALF_LIFE = 6.0
"""Residuals after which one counts half. Much shorter than the gain's: a policy that soon solves its task makes residuals
that halve every dozen steps, and an interval that remembered more of them would cover everything."""

COVERAGE_HALF_LIFE = 96.0
"""The same in the coverage, a share of rare events that needs many of them to mean anything."""

FEWEST = 5
"""Residuals before the first interval."""

RATE = 0.1
"""Step of ln q. Seventy steps at twice the right width bring it back; one miss widens the interval by 9 %."""

_NORMAL_QUANTILE = 1.6448536269514722
"""Of (1 + LEVEL) / 2."""


@dataclass(slots=True)
class PredictionInterval:
    """Call `half_width` before a step is observed and `learn` with its residual afterwards, in order."""

    _residuals: int = 0
    _weight: float = 0.0
    _weight_of_squares: float = 0.0
    _squares: float = 0.0
    _log_factor: float = 0.0
    _judged: float = 0.0
    _inside: float = 0.0

    def half_width(self) -> float | None:
        """Of the next observation's interval, in the residuals' unit; None while there are too few of them."""
        if self._residuals < FEWEST:
            return None
        scale = math.sqrt(self._squares / self._weight)
        effective = self._weight**2 / self._weight_of_squares
        return math.exp(self._log_factor) * student_quantile(effective) * scale

    @property
    def coverage(self) -> float | None:
        """Share of the observations inside their interval, the recent ones counting most; None before the first."""
        return self._inside / self._judged if self._judged else None

    def learn(self, residual: float) -> None:
        """Add a step's observed minus predicted change; a residual that is not finite is ignored."""
        if not math.isfinite(residual):
            return
        half_width = self.half_width()
        if half_width is not None:
            self._judge(abs(residual) > half_width)
        keep = 0.5 ** (1 / INTERVAL_HALF_LIFE)
        self._residuals += 1
        self._weight = keep * self._weight + 1
        self._weight_of_squares = keep**2 * self._weight_of_squares + 1
        self._squares = keep * self._squares + residual**2

    def _judge(self, missed: bool) -> None:
        keep = 0.5 ** (1 / COVERAGE_HALF_LIFE)
        self._judged = keep * self._judged + 1
        self._inside = keep * self._inside + (not missed)
        self._log_factor += RATE * (missed - (1 - LEVEL))


def student_quantile(freedom: float) -> float:
    """Student's quantile of (1 + LEVEL) / 2 by its expansion about the normal one; within 2 % from 3 degrees on."""
    z = _NORMAL_QUANTILE
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


HALF_LIFE = 25.0
"""Steps after which an observation counts half in the gain: long enough to average noise, short enough to follow a run."""

TRUST_HALF_LIFE = 50.0
"""The same in R² and sign agreement, which are shares of noisy steps and need more of them."""

WARM_UP = 3
"""Observations before the first calibrated prediction: with fewer, the gain is one step's noise."""


@dataclass(frozen=True, slots=True)
class CalibratedPrediction:
    """The prediction of a step and its quality. A value is None while there are too few past steps."""

    predicted_change: float | None
    """In nats; made from the past alone."""
    gain: float | None
    """Of the step just learnt from: nats per unit of the averaged unit prediction."""
    r2: float | None
    """1 - (squared error of the predictions) / (squared error of predicting the past's mean change)."""
    sign_agreement: float | None
    """Share of steps whose predicted and observed change had the same sign."""
    low: float | None = None
    high: float | None = None
    """Where 90 % of the observed changes are expected, in nats; made from the past alone."""
    interval_coverage: float | None = None
    """Share of earlier observed changes, the recent ones above all, that lay in the interval they were given."""


@dataclass(slots=True)
class Calibration:
    """Call `step` once per step, in order."""

    _average: float = 0.0
    _average_weight: float = 0.0
    _size: float = 1.0
    _xy: float = 0.0
    _xx: float = 0.0
    _observations: int = 0
    _weight: float = 0.0
    _mean_observed: float = 0.0
    _compared: float = 0.0
    _squared_error: float = 0.0
    _squared_error_of_mean: float = 0.0
    _same_sign: float = 0.0
    _interval: PredictionInterval = field(default_factory=PredictionInterval)

    def step(
        self, unit_prediction: float, observed_change: float | None, momentum: float, size: float = 1.0
    ) -> CalibratedPrediction:
        """Predict this step from the past, then learn from its observed change if there is one.

        Args:
            unit_prediction: -mean(keep r A S_c) of the step.
            observed_change: Mean change of H on the same tokens in nats, None when it was not measured.
            momentum: The optimiser's beta_1, 0 for plain SGD.
            size: a_t H_t, to which the step's gain is assumed proportional, in any unit that does not change.
        """
        if not math.isfinite(unit_prediction) or not math.isfinite(size):
            return self._prediction(None, size=self._size)
        self._size = size
        self._average = momentum * self._average + (1 - momentum) * unit_prediction
        self._average_weight = momentum * self._average_weight + (1 - momentum)
        regressor = size * self._average / self._average_weight
        factor = self._factor()
        predicted = None if factor is None else factor * regressor
        half_width = None if predicted is None else self._interval.half_width()
        if observed_change is not None and math.isfinite(observed_change):
            if predicted is not None:
                self._compare(predicted, observed_change)
                self._interval.learn(observed_change - predicted)
            self._learn(regressor, observed_change)
        return self._prediction(predicted, half_width, size=size)

    def _factor(self) -> float | None:
        return self._xy / self._xx if self._observations >= WARM_UP and self._xx > 0 else None

    def _prediction(
        self, predicted: float | None, half_width: float | None = None, *, size: float
    ) -> CalibratedPrediction:
        compared, factor = self._compared > 0, self._factor()
        return CalibratedPrediction(
            predicted_change=predicted,
            gain=None if factor is None else factor * size,
            r2=(
                1 - self._squared_error / self._squared_error_of_mean
                if compared and self._squared_error_of_mean > 0
                else None
            ),
            sign_agreement=self._same_sign / self._compared if compared else None,
            low=predicted - half_width if predicted is not None and half_width is not None else None,
            high=predicted + half_width if predicted is not None and half_width is not None else None,
            interval_coverage=self._interval.coverage,
        )

    def _compare(self, predicted: float, observed: float) -> None:
        keep = 0.5 ** (1 / TRUST_HALF_LIFE)
        self._compared = keep * self._compared + 1
        self._squared_error = keep * self._squared_error + (observed - predicted) ** 2
        self._squared_error_of_mean = keep * self._squared_error_of_mean + (observed - self._mean_observed) ** 2
        self._same_sign = keep * self._same_sign + ((predicted > 0) == (observed > 0))

    def _learn(self, regressor: float, observed: float) -> None:
        keep = 0.5 ** (1 / HALF_LIFE)
        self._observations += 1
        self._xy = keep * self._xy + regressor * observed
        self._xx = keep * self._xx + regressor * regressor
        self._weight = 0.5 ** (1 / TRUST_HALF_LIFE) * self._weight + 1
        self._mean_observed += (observed - self._mean_observed) / self._weight
