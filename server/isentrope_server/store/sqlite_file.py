"""SQLite's file: whether it is still the one that was opened, and sound.

A file that is removed or replaced while the server runs takes its reports with it: SQLite goes on
writing to the old one, which no later start finds. So the writer looks before each transaction, and
acknowledges nothing more."""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.exc import SQLAlchemyError

from isentrope_wire.errors import IsentropeError

_log = logging.getLogger(__name__)

_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_BUSY_SECONDS = 5.0


class DatabaseFileLost(IsentropeError, SQLAlchemyError):
    """What is written to SQLite's file now would not be found again: it was removed, replaced or
    damaged."""


class DamagedFile(IsentropeError, RuntimeError):
    """SQLite finds a file damaged; the message says where."""


class OpenedFile:
    """SQLite's file of a running server."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log_path = path.with_name(f"{path.name}-wal")
        self._identity: tuple[int, int] | None = None
        self._log_identity: tuple[int, int] | None = None
        self._connections = 0
        self._counting = threading.Lock()
        self._fault = ""

    def opened(self) -> None:
        """Keep which file lies at the path: from now on it must be this one."""
        self._identity = _identity(self._path)

    def count_connection(self, change: int) -> None:
        """Keep that a connection was opened, 1, or closes, -1. The last one to close removes the
        `-wal`."""
        with self._counting:
            self._connections += change
            if not self._connections:
                self._log_identity = None

    @property
    def fault(self) -> str:
        """What `check` or `notice` has found, in a sentence; empty: nothing."""
        return self._fault

    def check(self) -> None:
        """Raise DatabaseFileLost where the file or its `-wal` is not the one that was opened, or
        where damage was found, even once. Costs two system calls."""
        if not self._fault and self._identity not in (None, _identity(self._path)):
            self._lost("was removed or replaced while the server runs")
        if not self._fault and self._is_log_lost():
            self._lost("lost its -wal, which was removed or replaced while the server runs")
        if self._fault:
            raise DatabaseFileLost(self._fault)

    def _is_log_lost(self) -> bool:
        with self._counting:
            if not self._connections:
                return False
            self._log_identity = self._log_identity or _identity(self._log_path)
            return self._log_identity not in (None, _identity(self._log_path))

    def notice(self, error: BaseException | None) -> None:
        """Keep that SQLite found the file damaged, where this is what an error says."""
        name = ""
        if isinstance(error, sqlite3.DatabaseError):
            name = getattr(error, "sqlite_errorname", "")
        if not self._fault and name.startswith(_DAMAGE):
            self._lost(f"is damaged ({error})")

    def _lost(self, what: str) -> None:
        self._fault = (
            f"The database's file {what}. Nothing more is stored or acknowledged; trainers keep"
            " their reports. Stop the server, then start it again or bring back a backup with"
            " `isentrope restore FILE`."
        )
        _log.error("%s: %s", self._path, self._fault)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_sound(path: Path) -> None:
    """Have SQLite look through all of a file. DamagedFile: with the first damage that was found;
    sqlite3.Error: it can't be read."""
    try:
        with closing(connect_existing(path)) as connection:
            (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if not error.sqlite_errorname.startswith(_DAMAGE):
            raise
        finding = str(error)
    if finding != "ok":
        raise DamagedFile(" ".join(str(finding).split()))


def connect_existing(path: Path) -> sqlite3.Connection:
    """Open a file that exists; SQLite alone would make a new one. sqlite3.Error: it does not exist,
    or can't be opened."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=_BUSY_SECONDS)
