"""Sessions of two servers on one PostgreSQL behind a proxy: whichever answers, the browser sees one address."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread

DATABASES = ("postgresql",)
pytestmark = pytest.mark.slow


@pytest.fixture
def both(make_server: MakeServer, tmp_path: Path) -> tuple[ServerInThread, ServerInThread]:
    return make_server(tmp_path / "first"), make_server(tmp_path / "second")


def status(server: ServerInThread, headers: dict[str, str]) -> int:
    with server.client() as browser:
        return browser.get("/api/v1/runs", headers=headers).status_code


def test_the_other_server_knows_a_session_before_the_news_of_it_come(
    make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isentrope_server.backend._reload", lambda *_: None)
    monkeypatch.setattr("isentrope_server.housekeeping.RELOAD_SECONDS", 60.0)
    first, second = make_server(tmp_path / "first"), make_server(tmp_path / "second")
    for _ in range(3):
        cookie = {**first.session(), "Host": "localhost:443"}
        assert (status(second, cookie), status(first, cookie)) == (200, 200)


def test_a_session_that_one_server_ended_ends_at_the_other(both: tuple[ServerInThread, ServerInThread]) -> None:
    first, second = both
    of_owner = first.session()
    reader = first.http.post("/api/v1/access-tokens", json={"scope": "read"}).json()
    of_reader = second.session(reader["token"])
    with first.client() as browser:
        assert browser.post("/logout", headers=of_owner).status_code == 204
    assert first.http.delete(f"/api/v1/access-tokens/{reader['id']}").status_code == 204
    end = time.monotonic() + 3
    while 200 in (status(second, of_owner), status(second, of_reader)) and time.monotonic() < end:
        time.sleep(0.05)
    assert (status(second, of_owner), status(second, of_reader)) == (401, 401)
