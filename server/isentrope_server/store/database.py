"""Engines: one writing connection, and read-only ones for everybody else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from typing import Any

from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Column,
    Connection,
    Double,
    Engine,
    ExceptionContext,
    Integer,
    LargeBinary,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.pool import NullPool

from isentrope_server.store.column_types import String, json_text
from isentrope_wire.printable import printable

_BUSY_TIMEOUT_MILLISECONDS = 5_000

_READ_FROM_MEMORY_BYTES = 1 << 30
"""Of SQLite's file that readers see through the page cache instead of copying it page by page: a series of reports that
are not packed is read in half the time. Not for the writer, whose stray write would be one to the file."""

SQLITE = "sqlite"
POSTGRESQL = "postgresql"

_CONNECTING: Mapping[str, int] = {
    "connect_timeout": 5,
    # A network that swallows packets is a lost connection after half a minute, not after two hours.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

_SESSION: Mapping[str, str] = {
    # A server that froze in mid-transaction holds locks the other replicas wait for.
    "idle_in_transaction_session_timeout": "10s",
    "synchronous_commit": "on",
    "timezone": "UTC",
}
_READING_SESSION: Mapping[str, str] = {
    # What one request reads with several queries is one state, as with SQLite.
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
    "idle_in_transaction_session_timeout": "60s",
}


COPIED_TYPES = "copied_types"
"""Execution option of a COPY ... FROM STDIN (FORMAT BINARY): its rows are streamed to it, as values of these types. Half
of what one INSERT for each row takes, on both sides."""


def copied_type(column: Column[Any]) -> str:
    """What COPIED_TYPES calls the type of a column."""
    # A JSON column gets the text that it is to hold; as JSON the driver would encode that once more.
    kinds = {BigInteger: "int8", Integer: "int4", Double: "float8", LargeBinary: "bytea", JSON: "text", String: "text"}
    return next(name for kind, name in kinds.items() if isinstance(column.type, kind))


class Database:
    """The two engines of one database.

    SQLite before 3.51.3 can corrupt its WAL when two connections write, so exactly one connection, the writer's, may.
    On PostgreSQL each server process has one such connection too; `locks` says what they may do at once.
    """

    def __init__(self, url: str) -> None:
        parsed = with_driver(make_url(url))
        self.is_sqlite = parsed.get_backend_name() == SQLITE
        self.is_shared = parsed.get_backend_name() == POSTGRESQL
        """Whether other servers may use it at the same time."""
        self.file = _file_of(parsed) if self.is_sqlite else None
        """Where SQLite keeps it; None: it is no file of this machine."""
        # Failures go to logs and, through gRPC, to other machines: they hold no values, which may be a run's secrets.
        options: dict[str, Any] = {"hide_parameters": True, "json_serializer": json_text}
        if self.is_shared:
            # What the URL says of them counts.
            options["connect_args"] = {name: n for name, n in _CONNECTING.items() if name not in parsed.query}
        self.writing_engine = create_engine(parsed, poolclass=NullPool, **options)
        # A pooled connection may have died with the database it was to; asking first costs one round trip.
        self.reading_engine = create_engine(
            parsed, pool_size=8, max_overflow=8, pool_pre_ping=self.is_shared, **options
        )
        if self.is_sqlite:
            _prepare_sqlite(self.writing_engine, begin="BEGIN IMMEDIATE", read_only=False)
            _prepare_sqlite(self.reading_engine, begin="BEGIN", read_only=True)
        if self.is_shared:
            _prepare_postgresql(self.writing_engine, _SESSION)
            _prepare_postgresql(self.reading_engine, {**_SESSION, **_READING_SESSION})

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one consistent state and can't write."""
        with self.reading_engine.connect() as connection:
            yield connection

    def takes_writes(self) -> bool:
        """Whether it answers, and is no standby that only repeats another database.

        Raises:
            SQLAlchemyError: it doesn't answer.
        """
        question = "SELECT NOT pg_is_in_recovery()" if self.is_shared else "SELECT 1"
        with self.reading() as connection:
            return bool(connection.execute(text(question)).scalar_one())

    def close(self) -> None:
        self.reading_engine.dispose()
        self.writing_engine.dispose()


def with_driver(url: URL) -> URL:
    """The URL with psycopg 3 as the driver where it says PostgreSQL and names none; `postgres://` counts too."""
    return url.set(drivername="postgresql+psycopg") if url.drivername in (POSTGRESQL, "postgres") else url


def in_a_line(error: Exception) -> str:
    """What the database said, without the statement it said it of."""
    return printable(str(getattr(error, "orig", None) or error).strip().partition("\n")[0])


def _file_of(url: URL) -> Path | None:
    return None if url.database in (None, "", ":memory:") else Path(str(url.database))


def _prepare_sqlite(engine: Engine, *, begin: str, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(connection: SqliteConnection, _record: object) -> None:
        # The driver must not begin transactions by itself: it would leave DDL and SAVEPOINT outside of them.
        connection.isolation_level = None
        pragmas = [
            # Counts only before the first table is made: `space` gives the pages of deleted rows back.
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

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)


def _prepare_postgresql(engine: Engine, session: Mapping[str, str]) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            for name, value in session.items():
                cursor.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.commit()

    # Done by the driver's own means, but as one of SQLAlchemy's statements: so its errors are SQLAlchemy's, too.
    @event.listens_for(engine, "do_execute")
    def _on_execute(cursor: Any, statement: str, row: Any, context: Any) -> bool:
        return _copy(cursor, statement, [row], context)

    @event.listens_for(engine, "do_executemany")
    def _on_executemany(cursor: Any, statement: str, rows: Any, context: Any) -> bool:
        return _copy(cursor, statement, rows, context)

    @event.listens_for(engine, "handle_error")
    def _on_error(context: ExceptionContext) -> None:
        # Behind the first line PostgreSQL tells the values it speaks of, and the driver shows them.
        for error in (context.original_exception, context.sqlalchemy_exception):
            if error is not None and error.args:
                error.args = (str(error.args[0]).partition("\n")[0], *error.args[1:])


def _copy(cursor: Any, statement: str, rows: Any, context: Any) -> bool:
    """Whether it is a COPY; then it is done."""
    types = context.execution_options.get(COPIED_TYPES) if context is not None else None
    if types is None:
        return False
    with cursor.copy(statement) as copying:
        copying.set_types(types)
        for row in rows:
            copying.write_row(row)
    return True
