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


def test_other_server_accepts_session_at_once(both: tuple[ServerInThread, ServerInThread]) -> None:
    first, second = both
    cookie = {**first.session(), "Host": "localhost:443"}
    assert (status(second, cookie), status(first, cookie)) == (200, 200)


def test_session_of_revoked_token_ends_at_the_other(both: tuple[ServerInThread, ServerInThread]) -> None:
    first, second = both
    reader = first.http.post("/api/v1/access-tokens", json={"scope": "read"}).json()
    cookie = first.session(reader["token"])
    assert first.http.delete(f"/api/v1/access-tokens/{reader['id']}").status_code == 204
    end = time.monotonic() + 3
    while status(second, cookie) == 200 and time.monotonic() < end:
        time.sleep(0.05)
    assert status(second, cookie) == 401
