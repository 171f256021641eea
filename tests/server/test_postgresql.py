"""What holds on PostgreSQL alone: lost connections, crashes, and what its sessions may do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc
import httpx
import pytest
from sqlalchemy import Connection, func, insert, make_url, select, text
from sqlalchemy.exc import DBAPIError, InternalError

from isentrope_server.backend import open_backend
from isentrope_server.errors import StartupError
from isentrope_server.settings import Settings
from isentrope_server.store.database import Database, UnusableDatabase, add_driver, upgrade
from isentrope_server.store.tables import deleted_runs
from isentrope_server.store.writer import Transaction, Writer
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.postgresql import PostgreSQL
from tests.server.rank import Rank, step_report, wire_record
from tests.system.running_server import wait_for

DATABASES = ("postgresql",)
pytestmark = pytest.mark.slow


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


def add(run_id: str, transaction: Transaction) -> str:
    transaction.connection.execute(
        insert(deleted_runs).values(id=run_id, deleted_at=0.0, deleted_by="")
    )
    return run_id


def count(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(deleted_runs)).scalar_one()


def end_own_session(transaction: Transaction) -> None:
    """As when the network or the database goes away in the middle of a transaction."""
    transaction.connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))


@pytest.mark.parametrize(
    "given", ["postgresql://a@b/c", "postgres://a@b/c", "postgresql+psycopg://a@b/c"]
)
def test_postgresql_means_psycopg_3(given: str) -> None:
    assert add_driver(make_url(given)).render_as_string() == "postgresql+psycopg://a@b/c"


def test_a_reader_sees_one_state_and_cannot_write(database: Database) -> None:
    with database.reading() as reader:
        assert count(reader) == 0
        with database.writing_engine.begin() as writing:
            add("meanwhile", Transaction(writing))
        assert count(reader) == 0
        with pytest.raises(InternalError, match="read-only"):
            add("by a reader", Transaction(reader))
    with database.reading() as reader:
        assert count(reader) == 1


def test_connection_lost_in_a_transaction_reaches_every_caller(database: Database) -> None:
    writer = Writer(database.writing_engine, lambda events: None)
    writer.start()
    begun, hold = threading.Event(), threading.Event()

    def wait(_transaction: Transaction) -> bool:
        begun.set()
        return hold.wait(5)

    first = writer.submit(wait)
    assert begun.wait(5)
    # While the first job waits, the others queue up and share one COMMIT.
    innocent = writer.submit(lambda transaction: add("innocent", transaction))
    guilty = writer.submit(end_own_session)
    hold.set()
    first.result(timeout=5)
    for future in (innocent, guilty):
        with pytest.raises(DBAPIError, match="terminating connection"):
            future.result(timeout=5)
    assert writer.submit(lambda transaction: add("later", transaction)).result(timeout=5) == "later"
    with database.reading() as reader:
        assert count(reader) == 1
    writer.stop()


def test_a_connection_that_died_while_nothing_happened_is_replaced_unnoticed(
    database: Database, postgresql: PostgreSQL
) -> None:
    writer = Writer(database.writing_engine, lambda events: None)
    writer.start()
    asked = writer.submit(
        lambda t: t.connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    )
    session = asked.result(timeout=5)
    with database.reading() as reader:
        assert count(reader) == 0
    ended = postgresql.administer(
        "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = '{make_url(str(database.writing_engine.url)).database}'"
    )
    assert session in [pid for pid, _ in ended]
    assert writer.submit(lambda transaction: add("later", transaction)).result(timeout=5) == "later"
    with database.reading() as reader:
        assert count(reader) == 1
    writer.stop()


@pytest.fixture
def crashing_postgresql() -> Iterator[PostgreSQL]:
    """One that a test may stop."""
    with PostgreSQL() as running:
        yield running


def test_while_the_database_is_away_requests_are_answered_and_a_watch_goes_on_after(
    crashing_postgresql: PostgreSQL, tmp_path: Path
) -> None:
    with (
        crashing_postgresql.empty_database() as url,
        ServerInThread(tmp_path / "home", database_url=url, heartbeat_seconds=0.2) as server,
    ):
        rank = Rank(server)
        watching = rank.watch(timeout=30)
        assert watching.next_kind() == "heartbeat"
        crashing_postgresql.stop(signal.SIGQUIT)
        with pytest.raises(grpc.RpcError) as refused:
            rank.report(0, x=1.0)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "SELECT" not in str(refused.value.details())
        answers = [
            server.http.get(path) for path in (rank.path, f"{rank.path}/metrics", "/api/v1/runs")
        ]
        assert {(answer.status_code, answer.json()["error"]["code"]) for answer in answers} == {
            (503, "store_unavailable")
        }
        assert server.http.get("/readyz").status_code == 503
        assert server.http.get("/healthz").status_code == 200
        crashing_postgresql.start()
        wait_for(lambda: server.http.get("/readyz").status_code == 200)
        document = {"method": "none", "reason": "after the crash"}
        wait_for(lambda: put(server.http, rank.path, document).is_success)
        assert watching.next_control().version == 1
        watching.close()
        assert wait_for(lambda: server.backend.on_duty)


def put(client: httpx.Client, path: str, document: Mapping[str, object]) -> httpx.Response:
    return client.put(f"{path}/control", json=document, headers={"If-Match": '"0"'})


def test_what_the_database_refuses_costs_nothing_else_of_a_push_of_many_pieces(
    make_server: MakeServer,
) -> None:
    server = make_server()
    server.backend.writer.submit(_refuse_step_13).result(timeout=10)
    rank = Rank(server)
    reply = rank.push(
        [
            wire_record(1, step_report(0, {}), claimed_hash=b"x" * 16),
            *(
                wire_record(step + 1, step_report(step, {"x": float(step)}))
                for step in range(1, 60)
            ),
        ]
    )
    assert [(item.seq, item.code) for item in reply.quarantined] == [
        (1, "hash_mismatch"),
        (14, "unstorable"),
    ]
    assert reply.acked_through == 60
    series = server.http.get(f"{rank.path}/metrics/series", params={"name": "x"}).json()["series"][
        "x"
    ]
    assert series["step"] == [step for step in range(1, 60) if step != 13]


def _refuse_step_13(transaction: Transaction) -> None:
    transaction.connection.execute(
        text(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF 13 BETWEEN"
            " NEW.first_step AND NEW.last_step THEN RAISE 'thirteen' USING ERRCODE = '22003'; END"
            " IF; RETURN NEW; END $$"
        )
    )
    transaction.connection.execute(
        text(
            "CREATE TRIGGER refuse BEFORE INSERT ON records FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    )


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_an_encoding_that_lacks_letters_is_refused(postgresql: PostgreSQL, encoding: str) -> None:
    name = f"in_{encoding.lower()}"
    postgresql.administer(
        f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
    )
    database = Database(postgresql.url(name))
    with (
        pytest.raises(UnusableDatabase, match=f"its encoding is {encoding}"),
        database.writing_engine.begin() as connection,
    ):
        upgrade(connection)
    database.close()


def test_too_few_connections_are_one_sentence(postgresql: PostgreSQL, tmp_path: Path) -> None:
    with postgresql.new_database() as url:
        name = make_url(url).database
        postgresql.administer("CREATE ROLE few LOGIN CONNECTION LIMIT 1")
        for what in ("TABLES", "SEQUENCES"):
            postgresql.administer(f"GRANT ALL ON ALL {what} IN SCHEMA public TO few", str(name))
        settings = Settings(
            home=tmp_path, token=None, database_url=url.replace("postgres@", "few@")
        )

        async def start() -> None:
            async with open_backend(settings):
                raise AssertionError("it started")

        with pytest.raises(StartupError, match="too many connections for role"):
            asyncio.run(start())


def test_a_database_that_is_away_is_one_sentence_at_the_start_without_the_password(
    tmp_path: Path,
) -> None:
    url = f"postgresql://ada:secret@/x?host={tmp_path}"
    result = subprocess.run(
        [sys.executable, "-m", "isentrope", "up", "--http-port", "0", "--grpc-port", "0"],
        env={**os.environ, "ISENTROPE_HOME": str(tmp_path / "home"), "ISENTROPE_DATABASE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "ada:***@" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "secret" not in result.stderr


def test_nothing_of_a_session_waits_for_ever(database: Database) -> None:
    with database.writing_engine.connect() as connection:
        assert (
            connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
            == "10s"
        )
        assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = '100ms'"))
        time.sleep(0.5)
        with pytest.raises(DBAPIError, match="timeout"):
            connection.execute(text("SELECT 1"))
