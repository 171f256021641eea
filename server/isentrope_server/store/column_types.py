"""Text and JSON as every database takes them.

PostgreSQL stores no NUL in text, SQLite does: the replacement character stands for it in both, also in what is looked
for. JSON knows no NaN and no infinities: their names stand for them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import sqlalchemy
from sqlalchemy import Dialect
from sqlalchemy.types import TypeDecorator

_STANDS_FOR_NUL = "\ufffd"


class Text(TypeDecorator[str]):
    """Text of any length."""

    cache_ok = True
    impl = sqlalchemy.Text

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return _without_nul(value)


class String(TypeDecorator[str]):
    """Text of at most so many characters; PostgreSQL refuses more."""

    cache_ok = True
    impl = sqlalchemy.String

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return _without_nul(value)


def names_as_stored(names: Sequence[str]) -> tuple[str, ...]:
    """Different names as a text column returns them, and still different: one that is taken gets one mark more."""
    if not any("\0" in name for name in names):
        return tuple(names)
    taken = {name for name in names if "\0" not in name}
    stored = []
    for name in names:
        text = str(_without_nul(name))
        while "\0" in name and text in taken:
            text += _STANDS_FOR_NUL
        taken.add(text)
        stored.append(text)
    return tuple(stored)


_STRICT = json.JSONEncoder(allow_nan=False)
"""Made once: every report has a JSON column."""


def json_text(value: object) -> str:
    """A JSON column's text: what is no number to JSON becomes `"NaN"`, `"Infinity"`, `"-Infinity"`."""
    try:
        return _STRICT.encode(value)
    except ValueError:
        return json.dumps(_named(value))


def _named(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_named(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _without_nul(value: str | None) -> str | None:
    return None if value is None else value.replace("\0", _STANDS_FOR_NUL)
