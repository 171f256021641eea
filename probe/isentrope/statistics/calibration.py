"""From the unit prediction to nats: a gain fitted on the past only, with its R² and sign agreement.

The unit prediction contains neither the learning rate nor the effects of Adam and of shared
weights. An optimiser with momentum moves along past gradients too, so that the prediction enters as
the optimiser adds up gradients (`Momentum`), each as much smaller as gradient clipping made the
gradient:

    x_t = (1 - beta) sum_k beta^k c_(t-k) u_(t-k) / (1 - beta^t)    Adam: an average, bias-corrected
    x_1 = c_1 u_1        x_t = mu x_(t-1) + (1 - dampening) c_t u_t  SGD: torch's buffer
    z_t = a_t H_t x_t                   a: learning rate, H: the step's mean entropy, c: clip factor
    predicted_t = g_(t-1) z_t           g = sum w y z / sum w z^2           (y: observed change)

with weights w halving every HALF_LIFE steps. Of the gain a_t H_t g only the factor g is fitted: the
learning rate is known, and a gain was found to shrink as the policy grows certain, about as the
entropy does. Every figure is prequential: step t is predicted before it is observed.

What is learnt is winsorised: an error counts as LARGEST_ERROR at most, so that one wild step does
not decide the gain, R² and the interval for a hundred others. No scale may bound its own growth for
long: the third wild error in WILD_STEPS steps says that the scale is wrong, and gain, interval and
scale are learnt anew from the steps since the first of them. Nothing is learnt before the first
change that is not 0: until then no update has moved the policy (a GradScaler skips the first ones),
and there is no scale.

The 90 % interval around a prediction is fitted to the residuals of earlier ones, and widens with
its own misses:

    half width_t = q_t z_n s_t                 ln q_(t+1) = ln q_t + RATE (missed_t - 0.1)
    s^2 = sum w (e^2 - n^2) / sum w

with e the residuals of earlier predictions, n the standard errors of what came, weights w halving
every INTERVAL_HALF_LIFE residuals, and z_n Student's quantile for as many residuals as the weights
amount to. With normal residuals of a constant scale q stays near 1; heavy tails and a moving scale
move it, because in the long run it comes to rest only where one change in ten is missed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from isentrope_wire.errors import InputError
from isentrope_wire.numbers import FIRST_UPDATES, is_first_wild

if TYPE_CHECKING:
    from torch.optim import Optimizer

LEVEL = 0.9
"""Share of the observed changes meant to lie in the interval."""

INTERVAL_HALF_LIFE = 6.0
"""Residuals after which one counts half. Much shorter than the gain's: in a policy that soon solves
its task residuals halve every dozen steps."""

COVERAGE_HALF_LIFE = 96.0
"""Half-life of the coverage: misses are rare, so it takes many steps to count them."""

FEWEST = 5

RATE = 0.1
"""Step of ln q. Seventy steps at twice the right width bring it back; one miss widens the interval
by 9 %."""

_NORMAL_QUANTILE = 1.6448536269514722


@dataclass(slots=True)
class PredictionInterval:
    """Call `half_width` before a step is observed and `learn` with its residual afterwards, in
    order."""

    _residuals: int = 0
    _weight: float = 0.0
    _weight_of_squares: float = 0.0
    _squares: float = 0.0
    _noise: float = 0.0
    _log_factor: float = 0.0
    _sample_error: float = 0.0
    _judged: float = 0.0
    _inside: float = 0.0

    def half_width(self) -> float | None:
        """Half width of the next observation's interval, in the residuals' unit; None while there
        are too few of them."""
        if self._residuals < FEWEST:
            return None
        # At least a quarter is the change's own: the noise is an estimate.
        square = max(self._squares - self._noise, self._squares / 4) / self._weight
        scale = max(math.sqrt(square), self._sample_error)
        effective = self._weight**2 / self._weight_of_squares
        return math.exp(self._log_factor) * student_quantile(effective) * scale

    def note_sample(self, error: float) -> None:
        """The standard error that the prediction has from the sample that it is made from: its
        residuals scatter at least as much."""
        if math.isfinite(error):
            self._sample_error = error

    @property
    def coverage(self) -> float | None:
        """Share of the observations inside their interval, the recent ones counting most; None
        before the first."""
        if self._judged:
            return self._inside / self._judged
        return None

    def learn(self, residual: float, largest: float = math.inf, noise: float = 0.0) -> None:
        """Add a step's observed minus predicted change; one that is not finite is ignored, one
        beyond `largest` is a miss like any other, but widens the interval as one of this size.

        `noise` is the standard error of the observation. The interval is that of the change itself:
        an observation misses it where it lies outside by more than its noise explains."""
        if not math.isfinite(residual):
            return
        half_width = self.half_width()
        if half_width is not None:
            self._judge(abs(residual) > math.hypot(half_width, _NORMAL_QUANTILE * noise))
        self.add(min(abs(residual), largest), noise)

    def add(self, residual: float, noise: float = 0.0) -> None:
        """Add a residual without judging whether its interval held it."""
        keep = 0.5 ** (1 / INTERVAL_HALF_LIFE)
        self._residuals += 1
        self._weight = keep * self._weight + 1
        self._weight_of_squares = keep**2 * self._weight_of_squares + 1
        self._squares = keep * self._squares + residual * residual
        self._noise = keep * self._noise + noise**2

    def forget(self) -> None:
        """Forget the residuals; the coverage so far is kept."""
        self._residuals = 0
        self._weight = self._weight_of_squares = self._squares = self._noise = 0.0

    def _judge(self, missed: bool) -> None:
        keep = 0.5 ** (1 / COVERAGE_HALF_LIFE)
        self._judged = keep * self._judged + 1
        self._inside = keep * self._inside + (not missed)
        self._log_factor += RATE * (missed - (1 - LEVEL))


def student_quantile(freedom: float) -> float:
    """Student's quantile of (1 + LEVEL) / 2 by its expansion about the normal one; within 2 % from
    3 degrees on."""
    z = _NORMAL_QUANTILE
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


HALF_LIFE = 25.0
"""Steps after which an observation counts half in the gain: long enough to average noise, short
enough to follow a run."""

TRUST_HALF_LIFE = 50.0
"""Half-life of R² and sign agreement, which need more steps than the gain."""

WARM_UP = 3
"""Observations before the first calibrated prediction: with fewer, the gain is one step's noise."""

LEVEL_PRIOR = 5.0
"""Steps that the level of coupled predictions is taken to be right for, before it is measured."""

BEND_WEIGHT = 0.5
"""Of the newest measurement in the average of a bend."""

LEVEL_WEIGHT = 0.2
"""Of the newest prediction in the average whose sign the next one is counted with."""

LARGEST_ERROR = 3.0
"""An error counts as at most so many half widths of the interval, or root mean squares of the
changes so far, whichever is more: five standard deviations of normal residuals."""

WILD_STEPS = 16
"""Steps in which WARM_UP wild errors are no chance: of tails as heavy as Student's with three
degrees of freedom it happens once in 50 000 steps."""

LARGEST_CHANGE = 700.0
"""Nats, more than the entropy of any vocabulary: an observed change beyond it is no measurement."""


@dataclass(frozen=True, slots=True)
class SeveralOptimizers:
    """Optimisers that share a model's weights, such as Muon and AdamW, as one."""

    optimizers: Sequence[Optimizer]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of all of them, as they are now."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]


def _count_trained(group: Mapping[str, Any]) -> int:
    """How many parameters of an optimiser's group are trained."""
    return sum(weight.numel() for weight in group["params"] if weight.requires_grad)


@dataclass(frozen=True, slots=True)
class Momentum:
    """How far an optimiser moves along the gradients of earlier steps."""

    beta: float = 0.0
    """beta_1 of Adam's family, momentum of SGD; 0: along the last gradient alone."""
    buffer: bool = False
    """True: gradients are added to a buffer, as in SGD. False: averaged, and the average corrected,
    as in Adam."""
    dampening: float = 0.0
    """1 minus this is the share of a gradient that enters the momentum buffer; the first one enters
    whole."""
    nesterov: bool = False
    """The update is the gradient plus momentum times the buffer."""

    @classmethod
    def read(cls, optimizer: Optimizer | SeveralOptimizers | None) -> Self | None:
        """As the optimiser's group with the most trainable parameters has it; None when there is no
        optimiser to ask."""
        if optimizer is None:
            return None
        if not hasattr(optimizer, "param_groups"):
            raise InputError(
                f"optimizer must be a torch optimiser, got {optimizer!r}. Leave it out if there is"
                " none."
            )
        group = max(optimizer.param_groups, key=_count_trained)
        if group.get("betas"):
            return cls(float(group["betas"][0]))
        return cls(
            float(group.get("momentum", 0.0)),
            # SGD and RMSprop; others average, as Muon does.
            buffer="dampening" in group or "centered" in group,
            dampening=float(group.get("dampening", 0.0)),
            nesterov=bool(group.get("nesterov", False)),
        )

    @property
    def total(self) -> float:
        """How far one gradient moves the parameters in all the steps to come, in updates along it
        alone."""
        if not self.buffer or self.beta == 0:
            return 1.0
        buffered = (1 - self.dampening) / (1 - min(self.beta, 0.9999))
        if self.nesterov:
            return 1 + self.beta * buffered
        return buffered


@dataclass(frozen=True, slots=True)
class CalibratedPrediction:
    """The prediction of a step and its quality. A value is None while there are too few past
    steps."""

    predicted_change: float | None
    """In nats; made from the past alone."""
    gain: float | None
    """Gain of the step just learnt from: nats per unit of the averaged unit prediction."""
    gain_error: float | None
    """Its standard error."""
    r2: float | None
    """1 - (squared error of the predictions) / (squared error of predicting the past's mean
    change)."""
    sign_agreement: float | None
    """Share of steps whose predicted and observed change had the same sign."""
    low: float | None = None
    high: float | None = None
    """Where 90 % of the observed changes are expected, in nats; made from the past alone."""
    interval_coverage: float | None = None
    """Share of earlier observed changes, the recent ones above all, that lay in the interval they
    were given."""


class MeasuredChange(Protocol):
    """A mean change of H, in nats, and its standard error."""

    @property
    def mean(self) -> float: ...
    @property
    def error(self) -> float: ...


class ChangeOfUnseen(Protocol):
    """Of tokens that no update is fitted to."""

    @property
    def judge(self) -> MeasuredChange: ...
    @property
    def made_from(self) -> MeasuredChange | None: ...


class CoupledProduct(Protocol):
    """<h, update>, in nats, and how many updates were made with this h before."""

    @property
    def change(self) -> float: ...
    @property
    def age(self) -> float: ...


@dataclass(slots=True)
class Bend:
    """How the entropy bends along the updates: a gradient is too steep, an older one more.

    H is taken as quadratic and neighbouring updates as alike. Then the k-th update that is made
    with one h, from 0 on, changes H by

        <h, d_k> + (k + 1/2) b

    b is measured on the tokens that h was made from: their own change has the noise of the sample
    that the product has."""

    nats: float = 0.0
    """b; an average in which the newest measurement counts BEND_WEIGHT."""

    def correct(self, coupled: CoupledProduct) -> float:
        """The change, in nats, that a product stands for: between half of it and all of it.

        An update much smaller than its neighbours bends less. And where the entropy fell ever
        faster, as in the first steps of a run, it soon does no more."""
        share = 0.0
        if coupled.change:
            share = (coupled.age + 0.5) * self.nats / coupled.change
        return coupled.change * (1 + min(max(share, -0.5), 0.0))

    def learn(self, coupled: CoupledProduct, came: float) -> None:
        """Add the change of the tokens that h was made from, in nats."""
        measured = (came - coupled.change) / (coupled.age + 0.5)
        if math.isfinite(measured):
            self.nats += BEND_WEIGHT * (measured - self.nats)


@dataclass(slots=True)
class CoupledLevel:
    """The factor that brings coupled predictions to the level of what came: the tokens that they
    are made from are some steps old.

    Least squares would make it too small, for a prediction from few tokens is noisy. So it is the
    ratio of two sums, with the sign that earlier predictions have, whose noise is independent:

        factor = (sum_t m_t y_t + prior) / (sum_t m_t x_t + prior)      x predicted, y came

    where m_t is the sign of the average of the predictions before t, and the prior stands for
    LEVEL_PRIOR steps in which the prediction was right."""

    factor: float = 1.0
    _average: float | None = None
    _came: float = 0.0
    _predicted: float = 0.0
    _size: float = 0.0
    _weight: float = 0.0

    def learn(self, predicted: float, came: float) -> None:
        """Add a step's prediction before the factor, and the change that came, in nats."""
        keep = 0.5 ** (1 / HALF_LIFE)
        self._size = keep * self._size + abs(predicted)
        self._weight = keep * self._weight + 1
        if self._average is None:
            self._average = predicted
            return
        sign = math.copysign(1, self._average)
        self._came = keep * self._came + sign * came
        self._predicted = keep * self._predicted + sign * predicted
        self._average += LEVEL_WEIGHT * (predicted - self._average)
        prior = LEVEL_PRIOR * self._size / self._weight
        if prior:
            self.factor = (max(self._came, 0.0) + prior) / (max(self._predicted, 0.0) + prior)


@dataclass(slots=True)
class Calibration:
    """Call `step` once per step, in order."""

    _moved: float = 0.0
    _moved_weight: float = 0.0
    _size: float = 1.0
    _xy: float = 0.0
    _xx: float = 0.0
    _yy: float = 0.0
    _points: float = 0.0
    _observations: int = 0
    _weight: float = 0.0
    _mean_observed: float = 0.0
    _mean_square: float = 0.0
    _compared: float = 0.0
    _squared_error: float = 0.0
    _squared_error_of_mean: float = 0.0
    _same_sign: float = 0.0
    _interval: PredictionInterval = field(default_factory=PredictionInterval)
    _noise: float = 0.0
    _coupled_product: float = 0.0
    _coupled_square: float = 0.0
    _level: CoupledLevel = field(default_factory=CoupledLevel)
    _bend: Bend = field(default_factory=Bend)
    _since_wild: deque[tuple[float, float, float, float, bool]] = field(
        default_factory=lambda: deque(maxlen=WILD_STEPS)
    )
    """Steps since a wild error: regressor, observed change, residual that is not the gain's (NaN:
    it is), the noise of that, and whether the error was wild."""
    _first: list[tuple[float, float, float, float]] | None = field(default_factory=list)
    """The same of the first FIRST_UPDATES steps; None once the first of them was judged."""

    def step(
        self,
        unit_prediction: float,
        observed_change: float | None,
        momentum: Momentum,
        size: float = 1.0,
        clip_factor: float = 1.0,
        *,
        coupled: CoupledProduct | None = None,
        is_part: bool = False,
        unseen: ChangeOfUnseen | None = None,
    ) -> CalibratedPrediction:
        """Predict this step from the past, then learn from its observed change, the mean change of
        H in nats, if it was measured. `size` is a_t H_t, to which the step's gain is assumed
        proportional, in any unit that does not change; `clip_factor` is what clipping multiplied
        the gradient by. The coupled prediction is corrected by `Bend` and brought to its level by
        `CoupledLevel`, or times a factor by least squares where it `is_part` of the weights alone;
        the gain is fitted all the same, for what-if. It is judged by the tokens of `unseen` that it
        is not made from; without, by the observed change."""
        if not math.isfinite(unit_prediction * size * clip_factor):
            return self._prediction(None, size=self._size)
        self._size = size * momentum.total * clip_factor
        regressor = size * self._project_update(unit_prediction * clip_factor, momentum)
        factor = self._factor()
        if factor is None:
            predicted = None
        else:
            predicted = factor * regressor
        product = self._product(coupled, is_part)
        if product is not None:
            predicted = product * self._coupled_factor(is_part)
        if predicted is None:
            half_width = None
        else:
            half_width = self._interval.half_width()
        if observed_change is not None and self._is_measurement(observed_change):
            came, noise = observed_change, 0.0
            if unseen is None or product is None:
                judge = None
            else:
                judge = unseen.judge
            if judge is not None and self._is_measurement(judge.mean):
                came, noise = judge.mean, judge.error
            if product is None or predicted is None:
                beside = math.nan
            else:
                beside = came - predicted
            # A level learnt from the first updates would be wrong for dozens of steps.
            is_typical = self._observations >= FIRST_UPDATES
            self._observe(regressor, observed_change, predicted, half_width, beside, noise)
            if product is not None:
                keep = 0.5 ** (1 / HALF_LIFE)
                self._coupled_product = keep * self._coupled_product + product * observed_change
                self._coupled_square = keep * self._coupled_square + product * product
                if is_typical:
                    self._level.learn(product, came)
        if unseen is None:
            made_from = None
        else:
            made_from = unseen.made_from
        if coupled is not None and made_from is not None:
            if not is_part and self._observations > FIRST_UPDATES:
                self._bend.learn(coupled, made_from.mean)
            self._interval.note_sample(made_from.error)
        return self._prediction(predicted, half_width, size=self._size)

    def _product(self, coupled: CoupledProduct | None, is_part: bool) -> float | None:
        """In nats, before the level; None: there is none."""
        if coupled is None or not math.isfinite(coupled.change):
            return None
        if is_part:
            return coupled.change
        return self._bend.correct(coupled)

    def _coupled_factor(self, is_part: bool) -> float:
        if not is_part:
            return self._level.factor
        if self._coupled_square > 0:
            return self._coupled_product / self._coupled_square
        return 1.0

    def _is_measurement(self, change: float) -> bool:
        """Whether there is something to learn: before the first change other than 0 there is no
        scale."""
        return abs(change) <= LARGEST_CHANGE and (self._mean_square > 0 or change * change > 0)

    def _observe(
        self,
        regressor: float,
        observed: float,
        predicted: float | None,
        half_width: float | None,
        beside: float,
        noise: float,
    ) -> None:
        """Learn from one observed change; `predicted` was made of the past. `beside` is the
        residual of tokens that a coupled prediction is not made from, with its `noise`; NaN: that
        of the observed change."""
        if predicted is None or self._observations < WARM_UP:
            self._learn(regressor, observed, observed - self._mean_observed)
        else:
            self._learn_within(regressor, observed, predicted, half_width, beside, noise)
        if self._first is not None:
            self._first.append((regressor, observed, beside, noise))
            if len(self._first) == FIRST_UPDATES:
                if is_first_wild([change for _, change, *_ in self._first]):
                    self._begin_again(self._first[1:])
                self._first = None

    def _learn_within(
        self,
        regressor: float,
        observed: float,
        predicted: float,
        half_width: float | None,
        beside: float,
        noise: float,
    ) -> None:
        """Learn no more of an error than LARGEST_ERROR allows."""
        largest = LARGEST_ERROR * max(half_width or 0.0, math.sqrt(self._mean_square))
        own = observed - predicted
        residual = beside
        if math.isnan(beside):
            residual = own
        deviation = _clamp_share(largest, residual + predicted - self._mean_observed)
        same_sign = (predicted > 0) == (observed > 0)
        self._compare(_clamp_share(largest, residual), deviation, noise, same_sign=same_sign)
        if math.isnan(beside) or self._observations >= FIRST_UPDATES:
            self._interval.learn(residual, largest, noise)
        own_deviation = _clamp_share(largest, observed - self._mean_observed)
        self._learn(regressor, predicted + _clamp_share(largest, own), own_deviation)
        is_wild = abs(own) > largest
        if is_wild or self._since_wild:
            self._since_wild.append((regressor, observed, beside, noise, is_wild))
            self._learn_anew_if_wrong()

    def _learn_anew_if_wrong(self) -> None:
        """Begin again with the steps since the first wild error, once it is not the errors that are
        wild but the scale that is wrong. What is known of R² and coverage stays."""
        steps = self._since_wild
        while steps and not steps[0][-1]:
            steps.popleft()
        if sum(is_wild for *_, is_wild in steps) < WARM_UP:
            return
        self._begin_again([step[:4] for step in steps])
        steps.clear()

    def _begin_again(self, steps: Sequence[tuple[float, float, float, float]]) -> None:
        self._xy = self._xx = self._weight = self._mean_observed = self._mean_square = 0.0
        self._yy = self._points = 0.0
        self._observations = 0
        for regressor, observed, *_ in steps:
            self._learn(regressor, observed, observed - self._mean_observed)
        factor = self._factor() or 0.0
        self._interval.forget()
        for regressor, observed, beside, noise in steps:
            residual = beside
            if math.isnan(beside):
                residual = observed - factor * regressor
            self._interval.add(residual, noise)

    def _project_update(self, unit: float, momentum: Momentum) -> float:
        """What the optimiser moves along in this step, in the unit prediction's unit."""
        beta = momentum.beta
        if not momentum.buffer:
            self._moved = beta * self._moved + (1 - beta) * unit
            self._moved_weight = beta * self._moved_weight + (1 - beta)
            return self._moved / self._moved_weight
        first = self._moved_weight == 0 or beta == 0
        if first:
            self._moved = unit
        else:
            self._moved = beta * self._moved + (1 - momentum.dampening) * unit
        self._moved_weight = 1.0
        if momentum.nesterov:
            return unit + beta * self._moved
        return self._moved

    def _factor(self) -> float | None:
        if self._observations >= WARM_UP and self._xx > 0:
            return self._xy / self._xx
        return None

    def _factor_error(self, factor: float) -> float:
        """Standard error of the factor, from what the regression leaves over."""
        left = max(self._yy - factor * self._xy, 0.0)
        return math.sqrt(left / max(self._points - 1, 1) / self._xx)

    def _prediction(
        self, predicted: float | None, half_width: float | None = None, *, size: float
    ) -> CalibratedPrediction:
        compared, factor = self._compared > 0, self._factor()
        low = high = gain = gain_error = None
        if predicted is not None and half_width is not None:
            low, high = predicted - half_width, predicted + half_width
        if factor is not None:
            gain, gain_error = factor * size, self._factor_error(factor) * size
        return CalibratedPrediction(
            predicted_change=predicted,
            gain=gain,
            gain_error=gain_error,
            r2=self._r2(),
            sign_agreement=self._same_sign / self._compared if compared else None,
            low=low,
            high=high,
            interval_coverage=self._interval.coverage,
        )

    def _r2(self) -> float | None:
        """Of the changes themselves: the noise of their measurement is taken off both errors. None
        where hardly anything else is left."""
        by_mean = self._squared_error_of_mean - self._noise
        if not self._compared or by_mean <= self._squared_error_of_mean / 10:
            return None
        return 1 - max(self._squared_error - self._noise, 0.0) / by_mean

    def _compare(self, error: float, deviation: float, noise: float, *, same_sign: bool) -> None:
        keep = 0.5 ** (1 / TRUST_HALF_LIFE)
        self._compared = keep * self._compared + 1
        self._squared_error = keep * self._squared_error + error**2
        self._squared_error_of_mean = keep * self._squared_error_of_mean + deviation**2
        self._noise = keep * self._noise + noise**2
        self._same_sign = keep * self._same_sign + same_sign

    def _learn(self, regressor: float, observed: float, deviation: float) -> None:
        keep = 0.5 ** (1 / HALF_LIFE)
        self._observations += 1
        self._xy = keep * self._xy + regressor * observed
        self._xx = keep * self._xx + regressor * regressor
        self._yy = keep * self._yy + observed * observed
        self._points = keep * self._points + 1
        self._weight = 0.5 ** (1 / TRUST_HALF_LIFE) * self._weight + 1
        self._mean_square += (
            (self._mean_observed + deviation) ** 2 - self._mean_square
        ) / self._weight
        self._mean_observed += deviation / self._weight


def _clamp_share(largest: float, error: float) -> float:
    return min(max(error, -largest), largest)
