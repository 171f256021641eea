"""Text as every database takes it: PostgreSQL stores no NUL in text, SQLite does.

The replacement character stands for it in both, also in what is looked for.
"""

from __future__ import annotations

import sqlalchemy
from sqlalchemy import Dialect
from sqlalchemy.types import TypeDecorator


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


def _without_nul(value: str | None) -> str | None:
    return None if value is None else value.replace("\0", "\ufffd")
