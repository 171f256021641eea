"""Histograms of 64 equal bins whose range is a power of two, so that any two of a kind merge exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 64
SMALLEST_EXPONENT, LARGEST_EXPONENT = -20, 20


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts over equal bins of [-2^exponent, 2^exponent], or of [0, 2^exponent] when not symmetric."""

    symmetric: bool
    exponent: int
    counts: tuple[int, ...]

    @property
    def high(self) -> float:
        return 2.0**self.exponent

    @property
    def low(self) -> float:
        return -self.high if self.symmetric else 0.0

    def widen(self, exponent: int) -> Histogram:
        """The same values in bins 2^n times as wide: neighbours are added, nothing is interpolated."""
        counts = self.counts
        for _ in range(exponent - self.exponent):
            pairs = [counts[i] + counts[i + 1] for i in range(0, BINS, 2)]
            padding = [0] * (BINS // 4)
            counts = tuple(padding + pairs + padding) if self.symmetric else tuple(pairs + padding + padding)
        return Histogram(self.symmetric, max(exponent, self.exponent), counts)

    def merge(self, other: Histogram) -> Histogram:
        if self.symmetric != other.symmetric:
            raise ValueError("A symmetric histogram merges only with a symmetric one.")
        exponent = max(self.exponent, other.exponent)
        left, right = self.widen(exponent), other.widen(exponent)
        counts = tuple(a + b for a, b in zip(left.counts, right.counts, strict=True))
        return Histogram(self.symmetric, exponent, counts)


def no_counts(device: torch.device | None = None) -> Tensor:
    """What `bin_counts` says of no values at all: merged with another histogram it changes nothing."""
    exponent_and_counts = torch.zeros(1 + BINS, dtype=torch.float64, device=device)
    exponent_and_counts[0] = SMALLEST_EXPONENT
    return exponent_and_counts


def bin_counts(values: Tensor, included: Tensor, *, symmetric: bool) -> Tensor:
    """Exponent and counts of the included values as one tensor [1 + BINS], without waiting for the device.

    Args:
        values: any shape; not finite where `included` is False is fine.
        included: bool, same shape; included values must be finite.
    """
    values = torch.where(included, values, 0.0)
    largest = values.abs().amax().clamp(min=2.0**SMALLEST_EXPONENT, max=2.0**LARGEST_EXPONENT)
    exponent = largest.log2().ceil()
    half_range = exponent.exp2()
    bins_from_zero = BINS // 2 if symmetric else BINS
    # Exact up to the floor: adding before it would round a tiny negative value into the bin right of zero.
    index = ((values / half_range * bins_from_zero).floor() + (BINS - bins_from_zero)).clamp(0, BINS - 1).long()
    counts = torch.zeros(BINS, dtype=values.dtype, device=values.device)
    counts.scatter_add_(0, index.reshape(-1), included.reshape(-1).to(values.dtype))
    return torch.cat([exponent.reshape(1), counts])
