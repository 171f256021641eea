"""Sums merge to what one pass over everything gives, however the stream was cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isentrope.statistics.histogram import BINS, Histogram, bin_counts
from isentrope.statistics.moments import Moments

values = st.lists(st.floats(-100, 100), min_size=1, max_size=40)


def moments_of(numbers: list[float]) -> Moments:
    if not numbers:
        return Moments()
    return Moments(len(numbers), float(np.mean(numbers)), float(np.var(numbers) * len(numbers)))


def histogram_of(numbers: list[float], *, symmetric: bool = True) -> Histogram:
    tensor = torch.tensor(numbers, dtype=torch.float64)
    exponent, *counts = bin_counts(tensor.unsqueeze(0), torch.ones_like(tensor), [symmetric])[
        0
    ].tolist()
    return Histogram(symmetric, int(exponent), tuple(int(count) for count in counts))


def test_empty_moments_have_no_spread_rather_than_none() -> None:
    assert math.isnan(Moments().standard_deviation)
    assert math.isnan(Moments(1, 3.0, 0.0).standard_error)
    assert Moments(4, 0.0, 12.0).standard_error == 1.0


@given(values, st.integers(0, 40), st.booleans())
def test_histograms_of_two_parts_merge_to_the_histogram_of_the_whole(
    numbers: list[float], cut: int, symmetric: bool
) -> None:
    if not symmetric:
        numbers = [abs(number) for number in numbers]
    left, right = numbers[:cut], numbers[cut:]
    whole = histogram_of(numbers, symmetric=symmetric)
    if left and right:
        merged = histogram_of(left, symmetric=symmetric).merge(
            histogram_of(right, symmetric=symmetric)
        )
        # A value that is the range's upper end stands in the last bin of its own histogram, one bin
        # to the right in a wider one: no other value may move.
        ends = sum(
            number
            in (
                whole.high,
                histogram_of(left, symmetric=symmetric).high,
                histogram_of(right, symmetric=symmetric).high,
            )
            for number in numbers
        )
        assert merged.exponent == whole.exponent
        assert sum(abs(a - b) for a, b in zip(merged.counts, whole.counts, strict=True)) <= 2 * ends


def test_however_little_a_value_lies_below_zero_it_counts_there() -> None:
    assert histogram_of([-4e-18, 3.0]).counts[31:33] == (1, 0)


def test_a_histogram_counts_every_value_once_in_its_bin() -> None:
    histogram = histogram_of([-1.0, -0.01, 0.0, 0.01, 0.99, 1.0])
    assert (histogram.low, histogram.high) == (-1.0, 1.0)
    assert {i: count for i, count in enumerate(histogram.counts) if count} == {
        0: 1,
        31: 1,
        32: 2,
        63: 2,
    }


def test_widening_adds_neighbours() -> None:
    counts = tuple(range(BINS))
    wide = Histogram(True, 0, counts).widen(1)
    assert (wide.low, wide.high) == (-2.0, 2.0)
    assert wide.counts[16:20] == (1, 5, 9, 13)
    assert sum(wide.counts) == sum(counts)
    assert wide.counts[:16] == (0,) * 16


def test_two_kinds_of_histogram_do_not_merge() -> None:
    with pytest.raises(ValueError, match="symmetric"):
        histogram_of([1.0]).merge(histogram_of([1.0], symmetric=False))
