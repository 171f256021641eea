"""How scores, entropies and probabilities are distributed over the tokens: each step as a column of
a heat map, and beside it the bars of one step on the same axis.

Histograms whose range changes from step to step are brought onto one axis without losing or
inventing a token: a histogram of equal bins states a density that is constant within each bin, so
its cumulative count is linear between the bin edges; reading it at the edges of another axis merges
narrower bins exactly and spreads wider ones evenly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from isentrope_dashboard import theme
from isentrope_dashboard.figures.chart import Chart, missing_steps
from isentrope_dashboard.figures.panel import Figure, Panel, Quantity, Shown, begin
from isentrope_dashboard.formatting import count, number, percent, threshold
from isentrope_wire.answers import HistogramColumns, SeriesColumns
from isentrope_wire.hold_action import clipping_method
from isentrope_wire.metrics import CONTROL_MU_HIGH, CONTROL_MU_LOW
from isentrope_wire.reports import ScoreHistogram

Floats = npt.NDArray[np.float64]

MAXIMUM_BINS = 96
"""On the shared axis: more than a chart of this height can show."""
LEAST_SHARE = 1e-3
"""Bins at the ends with less than this share of a step's tokens in every step are not shown."""
BRIGHTEST = 0.97
"""Share of the filled cells whose colour differs by their value; fuller ones have the brightest
colour, so that one bin does not hide the rest."""
ROOM, BARS_FROM, BAR_TICKS = 0.92, 0.8, (0.01, 0.1, 0.4, 1.0)
"""Share of the axis of steps that has ticks; of the width at which the bars begin; their ticks."""


@dataclass(frozen=True, slots=True)
class CommonAxis:
    """Edges shared by all steps, and the share of tokens of each step in each bin."""

    edges: Floats
    """Shape [bins + 1]."""
    shares: Floats
    """Shape [steps, bins]; each row sums to 1 less the tails that are not shown, or is NaN where a
    step counted nothing."""


def cumulative(counts: Sequence[int], low: float, high: float) -> tuple[Floats, Floats]:
    """The bin edges and how many tokens lie below each, shapes [bins + 1]."""
    edges = np.linspace(low, high, len(counts) + 1)
    return edges, np.concatenate(([0.0], np.cumsum(np.asarray(counts, dtype=np.float64))))


def share_axis(histograms: HistogramColumns) -> CommonAxis:
    """All steps, at least one, on one axis, as shares of the step's tokens. The axis reaches from
    the lowest to the highest bin that has LEAST_SHARE of the tokens in some step. With ranges that
    are powers of two around zero, as the probe sends them, every bin edge of every step that is not
    narrower than the axis' bins falls onto an edge of the axis."""
    rows = list(zip(histograms.low, histograms.high, histograms.counts, strict=True))
    width = min((high - low) / len(counts) for low, high, counts in rows)
    low, high = _ends(rows)
    while (high - low) / width > MAXIMUM_BINS:
        width *= 2
    first, last = math.floor(low / width + 1e-9), math.ceil(high / width - 1e-9)
    edges = width * np.arange(first, max(last, first + 1) + 1, dtype=np.float64)
    shares = []
    for bottom, top, counts in rows:
        own_edges, below = cumulative(counts, bottom, top)
        total = below[-1]
        rebinned = np.diff(np.interp(edges, own_edges, below))
        shares.append(rebinned / total if total > 0 else np.full(len(edges) - 1, np.nan))
    return CommonAxis(edges=edges, shares=np.stack(shares))


def _ends(rows: Sequence[tuple[float, float, Sequence[int]]]) -> tuple[float, float]:
    lows, highs = [], []
    for bottom, top, counts in rows:
        edges, below = cumulative(counts, bottom, top)
        filled = np.flatnonzero(np.diff(below) >= max(LEAST_SHARE * below[-1], 1e-9))
        if len(filled):
            lows.append(float(edges[filled[0]]))
            highs.append(float(edges[filled[-1] + 1]))
    return min(lows, default=min(row[0] for row in rows)), max(
        highs, default=max(row[1] for row in rows)
    )


def quantile(share: float, counts: Sequence[int], low: float, high: float) -> float | None:
    """The value below which `share` of the tokens lie, linear within a bin; None when nothing was
    counted."""
    edges, below = cumulative(counts, low, high)
    if below[-1] == 0:
        return None
    target = share * below[-1]
    bin_index = int(np.searchsorted(below[1:], target, side="left"))
    inside = below[bin_index + 1] - below[bin_index]
    fraction = 0.0
    if inside > 0:
        fraction = (target - below[bin_index]) / inside
    return float(edges[bin_index] + fraction * (edges[bin_index + 1] - edges[bin_index]))


def thresholds(quantity: Quantity, shown: Shown) -> dict[str, dict[int, tuple[float, float]]]:
    """The thresholds that were active on this quantity, at the steps whose method was the
    quantity's: by symbol and step µ and mean ± µσ, beyond which tokens are clipped."""
    if not quantity.std:
        return {}
    applied = sorted(
        (item.applied_step, item.version, clipping_method(item.control))
        for item in shown.history
        if item.applied_step is not None
    )
    std, mean = (_index_by_step(shown.columns(name)) for name in (quantity.std, quantity.mean))
    found = {}
    for symbol, name, sign in (("µ₊", CONTROL_MU_HIGH, 1), ("µ₋", CONTROL_MU_LOW, -1)):
        rows = {
            step: (mu, mean.get(step, 0.0) + sign * mu * std[step])
            for step, mu in _index_by_step(shown.columns(name)).items()
            if step in std
            and (not quantity.mean or step in mean)
            and next((m.histogram for first, _, m in reversed(applied) if first <= step), "")
            == quantity.histogram
        }
        if rows:
            found[symbol] = rows
    return found


def _index_by_step(columns: SeriesColumns) -> dict[int, float]:
    return {
        step: value
        for step, value in zip(columns.step, columns.value, strict=True)
        if math.isfinite(value)
    }


def _columns(steps: list[int], values: list[float]) -> SeriesColumns:
    return SeriesColumns(step=steps, value=values, min=None, max=None)


def heat_figure(panel: Panel, shown: Shown) -> Figure | str:
    """Step to the right, value upwards, colour the share of the step's tokens in a bin; at the
    right the bars of one step. Colours and bars follow the square root of the share, so that rare
    tokens are seen beside common ones."""
    quantity = panel.quantity
    assert quantity is not None, "a heat map has a quantity"
    histograms = shown.histograms.get(quantity.histogram)
    if histograms is None or not histograms.step:
        return panel.needs
    chart = begin(panel, shown, most=6)
    axis = share_axis(histograms)
    edges = axis.edges
    low, high = float(edges[0]), float(edges[-1])
    chart.y_axis(low, high)
    chart.layout |= {
        "hovermode": "closest",
        "bargap": 0,
        "margin": {"l": 44, "r": 16, "t": 18, "b": 24},
    }
    chart.layout["xaxis"]["domain"] = [0, BARS_FROM - 0.025]
    first, last = chart.layout["xaxis"]["range"]
    # The bars' first tick is next to the last one.
    places = [
        place
        for place in chart.layout["xaxis"]["tickvals"]
        if place - first <= ROOM * (last - first)
    ]
    chart.layout["xaxis"] |= {"tickvals": places, "ticktext": chart.scale.texts(places)}
    _add_heat(chart, quantity, histograms.step, (edges[:-1] + edges[1:]) / 2, axis.shares)
    for share, name, dash in (
        (0.99, "99 % below", "2px,3px"),
        (0.5, "median", "solid"),
        (0.01, "1 % below", "2px,3px"),
    ):
        parts = zip(histograms.counts, histograms.low, histograms.high, strict=True)
        values = [quantile(share, *part) for part in parts]
        known = [
            (step, value)
            for step, value in zip(histograms.step, values, strict=True)
            if value is not None
        ]
        line = _columns([step for step, _ in known], [value for _, value in known])
        chart.line(line, name=name, color=chart.ink["text"], width=1, dash=dash)
    _mark_not_finite(chart, histograms, low)
    for symbol, limits in thresholds(quantity, shown).items():
        columns = _columns(list(limits), [value for _, value in limits.values()])
        chart.line(columns, name=f"threshold {symbol}", color=chart.ink["upper"], width=1.5)
    chart.mark(shown.chosen or 0, chart.ink["text"])
    _add_bars(chart, quantity, shown, (low, high))
    for value, words, color in levels(quantity, shown):
        if low <= value <= high:
            chart.level(
                value,
                chart.ink[color],
                dash="3px,3px",
                width=1.5 if color == "upper" else 1,
                xref="x2 domain",
            )
            side = "top"
            if words.startswith(("+", "µ₊")):
                side = "bottom"
            chart.label(
                words,
                at=1,
                y=value,
                yanchor=side,
                xanchor="right",
                color=chart.ink[color],
                bgcolor=chart.ink["card"],
                opacity=0.85,
            )
    return chart.figure()


def _mark_not_finite(chart: Chart, histograms: HistogramColumns, low: float) -> None:
    """A cross at each step that has values which no bin counts."""
    odd = [pair for pair in zip(histograms.step, histograms.not_finite, strict=True) if pair[1]]
    if odd:
        chart.scatter(
            [chart.scale.position(step) for step, _ in odd],
            [low] * len(odd),
            mode="markers",
            cliponaxis=False,
            text=[f"{count(number_of)} tokens: NaN or infinite" for _, number_of in odd],
            hovertemplate="%{text}<extra></extra>",
            marker={"size": 7, "color": chart.ink["act"], "symbol": "x"},
        )


def levels(quantity: Quantity, shown: Shown) -> list[tuple[float, str, str]]:
    """Value, words and colour of each line through the bars: the thresholds at this step, else the
    mean and one σ."""
    limits = [
        (rows[shown.chosen][1], f"{symbol} {threshold(rows[shown.chosen][0])}", "upper")
        for symbol, rows in thresholds(quantity, shown).items()
        if shown.chosen in rows
    ]
    scalars: Mapping[str, float] = {}
    if shown.report is not None:
        scalars = shown.report.scalars
    mean, std = scalars.get(quantity.mean), scalars.get(quantity.std)
    if not quantity.mean:
        mean = 0.0
    if limits or mean is None or std is None:
        return limits
    return [(mean + sign * std, f"{word} σ", "muted") for sign, word in ((1, "+1"), (-1, "−1"))]


def _add_heat(
    chart: Chart, quantity: Quantity, steps: Sequence[int], centres: Floats, shares: Floats
) -> None:
    filled = shares[shares > 0]
    brightest = 1.0
    if len(filled):
        brightest = float(np.quantile(filled, BRIGHTEST))
    columns = dict(zip(steps, shares, strict=True))
    # A column as wide as a gap would show tokens where there are none.
    for gap in missing_steps(list(steps), reduced=True):
        columns |= {step: np.full(shares.shape[1], np.nan) for step in gap}
    places = sorted(columns)
    z = [
        [
            round(100 * float(columns[step][row]), 2) or None if columns[step][row] > 0 else None
            for step in places
        ]
        for row in range(shares.shape[1])
    ]
    chart.data.append(
        {
            "type": "heatmap",
            "x": [chart.scale.position(step) for step in places],
            "y": centres.tolist(),
            "z": z,
            "zmin": 0,
            "zmax": 100 * brightest,
            "colorscale": [[place**2, color] for place, color in theme.HEAT[chart.scheme]],
            "showscale": False,
            "hoverongaps": False,
            "hovertemplate": (
                f"{quantity.symbol} %{{y:.4~g}}: %{{z}} % of the tokens<extra></extra>"
            ),
        }
    )


def _add_bars(chart: Chart, quantity: Quantity, shown: Shown, ends: tuple[float, float]) -> None:
    step, longest, total = shown.chosen or 0, 0.0, 0
    histograms: Sequence[ScoreHistogram] = ()
    if shown.report is not None:
        histograms = shown.report.histograms
    chart.label(
        f"step {count(step)}", at=BARS_FROM, y=1, yref="paper", xanchor="left", yanchor="bottom"
    )
    of_quantity = (item for item in histograms if item.name == quantity.histogram)
    histogram = next(of_quantity, None)
    if histogram is not None:
        total = sum(histogram.counts)
    if histogram is not None and total:
        edges, _ = cumulative(histogram.counts, histogram.low, histogram.high)
        bins = zip(pairwise(edges.tolist()), histogram.counts, strict=True)
        rows = [
            ((left + right) / 2, tokens / total)
            for (left, right), tokens in bins
            if tokens and right > ends[0] and left < ends[1]
        ]
        longest = max((share for _, share in rows), default=0.0)
        chart.data.append(
            {
                "type": "bar",
                "orientation": "h",
                "xaxis": "x2",
                "name": f"step {step}",
                "x": [round(math.sqrt(share), 5) for _, share in rows],
                "y": [value for value, _ in rows],
                "customdata": [share for _, share in rows],
                "width": float(edges[1] - edges[0]),
                "marker": {"color": chart.ink["iris"], "line": {"width": 0}},
                "text": [
                    f"{quantity.symbol} {number(value)}: {percent(share)} of the tokens"
                    for value, share in rows
                ],
                "hovertemplate": "%{text}<extra></extra>",
                "textposition": "none",
            }
        )
    ticks = [share for share in BAR_TICKS if share <= 1.05 * longest] or [BAR_TICKS[0]]
    ticks = [ticks[0], *ticks[1:][-1:]]
    chart.layout["xaxis2"] = {
        "domain": [BARS_FROM, 1],
        "range": [0, 1.05 * math.sqrt(max(longest, ticks[-1]))],
        "tickvals": [math.sqrt(share) for share in ticks],
        "ticktext": [f"{100 * share:g} %" for share in ticks],
        "showgrid": False,
        "showspikes": False,
        "tickfont": {"size": 11, "color": chart.ink["muted"]},
        "fixedrange": True,
        "anchor": "y",
        "tickangle": 0,
    }
