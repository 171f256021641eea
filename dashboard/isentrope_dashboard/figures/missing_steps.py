"""Steps that were never reported: a line must not be drawn across them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
    """Holes in rising steps: where the next one is farther than it usually is.

    A run may report every tenth step only, so what is usual is the median distance; fewer than three steps have none.

    Args:
        reduced: the steps stand for buckets, whose widths differ by one.
    """
    if len(steps) < 3:
        return []
    pairs = list(pairwise(steps))
    usual = median(later - earlier for earlier, later in pairs)
    least = 2 * usual + (2 if reduced else 0)
    return [MissingSteps(earlier + 1, later - 1) for earlier, later in pairs if later - earlier >= least > 0]


def with_breaks(steps: Sequence[int], *, reduced: bool = False) -> list[int]:
    """The steps, and within each hole one more at which nothing was measured: there a line is interrupted."""
    holes = missing_steps(steps, reduced=reduced)
    return sorted({*steps, *((hole.first + hole.last) // 2 for hole in holes)})
