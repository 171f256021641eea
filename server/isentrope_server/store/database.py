"""Engines: one writing connection, and read-only ones for everybody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Connection as SqliteConnection

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.pool import NullPool

_BUSY_TIMEOUT_MILLISECONDS = 5_000


class Database:
    """The two engines of one database. SQLite before 3.51.3 can corrupt its WAL when two connections write, so
    exactly one connection, the writer's, may."""

    def __init__(self, url: str) -> None:
        self.is_sqlite = make_url(url).get_backend_name() == "sqlite"
        # Failures go to logs and, through gRPC, to other machines: they hold no values, which may be a run's secrets.
        self.writing_engine = create_engine(url, poolclass=NullPool, hide_parameters=True)
        self.reading_engine = create_engine(url, pool_size=8, max_overflow=8, hide_parameters=True)
        if self.is_sqlite:
            _prepare_sqlite(self.writing_engine, begin="BEGIN IMMEDIATE", read_only=False)
            _prepare_sqlite(self.reading_engine, begin="BEGIN", read_only=True)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one consistent state and can't write."""
        with self.reading_engine.connect() as connection:
            yield connection

    def close(self) -> None:
        self.reading_engine.dispose()
        self.writing_engine.dispose()


def _prepare_sqlite(engine: Engine, *, begin: str, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(connection: SqliteConnection, _record: object) -> None:
        # The driver must not begin transactions by itself: it would leave DDL and SAVEPOINT outside of them.
        connection.isolation_level = None
        pragmas = [
            f"busy_timeout = {_BUSY_TIMEOUT_MILLISECONDS}",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
        ]
        if read_only:
            pragmas.append("query_only = ON")
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)
