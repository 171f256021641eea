"""Several changes in one round trip, where the database is another process: each one there and back waits for a core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, Update, literal_column, select

from isentrope_server.store.database import POSTGRESQL


class Change(NamedTuple):
    """An UPDATE that is made once, and the values of its parameters, which no other one shares."""

    statement: Update
    values: Mapping[str, object]


def make_together(connection: Connection, changes: Sequence[Change]) -> None:
    """Make all of these changes, to one table each; none may need what another has done."""
    if connection.dialect.name == POSTGRESQL:
        values = {name: value for change in changes for name, value in change.values.items()}
        connection.execute(_joined(tuple(change.statement for change in changes)), values)
        return
    for change in changes:
        connection.execute(change.statement, change.values)


@lru_cache
def _joined(statements: tuple[Update, ...]) -> Select[*tuple[Any, ...]]:
    parts = [statement.cte(f"change_{number}") for number, statement in enumerate(statements)]
    return select(literal_column("1")).add_cte(*parts)
