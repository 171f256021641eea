"""The law R = -a exp(H) + b between a run's entropy and its reward                          arXiv:2505.22617, eq. 6

Fitted by least squares to means over at most BLOCKS stretches of neighbouring steps. Rewards of neighbouring steps err
alike, so textbook intervals are far too narrow (of 90 % intervals, 20 to 70 % hold). Here the residuals of the
stretches are taken as an AR(1) process with autocorrelation rho: the coefficients' covariance is the sandwich

    (X'X)^-1 X'VX (X'X)^-1,   V_ij = s^2 rho^|i-j|

with rho corrected for its bias in short series, and t-quantiles of as many degrees of freedom as independent stretches
remain. Averaging first makes slow drifts visible in rho, which noise from step to step hides. What drifts more slowly
than a few stretches stays unseen, and intervals are too narrow then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from isentrope_wire.control_answers import Estimate
from isentrope_wire.errors import IsentropeError

Floats = NDArray[np.float64]

CONFIDENCE = 0.9
BLOCKS = 50
FEWEST_STEPS = 20
LEAST_RELIABILITY = 0.8
"""Share of the spread of exp(H) that must be movement and not noise: noise there pulls a towards 0 by its share."""
LEAST_MOVEMENT = 1e-6
"""Least spread of exp(H) over its mean: less is rounding error of a constant entropy."""
EARLY_SHARE = 0.15
FINAL_SHARE = 0.05
_FEWEST_FINAL_STEPS = 5


class LawRefused(IsentropeError, ValueError):
    """The run's steps do not determine the coefficients; the message names the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class LawFit:
    """The law as one run follows it."""

    a: Estimate
    b: Estimate
    ceiling: Estimate
    """b - a: the reward at H = 0, when all entropy is spent."""
    r2: float
    """Share of the block means' variance that the curve explains."""
    steps: int
    autocorrelation: float
    """rho of the residuals from one block to the next."""
    effective_blocks: float
    """Number of independent blocks with the same information."""
    coefficients: tuple[float, float]
    """Of 1 and exp(H)."""
    covariance: Floats
    """Of the coefficients, [2, 2]."""
    quantile: float
    """Half an interval's width over its standard error."""

    @property
    def conclusive(self) -> bool:
        """Whether the reward rises as entropy falls, with CONFIDENCE."""
        return self.a.low > 0

    def reward_at(self, entropy: float) -> Estimate:
        """The mean reward at an entropy in nats. The interval is the curve's; single steps scatter about it."""
        return _estimate(self.coefficients, self.covariance, self.quantile, (1.0, math.exp(entropy)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Prediction of the last steps' reward from the first steps alone, given the last steps' entropy."""

    through_step: int
    """The fit knows no later step."""
    at_entropy: float
    """exp averaged over the last steps, back in nats."""
    reward: Estimate
    actual: float
    """Mean reward of the last steps."""
    final_steps: int

    @property
    def error(self) -> float:
        return self.reward.value - self.actual


def fit_law(entropies: Floats, rewards: Floats) -> LawFit:
    """Fit one run's series.

    Args:
        entropies: mean entropy of each step in nats, by rising step, [steps].
        rewards: mean reward of the same steps, [steps].

    Raises:
        LawRefused: too few steps, an entropy that did not move, or a reward that never changed.
    """
    exponentials = np.exp(entropies)
    if len(exponentials) < FEWEST_STEPS:
        raise LawRefused(
            "too_few_steps",
            f"The law needs at least {FEWEST_STEPS} steps with entropy and reward, there are {len(exponentials)}.",
        )
    x, y = block_means(exponentials, BLOCKS), block_means(rewards, BLOCKS)
    _check_movement(x, y, entropies)
    design = np.stack([np.ones_like(x), x], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ (design.T @ y)
    residuals = y - design @ coefficients
    rho = _autocorrelation(residuals)
    effective = max(5.0, len(x) * (1 - rho) / (1 + rho))
    variance = float(residuals @ residuals) / (len(x) - 2) * effective / (effective - 2)
    covariance = variance * inverse @ _correlated_products(design, rho) @ inverse
    quantile = t_quantile(0.5 + CONFIDENCE / 2, effective - 2)
    plain = (float(coefficients[0]), float(coefficients[1]))
    spread = float(((y - y.mean()) ** 2).sum())
    return LawFit(
        a=_estimate(plain, covariance, quantile, (0.0, -1.0)),
        b=_estimate(plain, covariance, quantile, (1.0, 0.0)),
        ceiling=_estimate(plain, covariance, quantile, (1.0, 1.0)),
        r2=1 - float(residuals @ residuals) / spread,
        steps=len(exponentials),
        autocorrelation=rho,
        effective_blocks=effective,
        coefficients=plain,
        covariance=covariance,
        quantile=quantile,
    )


def forecast(steps: NDArray[np.int64], entropies: Floats, rewards: Floats, *, horizon: int) -> Forecast:
    """The last rewards as the first EARLY_SHARE of `horizon` steps foretell them, beside what came.

    Args:
        steps, entropies, rewards: as in `fit_law`, [steps].
        horizon: how many steps the run has, or is planned to have.

    Raises:
        LawRefused: the early part has too little information, or is not complete.
    """
    # By the steps' numbers: a loop may report its reward every tenth step only.
    early = int((steps - steps[:1] < math.ceil(EARLY_SHARE * horizon)).sum())
    if len(steps) <= early:
        raise LawRefused("too_early", f"The first {EARLY_SHARE:.0%} of {horizon} steps are not over yet.")
    try:
        fit = fit_law(entropies[:early], rewards[:early])
    except LawRefused as refused:
        raise LawRefused(refused.code, f"From the first {EARLY_SHARE:.0%} of {horizon} steps: {refused}") from refused
    last = min(len(steps) - early, max(_FEWEST_FINAL_STEPS, round(FINAL_SHARE * len(steps))))
    at_entropy = math.log(float(np.exp(entropies[-last:]).mean()))
    return Forecast(
        through_step=int(steps[early - 1]),
        at_entropy=at_entropy,
        reward=fit.reward_at(at_entropy),
        actual=float(rewards[-last:].mean()),
        final_steps=last,
    )


def block_means(values: Floats, blocks: int) -> Floats:
    """Means over `blocks` stretches of neighbours whose lengths differ by one at most; `values` itself if shorter."""
    if len(values) <= blocks:
        return values
    edges = np.linspace(0, len(values), blocks + 1).astype(np.intp)
    means: Floats = np.add.reduceat(values, edges[:-1]) / np.diff(edges)
    return means


def t_quantile(probability: float, degrees: float) -> float:
    """Of Student's t, by the Cornish-Fisher expansion; within 1 % from three degrees of freedom on, up to 0.95."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))


def _check_movement(x: Floats, y: Floats, entropies: Floats) -> None:
    spread = float(x.var())
    # Half the mean square of neighbours' differences is the noise's variance; a trend adds next to nothing to it.
    noise = float((np.diff(x) ** 2).mean()) / 2
    if spread <= (LEAST_MOVEMENT * float(x.mean())) ** 2 or 1 - noise / spread < LEAST_RELIABILITY:
        raise LawRefused(
            "entropy_not_moved",
            f"Entropy stayed between {entropies.min():.4g} and {entropies.max():.4g} nats, which is little more than it "
            "scatters from step to step: no curve can be fitted.",
        )
    if float(y.var()) <= (1e-12 * max(1.0, float(np.abs(y).max()))) ** 2:
        raise LawRefused("reward_constant", f"The reward was {y[0]:.4g} throughout: there is nothing to explain.")


def _autocorrelation(residuals: Floats) -> float:
    """Lag-1 autocorrelation, corrected for its bias towards 0 and below in short series; between 0 and 0.99."""
    total, count = float(residuals @ residuals), len(residuals)
    if total == 0:
        return 0.0
    raw = float(residuals[1:] @ residuals[:-1]) / total
    return min(0.99, max(0.0, (raw * count + 2) / (count - 4)))


def _correlated_products(design: Floats, rho: float) -> Floats:
    """X' V X with V_ij = rho^|i-j|."""
    distances = np.abs(np.subtract.outer(np.arange(len(design)), np.arange(len(design))))
    products: Floats = design.T @ rho**distances @ design
    return products


def _estimate(
    coefficients: tuple[float, float], covariance: Floats, quantile: float, weights: tuple[float, float]
) -> Estimate:
    direction = np.array(weights)
    value = float(direction @ np.array(coefficients))
    margin = quantile * math.sqrt(max(0.0, float(direction @ covariance @ direction)))
    return Estimate(value=value, low=value - margin, high=value + margin)
