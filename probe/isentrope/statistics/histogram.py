"""Histograms that merge exactly: 64 equal bins whose range is a power of two; and bins by the
logarithm of a value's size, whose counts and sums add up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.statistics.moments import device_constant

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

BINS = 64
SMALLEST_EXPONENT, LARGEST_EXPONENT = -20, 20


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts over equal bins of [-2^exponent, 2^exponent], or of [0, 2^exponent] when not
    symmetric."""

    symmetric: bool
    exponent: int
    counts: tuple[int, ...]

    @property
    def high(self) -> float:
        return 2.0**self.exponent

    @property
    def low(self) -> float:
        if self.symmetric:
            return -self.high
        return 0.0

    def widen(self, exponent: int) -> Histogram:
        """Make the bins 2^n times as wide: neighbours are added."""
        counts = self.counts
        for _ in range(exponent - self.exponent):
            pairs = [counts[i] + counts[i + 1] for i in range(0, BINS, 2)]
            padding = [0] * (BINS // 4)
            if self.symmetric:
                counts = tuple(padding + pairs + padding)
            else:
                counts = tuple(pairs + padding + padding)
        return Histogram(self.symmetric, max(exponent, self.exponent), counts)

    def merge(self, other: Histogram) -> Histogram:
        if self.symmetric != other.symmetric:
            raise ValueError("A symmetric histogram merges only with a symmetric one.")
        exponent = max(self.exponent, other.exponent)
        left, right = self.widen(exponent), other.widen(exponent)
        counts = tuple(a + b for a, b in zip(left.counts, right.counts, strict=True))
        return Histogram(self.symmetric, exponent, counts)


def bin_counts(
    values: Float64[Tensor, "rows tokens"],
    included: Float64[Tensor, " tokens"],
    symmetric: Iterable[bool],
) -> Float64[Tensor, "rows numbers"]:
    """Exponent and counts of the included values of several histograms, one row each, without
    waiting for the device. Values are 0 where not included."""
    largest = torch.linalg.vector_norm(values, torch.inf, dim=1)
    exponents = largest.clamp(min=2.0**SMALLEST_EXPONENT, max=2.0**LARGEST_EXPONENT).log2().ceil()
    bins_from_zero, bins_below = _ranges(tuple(symmetric), values.device)
    # Exact up to the floor: adding before it would round a tiny negative value into the bin right
    # of zero.
    scaled = values * (bins_from_zero / exponents.exp2()).unsqueeze(1)
    index = scaled.floor_().add_(bins_below.unsqueeze(1)).clamp_(0, BINS - 1).long()
    counts = values.new_zeros(len(values), BINS).scatter_add_(1, index, included.expand_as(values))
    return torch.cat([exponents.unsqueeze(1), counts], dim=1)


@cache
def _ranges(symmetric: tuple[bool, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """How many bins lie between 0 and the largest value, and how many below 0."""
    from_zero = [BINS // 2 if one else BINS for one in symmetric]
    return device_constant(from_zero, device), device_constant(
        [BINS - bins for bins in from_zero], device
    )


BINS_PER_OCTAVE = 8
BIN_RATIO = 2 ** (1 / BINS_PER_OCTAVE)
"""9 %: the largest by the smallest value of a bin of `LogBins`."""


@dataclass(frozen=True, slots=True)
class LogBins:
    """Bins by the size of a value, on either side of one for 0, from the largest negative to the
    largest positive values."""

    lowest_octave: int
    """A smaller size than 2 to this power counts to the bin of this size."""
    highest_octave: int
    """A larger one likewise."""

    @property
    def side(self) -> int:
        """How many bins lie on one side of 0."""
        return (self.highest_octave - self.lowest_octave) * BINS_PER_OCTAVE

    @property
    def count(self) -> int:
        return 2 * self.side + 1

    def places(self, values: Float64[Tensor, " tokens"]) -> Int64[Tensor, " tokens"]:
        """The bin of each value."""
        place = (
            values.abs()
            .clamp_(2.0**self.lowest_octave, 2.0**self.highest_octave * (1 - 1e-12))
            .log2_()
        )
        place = place.sub_(self.lowest_octave).mul_(BINS_PER_OCTAVE).long()
        return place.add_(1).mul_(values.sign().long()).add_(self.side)
