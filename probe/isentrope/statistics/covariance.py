"""How two streams move together."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Covariance:
    """Co-moment of two streams; `merge` is exact."""

    count: int = 0
    mean_left: float = 0.0
    mean_right: float = 0.0
    sum_products: float = 0.0
    """Sum of products of deviations from the means."""

    def merge(self, other: Covariance) -> Covariance:
        count = self.count + other.count
        if count == 0:
            return self
        left, right = other.mean_left - self.mean_left, other.mean_right - self.mean_right
        share = other.count / count
        return Covariance(
            count,
            self.mean_left + left * share,
            self.mean_right + right * share,
            self.sum_products + other.sum_products + left * right * self.count * share,
        )

    @property
    def value(self) -> float:
        """Of the population; NaN when empty."""
        return self.sum_products / self.count if self.count else math.nan
