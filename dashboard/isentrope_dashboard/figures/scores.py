"""How a score is distributed over the tokens of each step.

Histograms whose range changes from step to step, brought onto one axis without losing or inventing a token.

A histogram of equal bins states a density that is constant within each bin. Its cumulative count is linear between the
bin edges; reading it at the edges of another axis merges narrower bins exactly and spreads wider ones evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from isentrope_dashboard import theme
from isentrope_dashboard.figures.lines import show_note
from isentrope_wire.answers import HistogramColumns

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
    if not histograms.step:
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


HEIGHT = 300
_QUANTILES = (
    (0.99, "p99", theme.SLOT_PREDICTED, "3px,3px"),
    (0.5, "median", theme.SLOT_OBSERVED, "solid"),
    (0.01, "p1", theme.SLOT_NEGATIVE, "3px,3px"),
)
_TICK_SHARES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


def score_distribution_figure(histograms: HistogramColumns, *, revision: str) -> go.Figure:
    """Heat map: step to the right, score upwards, colour the share of the step's tokens in a bin.

    Most tokens lie next to zero, so colour follows the square root of the share; hover text and colour bar give the
    share itself. Quantiles are read from each step's own histogram.
    """
    figure = go.Figure(layout=_layout(revision))
    if not histograms.step:
        show_note(figure, "No score histogram yet")
        return figure
    axis = on_common_axis(histograms)
    centres = (axis.edges[:-1] + axis.edges[1:]) / 2
    shown = _occupied(axis.shares)
    shares = axis.shares.T[shown]
    figure.add_heatmap(
        x=list(histograms.step),
        y=centres[shown].tolist(),
        z=_plain(np.sqrt(shares)),
        customdata=_plain(shares),
        coloraxis="coloraxis",
        zsmooth=False,
        hovertemplate="step %{x}<br>S<sub>c</sub> %{y:.3f}<br>%{customdata:.2%} of tokens<extra></extra>",
    )
    _add_quantiles(figure, histograms)
    figure.update_layout(coloraxis=_color_axis(float(np.nanmax(shares))))
    return figure


def _layout(revision: str) -> dict[str, Any]:
    return {
        "template": "none",  # the browser knows the colour scheme and puts its template in
        "uirevision": revision,
        "autosize": True,
        "hovermode": "closest",
        "margin": {"t": 26, "r": 8},
        "xaxis": {"title": {"text": "step"}, "showgrid": False},
        "yaxis": {"title": {"text": "S<sub>c</sub> (nats)"}, "showgrid": False},
    }


def _occupied(shares: Floats) -> slice:
    """The bins between the lowest and the highest that ever held one token in ten thousand."""
    seen = np.flatnonzero(np.nanmax(np.nan_to_num(shares), axis=0) >= 1e-4)
    return slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(None)


def _add_quantiles(figure: go.Figure, histograms: HistogramColumns) -> None:
    columns = list(zip(histograms.counts, histograms.low, histograms.high, strict=True))
    for share, name, slot, dash in _QUANTILES:
        figure.add_scatter(
            x=list(histograms.step),
            y=[quantile(share, counts, low, high) for counts, low, high in columns],
            mode="lines" if len(columns) > 1 else "lines+markers",  # a single point has no line
            name=name,
            line={"width": 1.4, "dash": dash},
            hovertemplate=name + " %{y:.3f}<extra></extra>",
            meta={"slot": slot},
        )


def _color_axis(largest_share: float) -> dict[str, Any]:
    ticks = [share for share in _TICK_SHARES if share <= largest_share] or [largest_share]
    return {
        "cmin": 0,
        "colorbar": {
            "tickvals": [float(np.sqrt(share)) for share in ticks],
            "ticktext": [f"{100 * share:g}%" for share in ticks],
        },
    }


def _plain(values: Floats) -> list[list[float | None]]:
    """Plain lists: numpy arrays in a figure travel in a form that the browser can't extend. NaN becomes a gap."""
    return [[None if np.isnan(value) else round(float(value), 6) for value in row] for row in values]
