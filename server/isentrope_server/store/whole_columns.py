"""A query's answer as one array per column, whatever else the process is doing.

SQLite's driver gives up Python's lock for each row and waits for it again: beside two busy threads 50 000 rows took 1.1 s
in place of 0.17 s. Joined to one text per column by SQLite itself they are one row, and took 0.37 s. PostgreSQL's driver
reads an answer in one piece anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, func, select

from isentrope_server.store.database import SQLITE


def whole_columns(
    connection: Connection,
    query: Select[*tuple[Any, ...]],
    *,
    integers: Sequence[ColumnElement[Any]],
    float64s: Sequence[ColumnElement[Any]],
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
    """All rows of a query, in its order.

    Args:
        query: from where, which rows, and in which order; it selects nothing yet.
        integers: columns without NULL.
        float64s: columns of 8 bytes each, little-endian, without NULL.
    """
    if connection.dialect.name == SQLITE:
        return _joined_by_sqlite(connection, query, integers, float64s)
    columns = list(zip(*connection.execute(query.add_columns(*integers, *float64s)).all(), strict=True))
    if not columns:
        columns = [()] * (len(integers) + len(float64s))
    whole, parts = columns[: len(integers)], columns[len(integers) :]
    return [np.array(column, dtype=np.int64) for column in whole], [_float64s(b"".join(column)) for column in parts]


def _joined_by_sqlite(
    connection: Connection,
    query: Select[*tuple[Any, ...]],
    integers: Sequence[ColumnElement[Any]],
    float64s: Sequence[ColumnElement[Any]],
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
    numbered = [column.label(f"column_{index}") for index, column in enumerate((*integers, *float64s))]
    rows = query.add_columns(*numbered).subquery()
    columns = [rows.c[column.name] for column in numbered]
    joined = connection.execute(
        select(
            *(func.group_concat(column) for column in columns[: len(integers)]),
            # A blob with a NUL in it ends a text; its digits don't.
            *(func.group_concat(func.hex(column), "") for column in columns[len(integers) :]),
        )
    ).one()
    texts = [text or "" for text in joined]
    return (
        [np.fromstring(text, dtype=np.int64, sep=",") for text in texts[: len(integers)]],
        [_float64s(bytes.fromhex(text)) for text in texts[len(integers) :]],
    )


def _float64s(column: bytes) -> NDArray[np.float64]:
    return np.frombuffer(column, dtype="<f8")
