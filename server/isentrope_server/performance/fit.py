"""The fit R = -a exp(H) + b of a run's reward R against its entropy H       arXiv:2505.22617, eq. 6

Both series are averaged over at most BLOCKS stretches of neighbouring steps. The reward is then
regressed on the trend of exp(H), and, apart from it, on what exp(H) scatters about that trend: the
batch's own entropy may move the reward or be an error of measurement, and a is right in either
case. Errors may drift slowly (see `slow_noise`).

Least squares draws a curve through any points. So four checks come with the fit: that the reward
rises as entropy falls, that no bend is left over, that both halves of the run follow one curve, and
that H = 0 is near enough for a ceiling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isentrope_server.performance.slow_noise import Floats, Regression, regress, smooth_trend
from isentrope_wire.control_answers import Check, Estimate, Forecast
from isentrope_wire.errors import IsentropeError

CONFIDENCE = 0.9
SIGNIFICANCE = 0.01
"""A check fails where chance alone fails it less often than this."""
BLOCKS = 50
FEWEST_STEPS = 20
LEAST_RELIABILITY = 0.5
"""Share of the spread of H that must be movement and not scatter from step to step."""
LEAST_MOVEMENT = 1e-6
"""Least spread of exp(H) over its mean: less is rounding error of a constant entropy."""
LARGEST_SHARE_OF_ONE_BLOCK = 0.8
"""Largest share of the squared spread of exp(H): with more, the line goes through two points and
fits any curve."""
FARTHEST = 1.0
"""How far outside the seen values of exp(H) the curve is used, over their range."""
EARLY_SHARE = 0.15
FINAL_SHARE = 0.05
_FEWEST_FINAL_STEPS = 5


class FitRefused(IsentropeError, ValueError):
    """The run's steps do not determine the coefficients; the message names the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceFit:
    """The curve that one run follows."""

    regression: Regression
    """Regression on the constant, exp(H) as centred and scaled, and perhaps the scatter."""
    centre: float
    scale: float
    seen: tuple[float, float]
    """Smallest and largest exp(H) of the trend."""
    a: Estimate
    b: Estimate
    checks: tuple[Check, ...]
    r2: float
    """Share of the block means' variance that the curve explains."""
    entropy_scatter: float
    """Standard deviation of a block's entropy about its trend, in nats."""

    @property
    def conclusive(self) -> bool:
        """Whether the run follows the curve, and its reward rises as entropy falls."""
        return all(check.passed for check in self.checks if check.code != "reach")

    @property
    def ceiling(self) -> Estimate | None:
        """b - a, the reward at H = 0; None where it does not follow."""
        if all(check.passed for check in self.checks):
            return self.rewards_at(np.zeros(1))[0]
        return None

    @property
    def lowest_entropy(self) -> float:
        """Down to which the curve is used, in nats."""
        return math.log(max(1.0, self.seen[0] - FARTHEST * self.scale))

    def reaches(self, entropy: float) -> bool:
        """Whether the entropy lies near enough to those seen."""
        away = max(self.seen[0] - math.exp(entropy), math.exp(entropy) - self.seen[1])
        return away <= FARTHEST * self.scale

    def rewards_at(self, entropies: Floats) -> list[Estimate]:
        """The mean reward at each entropy. The interval is the curve's; single steps scatter about
        it."""
        return _estimates(self.regression, 1.0, (np.exp(entropies) - self.centre) / self.scale)


def fit_performance(entropies: Floats, rewards: Floats) -> PerformanceFit:
    """Fit mean rewards to mean entropies in nats of one run's steps, both [steps], by rising step.
    FitRefused: too few steps, an entropy that did not move, or a reward that never changed."""
    if len(entropies) < FEWEST_STEPS:
        raise FitRefused(
            "too_few_steps",
            f"The fit needs at least {FEWEST_STEPS} steps with entropy and reward, there are"
            f" {len(entropies)}.",
        )
    measured, values = block_means(np.exp(entropies), BLOCKS), block_means(rewards, BLOCKS)
    steps_per_block = len(entropies) / len(measured)
    if float(measured.std()) <= LEAST_MOVEMENT * float(measured.mean()):
        raise _not_moved(entropies)
    if float(values.std()) <= 1e-12 * max(1.0, float(np.abs(values).max())):
        raise FitRefused(
            "reward_constant",
            f"The reward was {values[0]:.4g} throughout: there is nothing to explain.",
        )
    logarithms, covariance, scatter = smooth_trend(np.log(measured))
    if 1 - scatter**2 / float(np.log(measured).var()) < LEAST_RELIABILITY:
        raise _not_moved(entropies)

    trend = np.exp(logarithms)
    centre, scale = float(trend.mean()), float(np.ptp(trend))
    x = (trend - centre) / scale
    design = _select_columns(np.stack([np.ones_like(x), x], axis=1), (measured - trend) / scale)
    slope, of_scatter = [*regress(design, values, steps_per_block).mean[1:], 0.0][:2]
    # The reward follows this share of the scatter. The rest is an error of x, which the trend has
    # in part.
    followed = 0.0
    if slope:
        followed = min(1.0, max(0.0, of_scatter / slope))
    blur = ((1 - followed) * slope / scale) ** 2 * (trend[:, None] * covariance * trend)

    regression = regress(design, values, steps_per_block, blur)
    a = _estimates(regression, 0.0, np.array([-1 / scale]))[0]
    late = np.arange(len(x)) >= len(x) / 2
    p_bend, p_halves = (
        _p_value(design, columns, values, steps_per_block, blur)
        for columns in ([x**2], [late.astype(float), late * (x - x[late].mean())])
    )
    residuals = values - design[:, :2] @ regression.mean[:2]
    return PerformanceFit(
        regression=regression,
        centre=centre,
        scale=scale,
        seen=(float(trend.min()), float(trend.max())),
        a=a,
        b=_estimates(regression, 1.0, np.array([-centre / scale]))[0],
        checks=tuple(
            Check(code=code, passed=passed, message=message)
            for code, (passed, message) in {
                "slope": _check_slope(a),
                "shape": _check_shape(p_bend, float((x**2).max() / (x**2).sum())),
                "halves": _check_halves(p_halves),
                "reach": _check_reach(trend),
            }.items()
        ),
        r2=1 - float(residuals @ residuals) / float(((values - values.mean()) ** 2).sum()),
        entropy_scatter=scatter,
    )


def forecast(
    steps: NDArray[np.int64],
    entropies: Floats,
    rewards: Floats,
    *,
    horizon: int,
    run_over: bool = True,
) -> Forecast:
    """Predict the last rewards from the first EARLY_SHARE of `horizon` steps, and compare with what
    came.

    Steps, entropies and rewards are [steps], as in `fit_performance`. `horizon` is the number of
    steps that the run has, or is planned to have; where it is not over, the last steps are those so
    far. FitRefused: the early part has too little information, is not complete, or its entropies
    are far from the last."""
    # By the steps' numbers: a loop may report its reward every tenth step only.
    early = int((steps - steps[:1] < math.ceil(EARLY_SHARE * horizon)).sum())
    if len(steps) <= early:
        raise FitRefused(
            "too_early", f"The first {EARLY_SHARE:.0%} of {horizon} steps are not over yet."
        )
    try:
        fit = fit_performance(entropies[:early], rewards[:early])
    except FitRefused as refused:
        raise FitRefused(
            refused.code, f"From the first {EARLY_SHARE:.0%} of {horizon} steps: {refused}"
        ) from refused
    last = min(len(steps) - early, max(_FEWEST_FINAL_STEPS, round(FINAL_SHARE * len(steps))))
    at_entropy = math.log(float(np.exp(entropies[-last:]).mean()))
    if not fit.reaches(at_entropy):
        low, high = np.log(fit.seen)
        raise FitRefused(
            "too_far",
            f"The first {EARLY_SHARE:.0%} of {horizon} steps saw entropies between {low:.3g} and"
            f" {high:.3g} nats; {at_entropy:.3g} nats is too far from them for a forecast.",
        )
    reward, actual = fit.rewards_at(np.array([at_entropy]))[0], float(rewards[-last:].mean())
    return Forecast(
        through_step=int(steps[early - 1]),
        at_entropy=at_entropy,
        reward=reward,
        actual=actual,
        error=reward.value - actual,
        final_steps=last,
        run_over=run_over,
    )


def block_means(values: Floats, blocks: int) -> Floats:
    """Means over `blocks` stretches of neighbours whose lengths differ by one at most; `values`
    itself if shorter."""
    if len(values) <= blocks:
        return values
    edges = np.linspace(0, len(values), blocks + 1).astype(np.intp)
    means: Floats = np.add.reduceat(values, edges[:-1]) / np.diff(edges)
    return means


def _not_moved(entropies: Floats) -> FitRefused:
    return FitRefused(
        "entropy_not_moved",
        f"Entropy stayed between {entropies.min():.4g} and {entropies.max():.4g} nats, which is"
        " little more than it scatters from step to step: no curve can be fitted.",
    )


def _select_columns(design: Floats, *columns: Floats) -> Floats:
    """The design with those columns that add something to it."""
    for column in columns:
        wider = np.column_stack([design, column])
        if np.linalg.matrix_rank(wider, tol=1e-6 * math.sqrt(len(column))) == wider.shape[1]:
            design = wider
    return design


def _p_value(
    design: Floats, columns: list[Floats], values: Floats, steps_per_block: float, blur: Floats
) -> float | None:
    """How often chance alone makes these columns, at most two, matter as much as they do; None if
    they add nothing."""
    count = design.shape[1]
    wider = _select_columns(design, *columns)
    added, degrees = wider.shape[1] - count, len(values) - wider.shape[1]
    if not added:
        return None
    regression = regress(wider, values, steps_per_block, blur)
    mean, covariance = regression.mean[count:], regression.covariance[count:, count:]
    form = float(mean @ np.linalg.solve(covariance, mean))
    if added == 2:
        return float(
            (1 + form / degrees) ** (-degrees / 2)
        )  # Fisher's F with two degrees of freedom
    normal = math.sqrt(form / (1 + form / (2 * degrees))) * (
        1 - 1 / (4 * degrees)
    )  # of Student's t
    return math.erfc(normal / math.sqrt(2))


def _check_slope(a: Estimate) -> tuple[bool, str]:
    interval = f"{a.low:.3g} to {a.high:.3g}"
    if a.low > 0:
        return True, f"The reward rises as entropy falls: a is {interval}."
    if a.high < 0:
        return False, f"The reward falls as entropy falls: a is {interval}."
    return (
        False,
        (
            f"Whether the reward rises as entropy falls is open: the interval of a, {interval},"
            " contains 0."
        ),
    )


def _check_shape(p: float | None, share: float) -> tuple[bool, str]:
    if p is None or share > LARGEST_SHARE_OF_ONE_BLOCK:
        return (
            False,
            (
                "Entropy moved within one short stretch of steps, so the shape of the curve can't"
                " be checked."
            ),
        )
    if p < SIGNIFICANCE:
        return (
            False,
            (
                "The run bends away from the curve: a quadratic term in exp(H) is needed"
                f" ({_written(p)})."
            ),
        )
    return (
        True,
        f"The run follows the curve: a quadratic term in exp(H) is not needed ({_written(p)}).",
    )


def _check_halves(p: float | None) -> tuple[bool, str]:
    if p is not None and p < SIGNIFICANCE:
        return (
            False,
            f"The second half of the run follows another curve than the first ({_written(p)}).",
        )
    return (
        True,
        f"Both halves of the run follow one curve{'' if p is None else f' ({_written(p)})'}.",
    )


def _check_reach(trend: Floats) -> tuple[bool, str]:
    away = (float(trend.min()) - 1) / float(np.ptp(trend))
    low, high = np.log((trend.min(), trend.max()))
    seen = f"Entropies between {low:.3g} and {high:.3g} nats were seen"
    enough = "near enough"
    if away > FARTHEST:
        enough = "too far"
    distance = f"in exp(H), H = 0 is {max(0.0, away):.2g} times their range away"
    return away <= FARTHEST, f"{seen}; {distance}, {enough} for a ceiling."


def _written(p: float) -> str:
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.2g}"


def _estimates(regression: Regression, of_constant: float, of_trend: Floats) -> list[Estimate]:
    directions = np.zeros((len(of_trend), regression.coefficients.shape[1]))
    directions[:, 0], directions[:, 1] = of_constant, of_trend
    found = regression.estimates(directions, CONFIDENCE)
    return [Estimate(value=value, low=low, high=high) for value, low, high in found.tolist()]
