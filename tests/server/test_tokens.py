"""The active tokens."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from isentrope_server.security.tokens import TokenBook, new_token
from isentrope_server.store import access
from isentrope_server.store.database import Database, upgrade
from isentrope_wire.answers import TokenScope


class PausesAfterReading:
    """A connection whose reader takes a break between reading and using what it read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.has_read = threading.Event()
        self.go_on = threading.Event()

    def execute(self, *arguments: Any) -> list[Any]:
        rows = list(self._connection.execute(*arguments))
        self.has_read.set()
        self.go_on.wait(5)
        return rows


def test_slow_reload_does_not_restore_a_revoked_token(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'test.db'}")
    issued = new_token("ada", TokenScope.READ)
    with database.writing_engine.begin() as connection:
        upgrade(connection)
        access.add_token(connection, issued.stored)
    book = TokenBook()
    with database.reading() as early, database.reading() as late:
        slow = PausesAfterReading(early)
        reloads = [threading.Thread(target=book.reload, args=(connection,)) for connection in (slow, late)]
        reloads[0].start()
        assert slow.has_read.wait(5)
        with database.writing_engine.begin() as connection:
            assert access.revoke_token(connection, issued.stored.id, 1.0)
        reloads[1].start()
        time.sleep(0.1)
        slow.go_on.set()
        for reload in reloads:
            reload.join(5)
    assert book.of_secret(issued.secret) is None
    database.close()
