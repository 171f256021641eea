"""The store: migrations, durability, group commit."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event, insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.schema import CreateTable

from isentrope_server.backend import open_backend
from isentrope_server.errors import NotFound, StartupError
from isentrope_server.settings import Settings
from isentrope_server.store.database import (
    Database,
    UnusableDatabase,
    newest_version,
    upgrade,
    version_of,
)
from isentrope_server.store.tables import deleted_runs, metadata
from isentrope_server.store.writer import ControlChanged, Event, Transaction, Writer, WriterStopped
from tests.server.conftest import MakeServer
from tests.server.rank import Rank

DATABASES = ("sqlite", "postgresql")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    with database.writing_engine.begin() as connection:
        upgrade(connection)
    yield database
    database.close()


def add(run_id: str, transaction: Transaction) -> str:
    transaction.connection.execute(
        insert(deleted_runs).values(id=run_id, deleted_at=0.0, deleted_by="")
    )
    transaction.announce(ControlChanged(run_id=run_id))
    return run_id


def ids(database: Database) -> set[str]:
    with database.reading() as connection:
        return set(connection.execute(select(deleted_runs.c.id)).scalars())


def test_changed_tables_have_a_new_version(database: Database) -> None:
    with database.writing_engine.begin() as connection:
        upgrade(connection)
        assert version_of(connection) == newest_version() == "0004"
    statements = [str(CreateTable(table)) for table in metadata.sorted_tables]
    digest = hashlib.blake2b("".join(statements).encode(), digest_size=8).hexdigest()
    assert digest == "2c6214b3ddbf9d4a", (
        "Tables changed: their migration needs another id, and this test the id and the digest."
    )


@pytest.mark.parametrize("version", ["0003", "9999"])
def test_database_of_another_version_is_refused(
    database: Database, tmp_path: Path, version: str
) -> None:
    with database.writing_engine.begin() as connection:
        connection.execute(
            text("UPDATE alembic_version SET version_num = :version"), {"version": version}
        )
    url = database.writing_engine.url.render_as_string(hide_password=False)

    async def start() -> None:
        async with open_backend(Settings(home=tmp_path / "home", database_url=url, token=None)):
            raise AssertionError("it started")

    revisions = rf"\({version}, this one has {newest_version()}\)"
    with pytest.raises(
        StartupError, match=f"another version of Isentrope {revisions}. Export its runs"
    ):
        asyncio.run(start())


@pytest.mark.parametrize("left", ["runs", "alembic_version"])
def test_another_program_s_database_is_refused(database: Database, left: str) -> None:
    # MLflow's has both tables.
    with database.writing_engine.begin() as connection:
        metadata.drop_all(connection)
        connection.execute(text("UPDATE alembic_version SET version_num = 'bda7b8c39065'"))
        if left == "runs":
            connection.execute(text("DROP TABLE alembic_version"))
            connection.execute(text("CREATE TABLE runs (run_uuid VARCHAR(32))"))
    with (
        pytest.raises(UnusableDatabase, match=f"another program's, which has a table '{left}'"),
        database.writing_engine.begin() as connection,
    ):
        upgrade(connection)


def test_work_that_fails_undoes_itself_and_nothing_else(database: Database) -> None:
    announced: list[Event] = []
    writer = Writer(database.writing_engine, announced.extend)
    hold = threading.Event()

    def fail(transaction: Transaction) -> None:
        add("failed", transaction)
        raise NotFound("no such thing")

    commits: list[Connection] = []
    event.listen(database.writing_engine, "commit", commits.append)
    writer.start()
    # While the first job waits, the others queue up and share one COMMIT.
    first = writer.submit(lambda transaction: hold.wait(5))
    before = writer.submit(lambda transaction: add("before", transaction))
    failing = writer.submit(fail)
    after = writer.submit(lambda transaction: add("after", transaction))
    hold.set()
    assert first.result() is True
    assert (before.result(), after.result()) == ("before", "after")
    with pytest.raises(NotFound):
        failing.result()
    assert ids(database) == {"before", "after"}
    assert announced == [ControlChanged(run_id="before"), ControlChanged(run_id="after")]
    assert len(commits) <= 2
    writer.stop()


def test_unreachable_database_reaches_the_caller_and_the_writer_continues(
    database: Database,
) -> None:
    engine = UnreachableAtTimes(database.writing_engine)
    writer = Writer(engine, lambda events: None)  # type: ignore[arg-type]
    engine.reachable = False
    writer.start()
    for _ in range(2):
        with pytest.raises(OperationalError, match="disk I/O error"):
            writer.submit(lambda transaction: add("early", transaction)).result(timeout=5)
    engine.reachable = True
    assert writer.submit(lambda transaction: add("later", transaction)).result(timeout=5) == "later"
    assert ids(database) == {"later"}
    writer.stop()


class Mistake(RuntimeError):
    """What no code expects."""


@pytest.mark.parametrize("stored", [False, True], ids=["before the COMMIT", "after the COMMIT"])
def test_a_mistake_in_telling_others_ends_neither_the_writer_nor_the_wait(
    database: Database, stored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    mistaken = {"first"}

    def publish(events: Sequence[Event]) -> None:
        if not mistaken.isdisjoint(
            event.run_id for event in events if isinstance(event, ControlChanged)
        ):
            raise Mistake("dictionary changed size during iteration")

    announce = None if stored else lambda connection, events: publish(events)
    writer = Writer(database.writing_engine, publish if stored else lambda events: None, announce)
    writer.start()
    first = writer.submit(lambda transaction: add("first", transaction))
    if stored:
        assert first.result(timeout=5) == "first"
    else:
        with pytest.raises(Mistake):
            first.result(timeout=5)
    assert (
        writer.submit(lambda transaction: add("second", transaction)).result(timeout=5) == "second"
    )
    assert writer.alive
    assert ids(database) == ({"first", "second"} if stored else {"second"})
    assert "Mistake" in caplog.text
    writer.stop()


class UnreachableAtTimes:
    """An engine whose connections fail as on a full or broken disk."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.reachable = True

    def connect(self) -> Connection:
        if not self.reachable:
            raise OperationalError("PRAGMA journal_mode = WAL", None, Exception("disk I/O error"))
        return self._engine.connect()


def test_failure_message_has_no_value_of_a_row(database: Database) -> None:
    writer = Writer(database.writing_engine, lambda events: None)
    writer.start()
    writer.submit(lambda transaction: add("a value", transaction)).result(timeout=5)
    with pytest.raises(IntegrityError) as failed:
        writer.submit(lambda transaction: add("a value", transaction)).result(timeout=5)
    assert "a value" not in str(failed.value)
    writer.stop()


def test_a_cancelled_caller_does_not_stop_the_writer(database: Database) -> None:
    writer = Writer(database.writing_engine, lambda events: None)
    hold = threading.Event()
    writer.start()
    writer.submit(lambda transaction: hold.wait(5))
    cancelled = writer.submit(lambda transaction: add("cancelled", transaction))
    assert cancelled.cancel()
    hold.set()
    assert writer.submit(lambda transaction: add("next", transaction)).result(timeout=5) == "next"
    assert ids(database) == {"next"}
    writer.stop()


def test_a_stopped_writer_finishes_what_it_took_and_takes_no_more(database: Database) -> None:
    writer = Writer(database.writing_engine, lambda events: None)
    writer.start()
    futures = [
        writer.submit(lambda transaction, name=name: add(name, transaction))  # type: ignore[misc]
        for name in (f"r{i}" for i in range(50))
    ]
    writer.stop()
    assert {future.result(timeout=0) for future in futures} == ids(database)
    with pytest.raises(WriterStopped):
        writer.submit(lambda transaction: None)


def test_a_restart_keeps_everything(make_server: MakeServer, tmp_path: Path) -> None:
    home = tmp_path / "kept"
    first = make_server(home)
    rank = Rank(first)
    rank.report(0, x=1.5)
    first.http.put(f"{rank.path}/control", json={"method": "none"}, headers={"If-Match": '"0"'})
    token, run = first.owner_token, first.http.get(rank.path).json()
    first.stop()
    second = make_server(home)
    assert second.owner_token == token
    kept = second.http.get(rank.path).json()
    # A digest is computed when the server has time.
    assert kept | {"digest": None} == run | {"digest": None}
    assert second.http.get(f"{rank.path}/steps/0").json()["scalars"] == {"x": 1.5}
    assert Rank(second, run_id=rank.run_id).welcome.acked_through == 1
