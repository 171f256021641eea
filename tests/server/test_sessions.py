"""A browser that logged in holds a session: no token, ended with its token, and the same at every server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from http.cookies import SimpleCookie
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, select, update
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Origin

from isentrope_server.store import browser_sessions as store
from isentrope_server.store.tables import browser_sessions
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

RUNS = "/api/v1/runs"


def status(server: ServerInThread, headers: dict[str, str], path: str = RUNS) -> int:
    with server.client() as browser:
        return browser.get(path, headers=headers).status_code


def session_of(cookie: dict[str, str]) -> tuple[str, str]:
    """Name and value of the one cookie."""
    name, _, value = cookie["Cookie"].partition("=")
    return name, value


def token(server: ServerInThread, scope: str = "read") -> dict[str, str]:
    created: dict[str, str] = server.http.post("/api/v1/access-tokens", json={"scope": scope}).json()
    return created


def sessions_kept(server: ServerInThread) -> int:
    with server.backend.database.reading() as connection:
        return connection.execute(select(func.count()).select_from(browser_sessions)).scalar_one()


def test_what_a_cookie_holds_is_no_token_and_a_token_is_no_session(server: ServerInThread) -> None:
    cookie = server.session()
    name, session_id = session_of(cookie)
    assert session_id != server.owner_token
    assert status(server, cookie) == 200
    assert status(server, {"Authorization": f"Bearer {session_id}"}) == 401
    assert status(server, {}, f"/?token={session_id}") == 401
    assert status(server, {"Cookie": f"{name}={server.owner_token}"}) == 401
    assert status(server, {"Cookie": f"isentrope_session={server.owner_token}"}) == 401


def test_the_database_knows_a_session_s_hash_alone(server: ServerInThread) -> None:
    _, session_id = session_of(server.session())
    with server.backend.database.reading() as connection:
        rows = connection.execute(select(browser_sessions)).all()
    assert rows
    assert session_id.encode() not in b"".join(bytes(row.session_hash) for row in rows)
    assert session_id not in str(rows)


def test_two_servers_on_one_host_name_their_cookies_differently(
    make_server: MakeServer, server: ServerInThread, tmp_path: Path
) -> None:
    other = make_server(tmp_path / "other")
    mine, others = server.session(), other.session()
    assert session_of(mine)[0] != session_of(others)[0]
    both = {"Cookie": f"{mine['Cookie']}; {others['Cookie']}"}
    assert (status(server, both), status(other, both)) == (200, 200)
    assert (status(server, others), status(other, mine)) == (401, 401)


def test_a_cookie_is_kept_from_scripts_and_other_sites_and_lasts_for_thirty_days(server: ServerInThread) -> None:
    with server.client() as browser:
        answer = browser.get("/", params={"token": server.owner_token})
    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert (cookie["path"], cookie["samesite"], cookie["httponly"]) == ("/", "Strict", True)
    assert int(cookie["max-age"]) == 30 * 24 * 3600
    assert cookie["domain"] == ""


def test_sessions_end_with_their_token(server: ServerInThread) -> None:
    leaving, staying = token(server), token(server)
    cookie, other = server.session(leaving["token"]), server.session(staying["token"])
    kept = sessions_kept(server)
    assert server.http.delete(f"/api/v1/access-tokens/{leaving['id']}").status_code == 204
    assert (status(server, cookie), status(server, other)) == (401, 200)
    assert sessions_kept(server) == kept - 1


def test_logging_out_ends_this_session_and_nothing_else(server: ServerInThread) -> None:
    cookie, other = server.session(), server.session()
    with server.client() as browser:
        answer = browser.post("/logout", headers={**cookie, "Origin": server.url})
    assert answer.status_code == 204
    assert answer.headers["set-cookie"].startswith(f"{session_of(cookie)[0]}=; ")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert (status(server, cookie), status(server, other)) == (401, 200)
    assert server.http.post("/logout").status_code == 204
    assert server.http.get(RUNS).status_code == 200


def test_another_site_s_page_logs_nobody_out(server: ServerInThread) -> None:
    cookie = server.session()
    with server.client() as browser:
        answer = browser.post("/logout", headers={**cookie, "Origin": "http://evil.example"})
    assert (answer.status_code, status(server, cookie)) == (403, 200)


def test_a_live_stream_ends_when_its_browser_logs_out_and_another_one_s_goes_on(server: ServerInThread) -> None:
    rank = Rank(server)
    leaving, staying = server.session(), server.session()
    with (
        server.client() as one,
        server.client() as other,
        one.stream("GET", f"{rank.path}/live", headers=leaving) as left,
        other.stream("GET", f"{rank.path}/live", headers=staying) as kept,
    ):
        lines, kept_lines = left.iter_lines(), kept.iter_lines()
        rank.report(1, x=1.0)
        assert next(lines).startswith("id:")
        with server.client() as browser:
            browser.post("/logout", headers=leaving)
        for _ in lines:
            pass
        rank.report(2, x=2.0)
        assert any(line.startswith("data:") and '"step":2' in line for line in kept_lines)


def test_a_page_s_websocket_ends_when_its_browser_logs_out(make_server: MakeServer) -> None:
    server = make_server(dashboard=True)
    cookie = server.session()
    address = server.url.replace("http", "ws") + "/_dash-ws-callback"
    with connect(address, origin=Origin(server.url), additional_headers=cookie, proxy=None) as socket:
        with server.client() as browser:
            browser.post("/logout", headers=cookie)
        with pytest.raises(ConnectionClosed):
            until_closed(iter(partial(socket.recv, timeout=2), None))


def until_closed(messages: Iterator[object]) -> None:
    for _ in messages:
        pass


def test_a_browser_that_logs_in_again_leaves_no_session_behind(server: ServerInThread) -> None:
    cookie = server.session()
    kept = sessions_kept(server)
    with server.client() as browser:
        again = browser.get("/", params={"token": server.owner_token}, headers=cookie)
    assert again.status_code == 303
    assert (status(server, cookie), sessions_kept(server)) == (401, kept)


def test_a_session_expires_and_the_next_log_in_removes_it(make_server: MakeServer) -> None:
    server = make_server()
    cookie = server.session()

    def expire_all() -> None:
        expired = update(browser_sessions).values(expires_at=time.time() - 1)
        server.backend.writer.submit(lambda t: t.connection.execute(expired).rowcount).result(10)

    expire_all()
    end = time.monotonic() + 4
    while status(server, cookie) == 200 and time.monotonic() < end:
        time.sleep(0.05)
    assert status(server, cookie) == 401
    assert status(server, server.session()) == 200
    assert sessions_kept(server) == 1


def test_of_one_token_s_sessions_the_newest_are_kept(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SESSIONS_OF_A_TOKEN", 2)
    server = make_server()
    readers = server.session(token(server)["token"])
    cookies = [server.session() for _ in range(3)]
    assert [status(server, cookie) for cookie in cookies] == [401, 200, 200]
    assert status(server, readers) == 200


def test_a_session_outlives_a_restart(make_server: MakeServer) -> None:
    server = make_server()
    cookie = server.session()
    server.stop()
    assert status(make_server(), cookie) == 200


def test_a_browser_is_told_to_forget_a_cookie_that_holds_a_token(server: ServerInThread) -> None:
    earlier = {"Cookie": f"isentrope_session={server.owner_token}"}
    with server.client() as browser:
        refused = browser.get("/", headers=earlier)
        logged_in = browser.get("/", params={"token": server.owner_token}, headers=earlier)
    assert refused.headers["set-cookie"].startswith("isentrope_session=; Path=/; Max-Age=0")
    assert "isentrope_session=; Path=/; Max-Age=0" in logged_in.headers.get_list("set-cookie")[-1]


def test_no_one_logs_in_while_nothing_can_be_stored(make_server: MakeServer) -> None:
    server = make_server()
    server.backend.writer.stop()
    answer = httpx.get(f"{server.url}/", params={"token": server.owner_token}, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
