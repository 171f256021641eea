"""Where the labels of control markers stand, so that none is printed over another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROWS = 3
CHARACTER_SHARE = 0.009
"""Width of a character over the width of the chart, on a laptop's screen."""
GAP_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class ControlMarker:
    """A control that the trainer applied, as the chart shows it."""

    step: int
    label: str


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
