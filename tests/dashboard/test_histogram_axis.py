"""Histograms of different ranges on one axis."""

from __future__ import annotations

import numpy as np
import pytest

from isentrope_dashboard.figures.scores import MAXIMUM_BINS, on_common_axis, quantile
from isentrope_wire.answers import HistogramColumns
from tests.dashboard.made_answers import histograms as made


def columns(*shown: tuple[float, list[int]]) -> HistogramColumns:
    """One symmetric histogram [-reach, reach] per step."""
    reaches = [reach for reach, _ in shown]
    return made(range(len(shown)), [-reach for reach in reaches], reaches, [counts for _, counts in shown])


def test_wide_bins_are_spread_evenly_over_narrow_ones() -> None:
    axis = on_common_axis(columns((1.0, [4, 0, 2, 2]), (2.0, [8, 4, 4, 0])))
    assert axis.edges.tolist() == [-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2]
    assert (8 * axis.shares[0]).tolist() == [0, 0, 4, 0, 2, 2, 0, 0]
    assert (16 * axis.shares[1]).tolist() == [4, 4, 2, 2, 2, 2, 0, 0]


def test_narrow_bins_are_merged_exactly_when_the_axis_is_coarse() -> None:
    rng = np.random.default_rng(3)
    fine = rng.integers(0, 1000, 64).tolist()
    wide = [0] * 64
    wide[40] = 5
    axis = on_common_axis(columns((1.0, fine), (16.0, wide)))  # 1024 bins of the fine width would be too many
    assert len(axis.edges) - 1 == MAXIMUM_BINS
    bins_merged = 4
    middle = slice(MAXIMUM_BINS // 2 - 8, MAXIMUM_BINS // 2 + 8)
    expected = np.asarray(fine).reshape(-1, bins_merged).sum(axis=1)
    assert np.array_equal(np.round(axis.shares[0][middle] * sum(fine), 9), expected)


def test_no_token_is_lost_or_invented() -> None:
    rng = np.random.default_rng(5)
    histograms = columns(*[(2.0 ** int(k), rng.integers(0, 50, 64).tolist()) for k in rng.integers(-4, 4, 30)])
    assert on_common_axis(histograms).shares.sum(axis=1) == pytest.approx(1.0, abs=1e-12)


def test_a_step_that_counted_nothing_is_a_gap() -> None:
    axis = on_common_axis(columns((1.0, [0, 0]), (1.0, [1, 3])))
    assert np.isnan(axis.shares[0]).all()
    assert axis.shares[1].tolist() == [0.25, 0.75]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, -1.0), (0.25, -0.5), (0.5, 0.0), (0.75, 0.5), (1.0, 1.0), (0.01, -0.98)]
)
def test_quantiles_of_a_uniform_distribution_are_linear(share: float, expected: float) -> None:
    assert quantile(share, [10] * 8, -1.0, 1.0) == pytest.approx(expected)


def test_a_quantile_skips_empty_bins() -> None:
    assert quantile(0.75, [2, 0, 0, 2], 0.0, 4.0) == pytest.approx(3.5)


def test_nothing_counted_has_no_quantile() -> None:
    assert quantile(0.5, [0, 0], -1.0, 1.0) is None
