"""What every request's body keeps to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

NESTING = 16
"""No document of this API is half as deep."""


class Body(BaseModel):
    """A request's body: a field nobody knows is an error, not a field ignored."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _is_plain_json(cls, value: Any) -> Any:
        _check_plain(value, NESTING)
        return value


def _check_plain(value: object, levels_left: int) -> None:
    """Python's JSON reader takes NaN, Infinity and half characters; JSON has none of them, and no field does.

    Raises:
        ValueError: it has one of them, or is nested too deeply.
    """
    if levels_left == 0:
        raise ValueError(f"objects and lists may stand {NESTING} deep in each other, not deeper")
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"numbers must be finite, got {value}")
        case str() if not value.isascii():
            value.encode("utf-8")
        case Mapping():
            for name, inner in value.items():
                _check_plain(name, levels_left)
                _check_plain(inner, levels_left - 1)
        case list():
            for inner in value:
                _check_plain(inner, levels_left - 1)
