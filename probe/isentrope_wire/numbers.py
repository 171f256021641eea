"""Which values of a JSON document are numbers that can be computed with, and how a refused one is shown.

Text of others in a line of ours: a terminal obeys some characters, and a line break forges a line.

How numbers and times travel in JSON, which has neither NaN nor dates.

Numbers in JSON, which has no NaN: `"NaN"`, `"Infinity"`, `"-Infinity"` as strings. What is missing is absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypeGuard


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


def printable(text: str) -> str:
    """The text in one line; what is not printable, or turns the reading direction, by its number."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


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


Number = float | Literal["NaN", "Infinity", "-Infinity"]


def number(value: float) -> Number:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def named_numbers(values: Mapping[str, float]) -> dict[str, Number]:
    return {name: number(value) for name, value in values.items()}


def plain_json(value: object) -> object:
    """The same JSON value with its floats spelled as above, however deep, and half characters replaced.

    A run's configuration is whatever its trainer sent; no value of it may make the answer unreadable.
    """
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(plain_json(name)): plain_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(inner) for inner in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return value
