"""How far an observed change may lie from its prediction: a 90 % interval that learns from its own misses.

    half width_t = q_t z_n s_t      s^2 = sum w e^2 / sum w      ln q_(t+1) = ln q_t + RATE (missed_t - 0.1)

with e the residuals of earlier predictions, weights w halving every HALF_LIFE residuals, and z_n Student's quantile for
as many residuals as the weights amount to. Were the residuals normal and their scale constant, q would stay near 1; it
takes up what they are not (heavy tails, a scale that moves), because in the long run it comes to rest only where one
change in ten is missed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LEVEL = 0.9
"""Share of the observed changes meant to lie in the interval."""

HALF_LIFE = 6.0
"""Residuals after which one counts half. Much shorter than the gain's: a policy that soon solves its task makes residuals
that halve every dozen steps, and an interval that remembered more of them would cover everything and say nothing."""

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
    """Feed it each residual, in order, after asking for the width that was meant for it."""

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
        """Take in observed minus predicted of a step; a residual that is not finite teaches nothing."""
        if not math.isfinite(residual):
            return
        half_width = self.half_width()
        if half_width is not None:
            self._judge(abs(residual) > half_width)
        keep = 0.5 ** (1 / HALF_LIFE)
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
