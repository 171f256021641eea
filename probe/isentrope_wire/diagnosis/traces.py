"""A measured quantity over a run, in a few numbers: its early level, its newest values, its course.

A trace costs the same however long the run is: the course is kept as at most 64 means of equally
many values, and when they are full, neighbours are merged. So the last third of a run is a dozen
means or more at any age, and a line through them is cheap enough for every step."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

EARLY = 10
"""Values whose median is the early level."""
NEWEST = 10
"""Values whose mean is the level now."""
_BLOCKS = 64
_RECENT = 30
"""Newest values that are kept as they are."""
_WEIGHT = 0.05
"""Of the newest difference in the mean difference of neighbours."""
_MOST_OF_MEAN = 5.0
"""A difference counts as at most so many mean ones: one spike is no noise."""
_TO_SIGMA = math.sqrt(math.pi) / 2
"""Standard deviation of a normal variable over the mean difference of two of its values."""
_LEAST_BLOCKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How far a quantity moved over a span, by the line through it."""

    value: float
    error: float
    """Its standard error."""

    @property
    def low(self) -> float:
        return self.value - 2 * self.error

    @property
    def high(self) -> float:
        return self.value + 2 * self.error

    @property
    def rises(self) -> bool:
        return self.low > 0

    @property
    def falls(self) -> bool:
        return self.high < 0


@dataclass(slots=True)
class Block:
    """The mean of neighbouring values."""

    at: float
    value: float
    count: int

    def absorb(self, at: float, value: float, count: int) -> None:
        """Add so many values that follow, by their means."""
        self.count += count
        share = count / self.count
        self.at += share * (at - self.at)
        self.value += share * (value - self.value)


@dataclass(slots=True)
class Trace:
    """Call `add` with each finite value, in order."""

    count: int = 0
    early: list[float] = field(default_factory=list)
    """The first values."""
    start: float = 0.0
    """Their median: the early level."""
    level: float = 0.0
    """The mean of the newest values."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    blocks: list[Block] = field(default_factory=list)
    width: int = 1
    """Values of a full block."""
    highest: float = -math.inf
    """The highest level so far."""
    lowest: float = math.inf
    at: int = 0
    """Index of the step with the newest value."""
    _difference: float = 0.0
    """Mean difference of neighbouring values."""

    def add(self, at: int, value: float) -> None:
        """Pass the value of the step with the index `at`."""
        if self.recent:
            difference = abs(value - self.recent[-1])
            if self.count > EARLY:
                difference = min(difference, _MOST_OF_MEAN * self._difference or difference)
            weight = max(_WEIGHT, 1 / self.count)
            self._difference += weight * (difference - self._difference)
        self.count, self.at = self.count + 1, at
        self.recent.append(value)
        if len(self.early) < EARLY:
            self.early.append(value)
            self.start = median(self.early)
        newest = list(self.recent)[-NEWEST:]
        self.level = sum(newest) / len(newest)
        if self.count >= NEWEST:
            self.highest = max(self.highest, self.level)
            self.lowest = min(self.lowest, self.level)
        self._put(at, value)

    def _put(self, at: int, value: float) -> None:
        if not self.blocks or self.blocks[-1].count >= self.width:
            if len(self.blocks) >= _BLOCKS:
                kept = self.blocks[::2]
                for block, following in zip(kept, self.blocks[1::2], strict=True):
                    block.absorb(following.at, following.value, following.count)
                self.blocks, self.width = kept, 2 * self.width
            self.blocks.append(Block(at, value, 1))
            return
        self.blocks[-1].absorb(at, value, 1)

    @property
    def first(self) -> float:
        """The mean of the first three values: where a run is lost within ten steps, the early level
        is that of the loss."""
        first = self.early[:3]
        return sum(first) / len(first)

    @property
    def is_constant(self) -> bool:
        """Whether the newest values are one number."""
        return min(self.recent) == max(self.recent)

    @property
    def noise(self) -> float:
        """Standard deviation of a value about the course, from the differences of neighbours."""
        return self._difference * _TO_SIGMA

    @property
    def level_error(self) -> float:
        """Standard error of the level."""
        return self.noise / math.sqrt(max(1, min(self.count, NEWEST)))

    @property
    def sigmas(self) -> float:
        """How many standard errors the level is from the early level."""
        error = math.sqrt(2) * self.level_error
        if error > 0:
            return abs(self.level - self.start) / error
        if self.level == self.start:
            return 0.0
        return math.inf

    def value_at(self, at: float) -> float:
        """The mean of the newest block up to a step of this index; the early level before any."""
        return next((block.value for block in reversed(self.blocks) if block.at <= at), self.start)

    def came_to(self, level: float) -> float:
        """Index of the first block that is as high as a level; that of the newest value where none
        is."""
        return next((block.at for block in self.blocks if block.value >= level), self.at)

    def change(self, first: float, last: float = math.inf) -> Change | None:
        """How far it moved from the step of the index `first` to `last`; None for too few
        values."""
        blocks = [block for block in self.blocks if first <= block.at <= last]
        if len(blocks) < _LEAST_BLOCKS:
            return None
        weight = total = products = 0.0
        for block in blocks:
            weight += block.count
            total += block.count * block.at
            products += block.count * block.value
        middle, mean = total / weight, products / weight
        squares = products = 0.0
        for block in blocks:
            away = block.at - middle
            squares += block.count * away * away
            products += block.count * away * block.value
        slope = products / squares
        variance = neighbours = total = before = 0.0
        for block in blocks:
            rest = block.value - mean - slope * (block.at - middle)
            variance += block.count * rest * rest
            neighbours += before * rest
            total += rest * rest
            before = rest
        variance /= len(blocks) - 2
        # Neighbours of one sign are no independent values: what is left over counts for fewer.
        follows = min(max(neighbours / (total or 1.0), 0.0), 0.8)
        variance *= (1 + follows) / (1 - follows)
        variance = max(variance, self.noise**2)
        span = blocks[-1].at - blocks[0].at + self.width - 1
        return Change(value=slope * span, error=math.sqrt(variance / squares) * span)
