"""The last values of a metric as a small line."""

from __future__ import annotations

import math
from collections.abc import Sequence

POINTS = 48


def sparkline(values: Sequence[float | None]) -> list[float]:
    """Values scaled to [0, 1], because the drawing component always starts its axis at 0.

    What is missing or not finite is left out; a constant line lies in the middle; fewer than two values draw nothing.
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
