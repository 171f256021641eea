"""Who may write what at once.

SQLite has one writer. Each server on a shared PostgreSQL has one too, and they must not disturb each other: positions
and acknowledgements of a run rise in COMMIT order, a control builds on the newest version, the audit trail is a chain.
Advisory locks, held until COMMIT, keep that as if there were one writer:

- `hold_for_writing`: a transaction that says which runs it writes holds these runs; any other holds everything. They
  are taken at its begin and in one order, so that no two transactions can wait for each other.
- `hold_what_runs_share`: rows that belong to no run. Taken last.
- `hold_for_migration`: two servers that start at once don't both create the tables.

`DUTY_LOCK` is none of these: `live.notifications` holds it for as long as its connection lives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from sqlalchemy import Connection, text

from isentrope_server.store.database import POSTGRESQL

_EVERYTHING = 0x15E7_0000
_SHARED_ROWS = 0x15E7_0001
_MIGRATION = 0x15E7_0002
DUTY_LOCK = 0x15E7_0003
"""Held by the server that does what one server at a time should do."""


def hold_for_writing(connection: Connection, run_ids: Collection[str | None]) -> None:
    """Keep other servers out of these runs until COMMIT; a None among them: out of everything."""
    if not _is_shared(connection):
        return
    if not run_ids or None in run_ids:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _EVERYTHING})
        return
    connection.execute(
        text(
            "SELECT pg_advisory_xact_lock_shared(:everything), (SELECT count(pg_advisory_xact_lock(key)) FROM unnest(CAST(:keys AS bigint[])) AS key)"
        ),
        {"everything": _EVERYTHING, "keys": sorted({_key(f"run {run_id}") for run_id in run_ids})},
    )


def hold_what_runs_share(connection: Connection) -> None:
    """Keep other servers from adding rows that belong to no run, until COMMIT. Whoever calls it reads these rows after."""
    if _is_shared(connection):
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SHARED_ROWS})


def hold_for_migration(connection: Connection) -> None:
    """Let the migrations of another server that starts at the same time end first."""
    if _is_shared(connection):
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION})


def _is_shared(connection: Connection) -> bool:
    return connection.dialect.name == POSTGRESQL


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)
