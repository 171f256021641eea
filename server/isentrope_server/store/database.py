"""The database: engines, locks between servers, SQLite's file, and migrations.

One connection writes; all others are read-only. Each server on a shared PostgreSQL has a writing
connection, and they must not disturb each other: positions and acknowledgements of a run rise in
COMMIT order, a control builds on the newest version. Advisory locks, held until COMMIT, give the
same result as one writer:

- `hold_for_writing`: a transaction that names the runs it writes locks these runs; any other locks
  everything. Locks are taken at its begin and in one order, so that no two transactions can wait
  for each other.
- `upgrade` locks everything: two servers that start at once don't both create the tables.

`DUTY_LOCK` is not one of these: `live.Notifications` holds it as long as its connection is open.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from sqlite3 import Error as SqliteError
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    Row,
    Table,
    Update,
    create_engine,
    event,
    inspect,
    literal_column,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.pool import NullPool

from isentrope_server.store.sqlite_file import OpenedFile
from isentrope_server.store.tables import json_text, metadata
from isentrope_wire.environment import MOUNTS, NETWORK_FILE_SYSTEMS, file_system_of
from isentrope_wire.errors import IsentropeError
from isentrope_wire.numbers import printable, read

_T = TypeVar("_T")

_BUSY_TIMEOUT_MILLISECONDS = 5_000

_READ_FROM_MEMORY_BYTES = 64 << 20
"""Bytes of SQLite's file that readers map into memory: reports are read in half the time, but what
is mapped counts as the server's memory. Not for the writer, where a stray write to memory would
change the file."""

SQLITE = "sqlite"
POSTGRESQL = "postgresql"

_CONNECTING: Mapping[str, int | str] = {
    # Whatever PGCLIENTENCODING says.
    "client_encoding": "utf8",
    "connect_timeout": 5,
    # Packets that get lost are a lost connection after half a minute, not after two hours.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

_SESSION: Mapping[str, str] = {
    # A server frozen inside a transaction holds locks that the other servers wait for.
    "idle_in_transaction_session_timeout": "10s",
    "synchronous_commit": "on",
    "timezone": "UTC",
}
_READING_SESSION: Mapping[str, str] = {
    # Several queries of one request read one state, as with SQLite.
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
    "idle_in_transaction_session_timeout": "60s",
}


class Database:
    """The two engines of one database. SQLite before 3.51.3 can corrupt its WAL when two
    connections write, so exactly one connection, the writer's, may. On PostgreSQL each server
    process has one such connection too; the locks below say what they may do at once."""

    def __init__(self, url: str | URL) -> None:
        parsed = add_driver(make_url(url))
        self.is_shared = parsed.get_backend_name() == POSTGRESQL
        """Whether several servers may use it at the same time."""
        if self.is_shared or parsed.database in (None, "", ":memory:"):
            self.file = None
        else:
            self.file = Path(str(parsed.database))
        """SQLite's file; None for a database server."""
        if self.file is None:
            self.opened_file = None
        else:
            self.opened_file = OpenedFile(self.file)
        # Errors go to logs and, through gRPC, to other machines: they must not contain values,
        # which may be secrets. Each set of metrics of a series is a statement of its own;
        # SQLAlchemy would keep 750, of some 50 KB each.
        options: dict[str, Any] = {
            "hide_parameters": True,
            "json_serializer": json_text,
            "query_cache_size": 150,
        }
        if self.is_shared:
            # The URL's own options win.
            options["connect_args"] = {
                name: n for name, n in _CONNECTING.items() if name not in parsed.query
            }
        self.writing_engine = create_engine(parsed, poolclass=NullPool, **options)
        # A pooled connection may be lost with its database; checking it costs one round trip.
        self.reading_engine = create_engine(
            parsed, pool_size=8, max_overflow=8, pool_pre_ping=self.is_shared, **options
        )
        if self.is_shared:
            _prepare_postgresql(self.writing_engine, _SESSION)
            _prepare_postgresql(self.reading_engine, {**_SESSION, **_READING_SESSION})
        else:
            _prepare_sqlite(self.writing_engine, begin="BEGIN IMMEDIATE", read_only=False)
            _prepare_sqlite(self.reading_engine, begin="BEGIN", read_only=True)
        if self.opened_file is not None:
            for engine in (self.writing_engine, self.reading_engine):
                _watch(engine, self.opened_file, each_transaction=engine is self.writing_engine)

    def reading(self) -> Connection:
        """Open a connection that reads one consistent state and can't write; it is closed by
        `with`."""
        return self.reading_engine.connect()

    def close(self) -> None:
        self.reading_engine.dispose()
        self.writing_engine.dispose()


_LEAST_FREE_BYTES = 1 << 20
"""With less on the disk of SQLite's file, a COMMIT may fail."""


def is_disk_full(database: Database, error: Exception | None = None) -> bool:
    """Whether the database's disk has no room left: by what is free beside SQLite's file, or by an
    error."""
    if database.file is not None:
        disk = os.statvfs(database.file.parent)
        if disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
            return True
    cause = getattr(error, "orig", None)
    return (
        getattr(cause, "sqlite_errorname", "") == "SQLITE_FULL"
        or getattr(cause, "sqlstate", "") == "53100"
    )


def refuses_file_writes(error: Exception) -> bool:
    """Whether the disk of SQLite's file refused a write, by an error. SQLite gives one name to a
    quota that is used up, a file system that is read only, and a disk that fails."""
    name = str(getattr(getattr(error, "orig", error), "sqlite_errorname", ""))
    return name.startswith(("SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_FULL"))


def refuses_writes(connection: Connection) -> bool:
    """Whether a database server has writers read only, as managed ones do when their storage runs
    out. `connection` is a writer's: readers are read only anyway."""
    return _is_shared(connection) and (
        connection.execute(text("SHOW transaction_read_only")).scalar_one() == "on"
    )


def is_standby(connection: Connection) -> bool:
    """Whether the database follows another one and takes no writes."""
    return _is_shared(connection) and bool(
        connection.execute(text("SELECT pg_is_in_recovery()")).scalar_one()
    )


def add_driver(url: URL) -> URL:
    """The URL with psycopg 3 as the driver where it names PostgreSQL and no driver; `postgres://`
    is accepted, too."""
    if url.drivername in (POSTGRESQL, "postgres"):
        return url.set(drivername="postgresql+psycopg")
    return url


def write_in_a_line(error: Exception) -> str:
    """The database's message in one line, without the statement."""
    return printable(str(getattr(error, "orig", None) or error).strip().partition("\n")[0])


def insert_new(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Insert the rows whose unique columns the table does not have yet."""
    added = postgresql.insert(table) if _is_shared(connection) else sqlite.insert(table)
    connection.execute(added.on_conflict_do_nothing(), rows)


def build_answer(kind: type[_T], row: Row[*tuple[Any, ...]]) -> _T:
    """The answer that a row is; columns that the answer does not have are left out."""
    return read(kind, {str(name): value for name, value in row._mapping.items()})


def _prepare_sqlite(engine: Engine, *, begin: str, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def set_pragmas(connection: SqliteConnection, _record: object) -> None:
        # The driver must not begin transactions: it would leave DDL and SAVEPOINT outside of them.
        connection.isolation_level = None
        pragmas = [
            # Only works before the first table is made; `give_back_pages` uses it.
            "auto_vacuum = INCREMENTAL",
            f"busy_timeout = {_BUSY_TIMEOUT_MILLISECONDS}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
        ]
        if read_only:
            pragmas += ["query_only = ON", f"mmap_size = {_READ_FROM_MEMORY_BYTES}"]
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        # SQLite's own knows the letters of ASCII alone.
        connection.create_function("lower", 1, _lower_text, deterministic=True)

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


def _lower_text(value: str | float | bytes | None) -> str | int | float | bytes | None:
    if isinstance(value, str):
        return value.lower()
    return value


def _watch(engine: Engine, file: OpenedFile, *, each_transaction: bool) -> None:
    @event.listens_for(engine, "do_connect")
    def check_file(*_: object) -> None:
        # SQLite would make a new, empty file.
        file.check()

    @event.listens_for(engine, "connect")
    def count_opened(*_: object) -> None:
        file.count_connection(1)

    @event.listens_for(engine, "close")
    def count_closed(*_: object) -> None:
        file.count_connection(-1)

    if each_transaction:

        @event.listens_for(engine, "begin")
        def check_each_begin(_connection: Connection) -> None:
            file.check()

    else:

        @event.listens_for(engine, "checkout")
        def save_removed_log(connection: SqliteConnection, *_: object) -> None:
            if file.fault:
                # What a -wal without a name holds: the main file keeps it for the next start.
                with contextlib.suppress(SqliteError):
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    @event.listens_for(engine, "handle_error")
    def notice_error(context: ExceptionContext) -> None:
        file.notice(context.original_exception)


def _prepare_postgresql(engine: Engine, session: Mapping[str, str]) -> None:
    @event.listens_for(engine, "connect")
    def set_session(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            for name, value in session.items():
                cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.commit()

    @event.listens_for(engine, "handle_error")
    def hide_values(context: ExceptionContext) -> None:
        # After the first line PostgreSQL's message contains values of the statement.
        for error in (context.original_exception, context.sqlalchemy_exception):
            if error is not None and error.args:
                error.args = (str(error.args[0]).partition("\n")[0], *error.args[1:])


_EVERYTHING = 0x15E7_0000
DUTY_LOCK = 0x15E7_0003
"""Held by the server that does the work of one server at a time."""


def hold_for_writing(connection: Connection, run_ids: Collection[str | None]) -> None:
    """Lock these runs against other servers until COMMIT; a None among them, or none at all, locks
    everything."""
    if not _is_shared(connection):
        return
    if not run_ids or None in run_ids:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _EVERYTHING})
        return
    connection.execute(
        text(
            "SELECT pg_advisory_xact_lock_shared(:everything), (SELECT"
            " count(pg_advisory_xact_lock(key)) FROM unnest(CAST(:keys AS bigint[])) AS key)"
        ),
        {"everything": _EVERYTHING, "keys": sorted({_key(f"run {run_id}") for run_id in run_ids})},
    )


def _is_shared(connection: Connection) -> bool:
    return connection.dialect.name == POSTGRESQL


def _key(name: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True
    )


class NetworkFileSystem(IsentropeError, OSError):
    """SQLite's locks and shared memory don't work on a network file system."""


def check_file_system(database: Path, mounts: Path = MOUNTS) -> None:
    """Raise NetworkFileSystem where the database would be on one: SQLite can't work there."""
    kind = file_system_of(database, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise NetworkFileSystem(
            f"it lies on a network file system ({kind}), where SQLite's locks fail and data is"
            " lost; put the home on a local disk, or use PostgreSQL"
        )


FREE_PAGES_KEPT = 1_000
"""The next reports use them."""
PAGES_AT_ONCE = 1_000
"""Takes some milliseconds of the writer's time."""


def free_pages(connection: Connection) -> int:
    """Number of unused pages of SQLite's file; 0 on PostgreSQL, where autovacuum reuses them."""
    if _is_shared(connection):
        return 0
    return int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())


def give_back_pages(connection: Connection) -> None:
    """Make the file smaller by some of its free pages, in the caller's transaction."""
    cursor = connection.connection.cursor()
    cursor.execute(f"PRAGMA incremental_vacuum({PAGES_AT_ONCE})")
    # Each fetched row frees a page; the rows have no columns, so SQLAlchemy would not fetch them.
    cursor.fetchall()
    cursor.close()


_MIGRATIONS = Path(__file__).parent / "migrations"
_REVISION = re.compile("[0-9]{4}")


class UnusableDatabase(IsentropeError, RuntimeError):
    """The database has another encoding than UTF-8, or the tables of another version of Isentrope
    or of another program; the message says what to do."""


def upgrade(connection: Connection) -> None:
    """Create the tables where there are none, in the caller's transaction. UnusableDatabase: its
    encoding is not UTF-8, or there are tables of another version or program."""
    hold_for_writing(connection, ())
    if _is_shared(connection):
        encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
        if encoding != "UTF8":
            raise UnusableDatabase(
                f"its encoding is {encoding}, in which not every name can be written. Make one for"
                " Isentrope: CREATE DATABASE isentrope ENCODING 'UTF8' TEMPLATE template0"
            )
    found, wanted = version_of(connection), newest_version()
    others: Collection[str] = ()
    if found is None:
        others = metadata.tables.keys() & set(inspect(connection).get_table_names())
    elif not _REVISION.fullmatch(found):
        others = ("alembic_version",)
    if others:
        raise UnusableDatabase(
            f"it is another program's, which has a table {min(others)!r} there. Make a database of"
            " its own for Isentrope"
        )
    if found not in (None, wanted):
        raise UnusableDatabase(
            f"it has the tables of another version of Isentrope ({found}, this one has {wanted})."
            " Export its runs with the version that wrote them and move it aside"
        )
    config = Config()
    # Alembic reads % as interpolation.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@cache
def newest_version() -> str | None:
    """The version of the newest migration there is."""
    return ScriptDirectory(str(_MIGRATIONS)).get_current_head()


def version_of(connection: Connection) -> str | None:
    """The version the database is at; None: it has no tables yet."""
    return MigrationContext.configure(connection).get_current_revision()


def make_together(connection: Connection, changes: Sequence[Update]) -> None:
    """Run these changes, to one table each and independent, in one round trip where the database is
    a server."""
    if _is_shared(connection):
        parts = [change.cte(f"change_{number}") for number, change in enumerate(changes)]
        connection.execute(select(literal_column("1")).add_cte(*parts))
        return
    for change in changes:
        connection.execute(change)
