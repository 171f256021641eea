"""Removal of runs, and retention: which runs a server no longer keeps.

Deleting hides the run at once, in one small transaction; its rows are removed later in pieces, so
that other work does not wait. A server that was killed in between continues at its next start.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Row,
    delete,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)

from isentrope_server.store.tables import (
    alerts,
    deleted_runs,
    driving_tokens,
    quarantine,
    records,
    report_layouts,
    rollouts,
    runs,
    shown_name,
    streams,
    what_if_sums,
)

DELETING = "deleting"
"""State of a hidden run."""
ROWS_AT_ONCE = 1_000

LARGE_ROWS_AT_ONCE = 32
"""Records deleted at once: each may have megabytes."""
_PIECES = (
    (records.c.last_position, LARGE_ROWS_AT_ONCE),
    (what_if_sums.c.position, ROWS_AT_ONCE),
    (driving_tokens.c.position, ROWS_AT_ONCE),
    (rollouts.c.position, ROWS_AT_ONCE),
    (alerts.c.position, ROWS_AT_ONCE),
    (report_layouts.c.key, ROWS_AT_ONCE),
)


def hide_run(connection: Connection, run_key: int, run_id: str, *, by: str, now: float) -> None:
    """Hide a run, and store its id so that a late spool can't create it again."""
    connection.execute(
        update(runs).where(runs.c.key == run_key).values(state=DELETING, id=hidden_id(run_key))
    )
    connection.execute(insert(deleted_runs).values(id=run_id, deleted_at=now, deleted_by=by))


def hidden_id(run_key: int) -> str:
    """The id of a hidden run. No id of a probe may contain a colon."""
    return f"deleted:{run_key}"


def waiting(connection: Connection) -> list[int]:
    """Keys of the hidden runs that still have rows."""
    return list(connection.execute(select(runs.c.key).where(runs.c.state == DELETING)).scalars())


def remove_some(connection: Connection, run_key: int) -> bool:
    """Delete some of a run's rows, in the caller's transaction; False when none is left."""
    if any(_remove_up_to(connection, column, most, run_key) for column, most in _PIECES):
        return True
    of_run = select(quarantine.c.key).join(streams, streams.c.key == quarantine.c.stream_key)
    refused = (
        connection.execute(of_run.where(streams.c.run_key == run_key).limit(ROWS_AT_ONCE))
        .scalars()
        .all()
    )
    if refused:
        connection.execute(delete(quarantine).where(quarantine.c.key.in_(refused)))
        return True
    # Few rows are left; they are deleted with the run.
    connection.execute(delete(runs).where(runs.c.key == run_key))
    return False


def _remove_up_to(connection: Connection, column: Column[int], most: int, run_key: int) -> bool:
    """Delete the rows that are lowest in a column; whether there were any."""
    table = column.table
    of_run = table.c.run_key == run_key
    last = connection.execute(
        select(column).where(of_run).order_by(column).offset(most - 1).limit(1)
    ).scalar()
    if last is None:
        some = of_run
    else:
        some = of_run & (column <= last)
    return connection.execute(delete(table).where(some)).rowcount > 0


GIVEN_UP_AFTER_SECONDS = 24 * 3_600.0
"""A run that neither ended nor was connected for this long is considered dead. A step or a machine
without a network may take hours, and deleting is final."""


_DAY_SECONDS = 86_400.0


def overdue_runs(
    connection: Connection,
    *,
    days: float | None,
    newest: int | None,
    now: float,
    run_key: int | None = None,
) -> list[Row[*tuple[Any, ...]]]:
    """Runs to delete, oldest first, as key, id, name, project and the rule, of all or of one. A run
    is kept for so many `days` since the last report or connection of its shipper, and while it is
    among so many `newest`; None: for ever. One that may still report is kept in any case."""
    shown = runs.c.state != DELETING
    reasons: dict[str, ColumnElement[bool]] = {}
    if days is not None:
        reasons["age"] = runs.c.last_heard_at < now - days * _DAY_SECONDS
    if newest is not None:
        kept = select(runs.c.key).where(shown).order_by(runs.c.key.desc()).limit(newest)
        reasons["count"] = runs.c.key.not_in(kept.scalar_subquery())
    over = or_(runs.c.state != "running", runs.c.last_heard_at < now - GIVEN_UP_AFTER_SECONDS)
    asked_for = true() if run_key is None else runs.c.key == run_key
    found: dict[int, Row[*tuple[Any, ...]]] = {}
    for rule, reason in reasons.items():
        columns = (
            runs.c.key,
            runs.c.id,
            shown_name.label("name"),
            runs.c.project,
            literal(rule).label("rule"),
        )
        for row in connection.execute(select(*columns).where(shown, asked_for, over, reason)):
            found.setdefault(row.key, row)
    return [found[key] for key in sorted(found)]
