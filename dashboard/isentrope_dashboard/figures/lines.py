"""Pieces of the line charts: gaps between steps, and filled bands.

Plotly fills from one line to the next and can't leave a gap in that: it goes straight from the last value to the next one.
So both lines of a band meet in the middle before a gap and part again behind it, and nothing is left to fill between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median


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
