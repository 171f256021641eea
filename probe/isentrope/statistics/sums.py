"""Count, mean and spread of a stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and spread of a stream; `merge` is exact, so ranks and chunks may be joined in any order."""

    count: int = 0
    mean: float = 0.0
    sum_squares: float = 0.0
    """Sum of squared deviations from the mean, not of the values."""

    def merge(self, other: Moments) -> Moments:
        count = self.count + other.count
        if count == 0:
            return self
        shift = other.mean - self.mean
        return Moments(
            count,
            self.mean + shift * other.count / count,
            self.sum_squares + other.sum_squares + shift * shift * self.count * other.count / count,
        )

    @property
    def standard_deviation(self) -> float:
        """Of the population, as sigma in Clip_B and Clip_V; NaN when empty."""
        return math.sqrt(self.sum_squares / self.count) if self.count else math.nan

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN with fewer than two values."""
        return math.sqrt(self.sum_squares / (self.count - 1) / self.count) if self.count > 1 else math.nan


def device_moments(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations of the valid values, still on the device; zeros where there are none.

    Args:
        values: any shape; anything, NaN included, where `valid` is False.
        valid: bool, same shape.
    """
    count = valid.sum()
    mean = torch.where(valid, values, 0.0).sum() / count.clamp(min=1)
    return count, mean, torch.where(valid, values - mean, 0.0).square().sum()


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


def device_constant(numbers: Sequence[float], device: torch.device) -> Tensor:
    """Numbers on the device, float64, from pinned memory, so that the training thread does not wait. Keep what it gives."""
    numbers_here = torch.tensor(numbers, dtype=torch.float64)
    return numbers_here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers_here.to(device)
