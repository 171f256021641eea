"""Tokens: which are active, here and at other servers, when they were used last, and the
owner's."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from isentrope_server.errors import StartupError
from isentrope_server.security import tokens
from isentrope_server.security.tokens import TokenBook, ensure_owner_token
from isentrope_server.store import access
from isentrope_server.store.database import Database, upgrade
from isentrope_wire.answers import TokenScope
from tests.server.conftest import MakeServer
from tests.system.running_server import wait_for


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
    with database.writing_engine.begin() as connection:
        upgrade(connection)
        issued = access.add_token(connection, "ada", TokenScope.READ)
    book = TokenBook()
    with database.reading() as early, database.reading() as late:
        slow = PausesAfterReading(early)
        reloads = [
            threading.Thread(target=book.reload, args=(connection,)) for connection in (slow, late)
        ]
        reloads[0].start()
        assert slow.has_read.wait(5)
        with database.writing_engine.begin() as connection:
            assert access.revoke_token(connection, issued.id, 1.0)
        reloads[1].start()
        time.sleep(0.1)
        slow.go_on.set()
        for reload in reloads:
            reload.join(5)
    assert book.find_by_secret(issued.token) is None
    database.close()


def test_a_token_that_another_server_revoked_is_noticed(make_server: MakeServer) -> None:
    server = make_server()
    token = server.issue("read")
    server.backend.writer.submit(
        lambda t: access.revoke_token(t.connection, token["id"], time.time())
    ).result(10)
    with server.client(token["token"]) as client:
        wait_for(lambda: client.get("/api/v1/runs").status_code != 200)


def test_last_use_of_a_token_is_recorded(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isentrope_server.housekeeping.RELOAD_SECONDS", 0.05)
    monkeypatch.setattr("isentrope_server.housekeeping.NOTE_USES_SECONDS", 0.05)
    server = make_server()
    used, unused = server.issue("read"), server.issue("read")
    assert used["last_used_at"] is None
    with server.client(used["token"]) as client:
        client.get("/api/v1/runs")

    def last_used(token: dict[str, Any]) -> float | None:
        listed = server.http.get("/api/v1/access-tokens").json()["items"]
        at: float | None = next(
            item["last_used_at"] for item in listed if item["id"] == token["id"]
        )
        return at

    assert wait_for(lambda: last_used(used)) == pytest.approx(time.time(), abs=5)
    assert last_used(unused) is None


@pytest.mark.parametrize(
    ("token", "warned"), [("t" * 8, True), ("t" * 31, True), ("t" * 32, False), (None, False)]
)
def test_a_short_owner_s_token_is_warned_of(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture, token: str | None, warned: bool
) -> None:
    server = make_server(token=token)
    assert server.http.get("/api/v1/access-tokens").status_code == 200
    warnings = [
        record.args for record in caplog.records if record.name == "isentrope_server.backend"
    ]
    assert [len(token or "") in (known or ()) for known in warnings] == [True] * warned


def test_refused_token_keeps_the_owner_s(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server()
    refused = server.backend.writer.submit(
        lambda t: ensure_owner_token(t, tmp_path / "gone", "123")
    )
    with pytest.raises(StartupError, match=r"8 .*32.* 3"):
        refused.result(10)
    assert not (tmp_path / "gone").exists()
    server.backend.writer.submit(lambda t: server.backend.tokens.reload(t.connection)).result(10)
    assert server.http.get("/api/v1/access-tokens").status_code == 200


def test_after_ten_wrong_tokens_each_is_answered_late_and_right_ones_at_once(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "GUESS_SECONDS", 0.4)
    server = make_server()

    def seconds(token: str) -> float:
        began = time.monotonic()
        server.http.get("/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
        return time.monotonic() - began

    seconds(server.owner_token)
    at_once = [seconds("wrong") for _ in range(10)]
    assert min(at_once) < 0.4
    assert seconds("wrong") >= 0.4
    assert min(seconds(server.owner_token) for _ in range(5)) < 0.4
    # However many connections there are: one answer after another.
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(seconds, "wrong") for _ in range(4)]
        ended = [time.monotonic() - began for _ in as_completed(answers)]
    assert all(one >= 0.4 * place for place, one in enumerate(ended, 1))
