"""Regression and smoothing of series whose errors drift slowly.

Errors of neighbouring steps are alike, and textbook intervals are far too narrow then. Here the
errors are a mix of white noise and a slow drift (AR(1)). How much of either, and how slow, one
short run cannot tell. So each mix of a grid is fitted by generalised least squares, and counts by
its restricted likelihood (Patterson and Thompson 1971): an interval is that of the weighted
mixture, and a drift which the run cannot rule out widens it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_DRIFT_TIMES = 6
"""Correlation times of the drift, from two stretches of steps to eight times the run."""
_DRIFT_SHARES = (0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
"""Share of the drift in the variance of a single step."""
_PRIOR_OF_WHITE = 0.4
"""Weight of no drift at all before any data; the other mixes share the rest equally."""
_NEGLIGIBLE = 1e-4
"""Mixes of less weight do not show in an interval."""
_ROUNDING = 1e-10
"""Residuals below this share of the values' spread are rounding errors."""
_SLICES = np.array([NormalDist().inv_cdf((index + 0.5) / 41) for index in range(41)])
"""A normal distribution as points of equal weight."""
_BENDS = 10.0 ** np.arange(-1, 9, 0.5)
"""Variance of a trend's bends over that of the noise."""


@dataclass(frozen=True, slots=True)
class _Mixes:
    """The grid of error covariances, for one number of values."""

    whiteners: Floats
    """Inverse Cholesky factors, [mixes, values, values]."""
    log_weights: Floats
    """Logarithm of prior over sqrt(determinant), [mixes]."""
    autocorrelations: Floats
    """From one value to the next, [mixes]."""


@dataclass(frozen=True, slots=True)
class Regression:
    """Coefficients under every mix of errors that the data leaves possible."""

    weights: Floats
    """Weights of the mixes, [mixes]; they sum to 1."""
    coefficients: Floats
    """[mixes, columns]."""
    covariances: Floats
    """Covariances of the coefficients, [mixes, columns, columns]."""
    autocorrelation: float
    """Correlation of the errors of one value and the next."""

    @property
    def mean(self) -> Floats:
        """Coefficients, [columns]."""
        found: Floats = self.weights @ self.coefficients
        return found

    @property
    def covariance(self) -> Floats:
        """Covariance of the coefficients over all mixes, [columns, columns]."""
        away = self.coefficients - self.mean
        within = np.tensordot(self.weights, self.covariances, axes=1)
        return within + (self.weights[:, None] * away).T @ away

    def estimates(self, directions: Floats, confidence: float) -> Floats:
        """Value, lower and upper end of sums of the coefficients, [sums, 3]. `directions` [sums,
        columns] has the factor of each coefficient; an interval holds the share `confidence` of the
        mixture."""
        kept = self.weights > _NEGLIGIBLE
        centres = directions @ self.coefficients[kept].T
        variances = np.einsum("sc,mcd,sd->sm", directions, self.covariances[kept], directions)
        points = centres[:, :, None] + np.sqrt(np.maximum(0.0, variances))[:, :, None] * _SLICES
        flat = points.reshape(len(directions), -1)
        order = np.argsort(flat, axis=1)
        shares = np.repeat(
            self.weights[kept] / self.weights[kept].sum() / len(_SLICES), len(_SLICES)
        )
        cumulated = np.cumsum(shares[order], axis=1)
        tail = (1 - confidence) / 2
        ends = [
            np.interp((tail, 1 - tail), cumulated[index], flat[index, order[index]])
            for index in range(len(directions))
        ]
        return np.column_stack([directions @ self.mean, np.array(ends)])


def regress(
    design: Floats, values: Floats, steps_per_value: float, blur: Floats | None = None
) -> Regression:
    """Fit values [values], means over stretches of `steps_per_value` neighbouring steps, to the
    columns of a design [values, columns] of full rank. `blur` [values, values] is the covariance of
    errors in the values that come from the design, and are known."""
    mixes = _mixes(len(values), steps_per_value)
    whitened = mixes.whiteners @ np.column_stack([design, values])
    columns, targets = whitened[:, :, :-1], whitened[:, :, -1:]
    transposed = np.swapaxes(columns, 1, 2)
    products = transposed @ columns
    inverses = np.linalg.inv(products)
    coefficients = inverses @ (transposed @ targets)
    residuals = targets - columns @ coefficients
    squares = (residuals**2).sum(axis=(1, 2)) + len(values) * (
        _ROUNDING * float(np.ptp(values))
    ) ** 2
    degrees = len(values) - design.shape[1]
    logs = mixes.log_weights - np.linalg.slogdet(products)[1] / 2 - degrees / 2 * np.log(squares)
    weights = np.exp(logs - logs.max())
    covariances = (squares / (degrees - 2))[:, None, None] * inverses
    if blur is not None:
        solved = inverses @ transposed @ mixes.whiteners
        covariances = covariances + solved @ blur @ np.swapaxes(solved, 1, 2)
    weights /= weights.sum()
    return Regression(
        weights, coefficients[:, :, 0], covariances, float(weights @ mixes.autocorrelations)
    )


def smooth_trend(values: Floats) -> tuple[Floats, Floats, float]:
    """The trend of a series with white noise, a cubic smoothing spline that is as stiff as the
    likelihood wants it. Returns the trend, [values]; the covariance of its errors, [values,
    values]; the standard deviation of the noise."""
    waves, bends = _spline(len(values))
    noise_shares = 1 / (1 + _BENDS[:, None] * bends)
    heights = waves.T @ values
    squares = noise_shares @ heights**2 + (_ROUNDING * float(np.ptp(values))) ** 2
    logs = np.log(noise_shares).sum(axis=1) / 2 - len(bends) / 2 * np.log(squares)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    removed = weights @ noise_shares
    variance = float(weights @ squares) / len(bends)
    covariance = variance * (np.eye(len(values)) - waves * removed @ waves.T)
    return values - waves @ (removed * heights), covariance, math.sqrt(variance)


@lru_cache(maxsize=4)
def _mixes(count: int, steps_per_value: float) -> _Mixes:
    distances = np.abs(np.subtract.outer(np.arange(count), np.arange(count))).astype(np.float64)
    white = np.eye(count) / steps_per_value
    covariances = [white]
    for time in steps_per_value * np.geomspace(2, 8 * count, _DRIFT_TIMES):
        drift = _averaged_drift(distances, steps_per_value, math.exp(-1 / time))
        covariances += [(1 - share) * white + share * drift for share in _DRIFT_SHARES]
    stacked = np.array(covariances)
    factors = np.linalg.cholesky(stacked)
    priors = np.full(len(stacked), (1 - _PRIOR_OF_WHITE) / (len(stacked) - 1))
    priors[0] = _PRIOR_OF_WHITE
    return _Mixes(
        whiteners=np.linalg.inv(factors),
        log_weights=np.log(priors) - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1),
        autocorrelations=stacked[:, 0, 1] / stacked[:, 0, 0],
    )


def _averaged_drift(distances: Floats, steps: float, rho: float) -> Floats:
    """Covariance of an AR(1) process of variance 1, averaged over stretches of so many steps,
    [values, values]."""
    decay = 1 - rho**steps
    same = (steps * (1 - rho**2) - 2 * rho * decay) / ((1 - rho) * steps) ** 2
    apart = rho * (decay / ((1 - rho) * steps)) ** 2 * rho ** ((distances - 1) * steps)
    averaged: Floats = np.where(distances == 0, same, apart)
    return averaged


@lru_cache(maxsize=4)
def _spline(count: int) -> tuple[Floats, Floats]:
    """Orthonormal waves that a line leaves over, [values, waves], and how much each bends a natural
    spline, [waves]."""
    times = (np.arange(count) + 0.5) / count
    first, last = np.minimum.outer(times, times), np.maximum.outer(times, times)
    beside_line = np.linalg.qr(np.stack([np.ones(count), times], axis=1), mode="complete")[0][:, 2:]
    bends, vectors = np.linalg.eigh(
        beside_line.T @ (first**2 * (3 * last - first) / 6) @ beside_line
    )
    return beside_line @ vectors, np.maximum(0.0, bends)
