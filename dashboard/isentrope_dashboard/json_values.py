"""How numbers travel in JSON, which has no NaN."""

from __future__ import annotations


def measured(value: object) -> float | None:
    """A JSON value as a float: null is missing, "NaN" and "Infinity" are numbers that came as text."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int | float | str):
        return float(value)
    return None
