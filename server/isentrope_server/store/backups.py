"""A copy of SQLite's database at one moment, and its return to the home of a server that does not
run."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, func, select
from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.store.access import DATABASE, RESTORED, record_audit
from isentrope_server.store.database import Database, newest_version, version_of, write_in_a_line
from isentrope_server.store.sqlite_file import DamagedFile, check_sound, connect_existing
from isentrope_server.store.tables import runs
from isentrope_wire.errors import IsentropeError

_BESIDE = ("-wal", "-shm")
"""Files that belong to SQLite's file. Beside another one, the first corrupts it."""


class UnusableBackup(IsentropeError, ValueError):
    """A file that is no backup of an Isentrope database, or a place where none can be written."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    newest_report_at: float | None
    """When the backup's newest report arrived; None where it has none."""
    earlier: Path | None
    """Where the database that was there is kept; None where there was none."""


def back_up(database: Path, backup: Path) -> int:
    """Copy SQLite's file as it is at one moment, also while a server writes to it; return its size
    in bytes. The backup is a new file, which appears when it is complete and on the disk.
    UnusableBackup: the place is taken or can't be written to, or the database can't be read."""
    if backup.exists():
        raise UnusableBackup(f"{backup} exists; a backup is written to a new file.")
    with _unfinished(backup) as part:
        _copy(database, part)
        part.rename(backup)
        _synchronise(backup.parent)
    return backup.stat().st_size


def restore(backup: Path, database: Path) -> Restored:
    """Put a backup in the place of SQLite's file, which no server may use and which need not exist;
    the audit trail gets an entry. The backup was made by `back_up`, or copied together with its
    `-wal`. UnusableBackup: it is missing, damaged, or of another version; nothing was
    changed."""
    if not backup.is_file():
        raise UnusableBackup(f"There is no backup {backup}.")
    with _unfinished(database) as part:
        _copy(backup, part)
        try:
            newest = _note_restore(part, backup)
        except SQLAlchemyError as error:
            raise UnusableBackup(
                f"{backup} can't be used: {write_in_a_line(error)}. Nothing was changed."
            ) from error
        earlier = _set_aside(database)
        part.rename(database)
        _synchronise(database.parent)
    return Restored(newest_report_at=newest, earlier=earlier)


def _note_restore(part: Path, backup: Path) -> float | None:
    database = Database(URL.create("sqlite", database=str(part)))
    try:
        with database.writing_engine.begin() as connection:
            has, wants = version_of(connection), newest_version()
            if has != wants:
                raise UnusableBackup(
                    f"{backup} is a database of another version of Isentrope, or of none ({has},"
                    f" this one has {wants}). Restore it with the version that wrote it. Nothing"
                    " was changed."
                )
            newest: float | None = connection.execute(
                select(func.max(runs.c.last_report_at))
            ).scalar_one()
            change = {
                "file": backup.name,
                "newest_report_at": newest,
                "revoked_tokens": "revoke again",
            }
            record_audit(connection, "server", RESTORED, DATABASE, change, time.time())
    finally:
        database.close()
    return newest


def _set_aside(database: Path) -> Path | None:
    at, number = time.strftime("%Y%m%d-%H%M%S"), 0
    earlier = database.with_name(f"{database.name}.before-{at}")
    while any(Path(f"{earlier}{suffix}").exists() for suffix in ("", *_BESIDE)):
        number += 1
        earlier = database.with_name(f"{database.name}.before-{at}-{number}")
    existed = database.exists()
    for suffix in ("", *_BESIDE):
        with suppress(FileNotFoundError):
            Path(f"{database}{suffix}").rename(f"{earlier}{suffix}")
    if existed:
        return earlier
    return None


def _copy(source: Path, target: Path) -> None:
    """Copy a database to a new file on the disk, and have SQLite look through the copy."""
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with (
            closing(connect_existing(source)) as reading,
            closing(connect_existing(target)) as writing,
        ):
            reading.backup(writing)
            # With a write-ahead log it could not be opened where nobody may write.
            writing.execute("PRAGMA journal_mode = DELETE")
        check_sound(target)
    except DamagedFile as error:
        raise UnusableBackup(f"{source} is damaged: {error}. Nothing was written.") from error
    except sqlite3.Error as error:
        raise UnusableBackup(f"{source} can't be copied to {target.parent}: {error}.") from error
    with target.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def _unfinished(target: Path) -> Iterator[Path]:
    """A name beside a file for one that becomes it; what was not renamed is removed."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield part
    except OSError as error:
        raise UnusableBackup(f"{target.parent} can't be written to: {error.strerror}.") from error
    finally:
        for suffix in ("", *_BESIDE, "-journal"):
            Path(f"{part}{suffix}").unlink(missing_ok=True)


def _synchronise(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
