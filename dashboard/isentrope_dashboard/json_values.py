"""How numbers and times travel in JSON, which has neither NaN nor dates."""

from __future__ import annotations

import math
from datetime import UTC, datetime


def measured(value: object) -> float | None:
    """A JSON value as a float: null is missing, "NaN" and "Infinity" are numbers that came as text."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float | str):
        return float(value)
    return None


def seconds_since_epoch(value: object) -> float | None:
    """A time given as seconds or as ISO 8601 text."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None
