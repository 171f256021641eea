"""Which values of a JSON document are numbers that can be computed with, and how a refused one is shown."""

from __future__ import annotations

import math
from typing import TypeGuard


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float holds: neither true nor text, not NaN, and no integer beyond a float's range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def shown(value: object) -> str:
    """For an error's sentence: no longer than it can be read."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # an integer of more digits than Python writes out
        return "an integer of thousands of digits"
