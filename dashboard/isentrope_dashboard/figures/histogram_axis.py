"""Histograms whose range changes from step to step, brought onto one axis without losing or inventing a token.

A histogram of equal bins states a density that is constant within each bin. Its cumulative count is linear between the
bin edges; reading it at the edges of another axis merges narrower bins exactly and spreads wider ones evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from isentrope_dashboard.records import HistogramColumns

Floats = npt.NDArray[np.float64]

MAXIMUM_BINS = 256


@dataclass(frozen=True, slots=True)
class CommonAxis:
    """Edges shared by all steps, and the share of tokens of each step in each bin."""

    edges: Floats
    """Shape [bins + 1]."""
    shares: Floats
    """Shape [steps, bins]; each row sums to 1, or is NaN where a step counted nothing."""


def cumulative(counts: Sequence[int], low: float, high: float) -> tuple[Floats, Floats]:
    """The bin edges and how many tokens lie below each, shapes [bins + 1]."""
    edges = np.linspace(low, high, len(counts) + 1)
    return edges, np.concatenate(([0.0], np.cumsum(np.asarray(counts, dtype=np.float64))))


def common_edges(histograms: HistogramColumns) -> Floats:
    """One axis over the widest range, with the narrowest bins that keep it under MAXIMUM_BINS.

    With ranges that are powers of two around zero, as the probe sends them, every bin edge of every step that is not
    narrower than the axis' bins falls onto an edge of the axis.
    """
    low, high = min(histograms.low), max(histograms.high)
    width = min(
        (top - bottom) / len(counts)
        for bottom, top, counts in zip(histograms.low, histograms.high, histograms.counts, strict=True)
    )
    while (high - low) / width > MAXIMUM_BINS:
        width *= 2
    return np.linspace(low, high, round((high - low) / width) + 1)


def on_common_axis(histograms: HistogramColumns) -> CommonAxis:
    """All steps on one axis, as shares of the step's tokens.

    Raises:
        ValueError: there is no histogram.
    """
    if not histograms.steps:
        raise ValueError("A common axis needs at least one histogram, got none.")
    edges = common_edges(histograms)
    rows = []
    for low, high, counts in zip(histograms.low, histograms.high, histograms.counts, strict=True):
        own_edges, below = cumulative(counts, low, high)
        total = below[-1]
        rebinned = np.diff(np.interp(edges, own_edges, below))
        rows.append(rebinned / total if total > 0 else np.full(len(edges) - 1, np.nan))
    return CommonAxis(edges=edges, shares=np.stack(rows))


def quantile(share: float, counts: Sequence[int], low: float, high: float) -> float | None:
    """The value below which `share` of the tokens lie, linear within a bin; None when nothing was counted."""
    edges, below = cumulative(counts, low, high)
    if below[-1] == 0:
        return None
    target = share * below[-1]
    bin_index = int(np.searchsorted(below[1:], target, side="left"))
    inside = below[bin_index + 1] - below[bin_index]
    fraction = (target - below[bin_index]) / inside if inside > 0 else 0.0
    return float(edges[bin_index] + fraction * (edges[bin_index + 1] - edges[bin_index]))
