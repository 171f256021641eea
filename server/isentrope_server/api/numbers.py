"""Numbers in JSON, which has no NaN: `"NaN"`, `"Infinity"`, `"-Infinity"` as strings. What is missing is absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Number = float | Literal["NaN", "Infinity", "-Infinity"]


def number(value: float) -> Number:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def numbers(values: NDArray[np.float64]) -> list[Number]:
    if bool(np.isfinite(values).all()):
        finite: list[Number] = values.tolist()
        return finite
    return [number(value) for value in values.tolist()]


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
