"""Space: SQLite's file becomes smaller when runs are deleted."""

from __future__ import annotations

import asyncio

import pytest

from isentrope_server.housekeeping import give_space_back, remove_deleted
from isentrope_server.store import database
from isentrope_server.store.database import Database
from tests.server.compaction import finished_run
from tests.server.in_thread import ServerInThread


def test_the_space_of_a_deleted_run_goes_back_to_the_file_system(
    still: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "FREE_PAGES_KEPT", 20)
    monkeypatch.setattr(database, "PAGES_AT_ONCE", 100)
    finished_run(still, 40)
    checkpoint(still)
    before = file_bytes(still)
    gone = finished_run(still, 3_000, name="gone")
    checkpoint(still)
    with_both = file_bytes(still)
    assert with_both > before + 1_000_000
    still.http.delete(gone.path)
    asyncio.run(remove_deleted(still.backend))
    asyncio.run(give_space_back(still.backend))
    checkpoint(still)
    assert file_bytes(still) < before + 300_000


def checkpoint(server: ServerInThread) -> None:
    """Bring what was committed into the file itself, as SQLite does by itself now and then."""
    database = Database(server.backend.settings.resolved_database_url)
    raw = database.writing_engine.raw_connection()
    raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()


def file_bytes(server: ServerInThread) -> int:
    return (server.home / "isentrope.db").stat().st_size
