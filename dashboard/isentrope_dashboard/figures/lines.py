"""Pieces of the line charts: rows of steps, gaps in them, filled bands, labels of controls, sparklines, empty charts.

Plotly fills from one line to the next and can't leave a gap in that: it goes straight from the last value to the next one.
So both lines of a band meet in the middle before a gap and part again behind it, and nothing is left to fill between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import Any

import plotly.graph_objects as go

from isentrope_dashboard.formatting import ControlMarker
from isentrope_wire.answers import SeriesColumns

EMPTY = SeriesColumns(step=[], value=[], min=None, max=None)
"""Columns of a metric that was never reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """The scalars of one step; a metric that was not measured is absent."""

    step: int
    scalars: Mapping[str, float]


def rows_of(series: Mapping[str, SeriesColumns]) -> list[StepRow]:
    """Columns joined into one row a step, oldest first."""
    rows: dict[int, dict[str, float]] = {}
    for name, columns in series.items():
        for step, value in zip(columns.step, columns.value, strict=True):
            rows.setdefault(step, {})[name] = value
    return [StepRow(step=step, scalars=scalars) for step, scalars in sorted(rows.items())]


@dataclass(frozen=True, slots=True)
class MissingSteps:
    """Steps between two reported ones, both ends included."""

    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def missing_steps(steps: Sequence[int], *, reduced: bool = False) -> list[MissingSteps]:
    """Gaps in rising steps: where the next one is farther than it usually is.

    A run may report every tenth step only, so what is usual is the median distance; fewer than three steps have none.

    Args:
        reduced: the steps are buckets, whose widths differ by one.
    """
    if len(steps) < 3:
        return []
    pairs = list(pairwise(steps))
    usual = median(later - earlier for earlier, later in pairs)
    least = 2 * usual + (2 if reduced else 0)
    return [MissingSteps(earlier + 1, later - 1) for earlier, later in pairs if later - earlier >= least > 0]


def with_breaks(steps: Sequence[int], *, reduced: bool = False) -> list[int]:
    """The steps, and within each gap one more at which nothing was measured: there a line is interrupted."""
    gaps = missing_steps(steps, reduced=reduced)
    return sorted({*steps, *((gap.first + gap.last) // 2 for gap in gaps)})


ALONE_REACH = 0.4
"""Steps to both sides of a value that has no neighbour: between two gaps it would have no width."""


@dataclass(frozen=True, slots=True)
class BandOutline:
    """Both lines over the same places."""

    x: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True, slots=True)
class _Place:
    x: float
    low: float
    high: float

    @property
    def closed(self) -> _Place:
        middle = (self.low + self.high) / 2
        return _Place(self.x, middle, middle)


def band_outline(
    steps: Sequence[int], low: Sequence[float | None], high: Sequence[float | None], *, reach: float = ALONE_REACH
) -> BandOutline:
    """What to draw of a band that is known at some of the steps.

    Args:
        low, high: at each step; None or not finite: not known there.
        reach: to both sides of a step without neighbours.
    """
    pieces = _pieces(steps, low, high)
    places: list[_Place] = []
    for number, piece in enumerate(pieces):
        drawn = piece if len(piece) > 1 else _widened(piece[0], reach)
        opening = [drawn[0].closed] if number > 0 else []
        closing = [drawn[-1].closed] if number < len(pieces) - 1 else []
        places += [*opening, *drawn, *closing]
    return BandOutline([p.x for p in places], [p.low for p in places], [p.high for p in places])


def _pieces(steps: Sequence[int], low: Sequence[float | None], high: Sequence[float | None]) -> list[list[_Place]]:
    places = [_place(*ends) for ends in zip(steps, low, high, strict=True)]
    pieces = [[place for place in group if place] for _, group in groupby(places, key=lambda place: place is None)]
    return [piece for piece in pieces if piece]


def _place(step: int, low: float | None, high: float | None) -> _Place | None:
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return None
    return _Place(step, low, high)


def _widened(place: _Place, reach: float) -> list[_Place]:
    return [_Place(place.x + side * reach, place.low, place.high) for side in (-1, 1)]


ROWS = 3
CHARACTER_SHARE = 0.009
"""Width of a character over the width of the chart, on a laptop's screen."""
GAP_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class PlacedLabel:
    """A label on one of ROWS rows (0 is the highest), right of its marker's line or left of it."""

    marker: ControlMarker
    row: int
    left_of_line: bool


def place(markers: Sequence[ControlMarker], first_step: int, last_step: int) -> list[PlacedLabel]:
    """Labels of the newest markers that have room; the other markers keep their lines alone.

    Args:
        markers: in the order of their steps.
        first_step, last_step: what the chart shows.
    """
    shown_steps = max(1, last_step - first_step)
    taken: list[list[tuple[float, float]]] = [[] for _ in range(ROWS)]
    placed = []
    for marker in reversed(markers):
        line = (marker.step - first_step) / shown_steps
        width = CHARACTER_SHARE * len(marker.label) + GAP_SHARE
        left_of_line = line + width > 1
        span = (line - width, line) if left_of_line else (line, line + width)
        row = next((row for row in range(ROWS) if _free(taken[row], span)), None)
        if row is not None:
            taken[row].append(span)
            placed.append(PlacedLabel(marker, row, left_of_line))
    return placed[::-1]


def _free(taken: Sequence[tuple[float, float]], span: tuple[float, float]) -> bool:
    return all(span[1] <= low or high <= span[0] for low, high in taken)


def show_note(figure: go.Figure, text: str) -> None:
    """Write one sentence into the middle of an empty chart and hide its axes."""
    annotation: dict[str, Any] = {"x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "font": {"size": 12}}
    figure.add_annotation(text=text, showarrow=False, **annotation)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)


POINTS = 48


def sparkline(values: Sequence[float | None]) -> list[float]:
    """Values scaled to [0, 1], because the drawing component always starts its axis at 0.

    What is missing or not finite is skipped; a constant line lies in the middle; fewer than two values draw nothing.
    """
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if len(finite) < 2:
        return []
    stride = math.ceil(len(finite) / POINTS)
    shown = finite[::-stride][::-1]
    low, high = min(shown), max(shown)
    if high == low:
        return [0.5] * len(shown)
    return [round((value - low) / (high - low), 3) for value in shown]
