"""A browser that logged in holds a signed cookie: no token, and ended with its token."""

from __future__ import annotations

from http.cookies import SimpleCookie
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from isentrope_server.security import sessions
from isentrope_server.store.access import Principal
from isentrope_wire.answers import TokenScope
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


def test_what_a_cookie_holds_is_no_token_and_a_token_is_no_session(server: ServerInThread) -> None:
    cookie = server.session()
    name, session_id = session_of(cookie)
    assert session_id != server.owner_token
    assert status(server, cookie) == 200
    assert status(server, {"Authorization": f"Bearer {session_id}"}) == 401
    assert status(server, {}, f"/?token={session_id}") == 401
    assert status(server, {"Cookie": f"{name}={server.owner_token}"}) == 401


def test_a_wrong_token_is_named_as_such(server: ServerInThread) -> None:
    with server.client() as browser:
        said = {
            browser.get("/?token=ise_wrong", headers={"Accept": "text/html"}).text,
            browser.get(RUNS, headers={"Authorization": "Bearer ise_wrong"}).json()["error"][
                "message"
            ],
        }
        assert all(sessions.WRONG_TOKEN in text for text in said)
        assert sessions.WRONG_TOKEN not in browser.get(RUNS).json()["error"]["message"]
    assert status(server, server.session(), "/?token=ise_wrong") != 401  # who is signed in stays so


def test_a_link_shows_one_run_until_it_is_revoked(server: ServerInThread) -> None:
    own, other = Rank(server).run_id, Rank(server).run_id
    made = server.http.post(f"{RUNS}/{own}/link").json()
    with server.client() as browser:
        answer = browser.get(
            "/", params={"token": made["token"], "tab": "tokens"}, follow_redirects=False
        )
        assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{own}?tab=tokens")
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
        assert browser.get("/api/v1/me").json()["run_id"] == own
    for path in (f"{RUNS}/{own}", f"{RUNS}/{own}/metrics", f"{RUNS}/{own}/export?format=csv"):
        assert status(server, cookie, path) == 200
    for path in (
        RUNS,
        "/api/v1/run-counts",
        f"{RUNS}/{other}",
        f"{RUNS}/{other}/metrics",
        f"{RUNS}/{own}x",
        "/metrics",
    ):
        assert status(server, cookie, path) == 403
    with server.client() as browser:
        pushed = browser.put(
            f"{RUNS}/{own}/control", headers=cookie, json={"method": "clip_v", "mu_low": 1}
        )
        assert (pushed.status_code, pushed.json()["error"]["code"]) == (403, "forbidden")
    assert status(server, {"Authorization": f"Bearer {made['token']}"}) == 401
    assert status(server, {}, f"/?token={made['token'][:-4]}AAAA") == 401
    # Who may see more is not limited by it.
    with server.client() as browser:
        answer = browser.get(
            "/", params={"token": made["token"]}, headers=server.session(), follow_redirects=False
        )
        assert (answer.status_code, "set-cookie" in answer.headers) == (303, False)
    server.http.delete(f"/api/v1/access-tokens/{made['id']}")
    assert status(server, cookie, f"{RUNS}/{own}") == 401


@pytest.mark.parametrize("position", [0, 12, -1])
def test_changed_cookie_opens_nothing(server: ServerInThread, position: int) -> None:
    name, value = session_of(server.session())
    forged = list(value)
    # Of base64's last letter two bits count for nothing: A and B there are the same signature, A
    # and E are not.
    forged[position] = "A" if value[position] != "A" else "E"
    assert status(server, {"Cookie": f"{name}={''.join(forged)}"}) == 401


def test_two_servers_on_one_host_name_their_cookies_differently(
    make_server: MakeServer, server: ServerInThread, tmp_path: Path
) -> None:
    other = make_server(tmp_path / "other")
    mine, others = server.session(), other.session()
    assert session_of(mine)[0] != session_of(others)[0]
    both = {"Cookie": f"{mine['Cookie']}; {others['Cookie']}"}
    assert (status(server, both), status(other, both)) == (200, 200)
    assert (status(server, others), status(other, mine)) == (401, 401)


def test_a_cookie_is_kept_from_scripts_and_other_sites_and_lasts_for_thirty_days(
    server: ServerInThread,
) -> None:
    with server.client() as browser:
        answer = browser.get("/", params={"token": server.owner_token})
    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert (cookie["path"], cookie["samesite"], cookie["httponly"]) == ("/", "Strict", True)
    assert int(cookie["max-age"]) == 30 * 24 * 3600
    assert cookie["domain"] == ""


def test_logging_out_deletes_the_cookie(server: ServerInThread) -> None:
    cookie = server.session()
    with server.client() as browser:
        answer = browser.post("/logout", headers={**cookie, "Origin": server.url})
    assert answer.status_code == 204
    assert answer.headers["set-cookie"].startswith(f"{session_of(cookie)[0]}=; ")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert server.http.get(RUNS).status_code == 200


def test_me_names_the_token_and_how_it_came(server: ServerInThread) -> None:
    made = server.issue("control", "control")
    expected = {
        "token_id": made["id"],
        "name": "control",
        "scope": "control",
        "is_owner": False,
        "run_id": None,
        "restored": None,
    }
    with server.client(made["token"]) as program:
        assert program.get("/api/v1/me").json() == {**expected, "is_session": False}
    with server.client() as browser:
        assert browser.get("/api/v1/me", headers=server.session(made["token"])).json() == {
            **expected,
            "is_session": True,
        }
        owner = browser.get("/api/v1/me", headers=server.session()).json()
    assert (owner["name"], owner["scope"], owner["is_owner"]) == ("owner", "admin", True)


@pytest.mark.parametrize(("seconds", "found"), [(60, "1234abcd"), (-1, None)])
def test_session_expires(monkeypatch: pytest.MonkeyPatch, seconds: int, found: str | None) -> None:
    monkeypatch.setattr(sessions, "SESSION_SECONDS", seconds)
    signed = sessions.BrowserSessions(b"key")
    cookie = signed.begin(
        Principal(token_id="1234abcd", name="reader", scope=TokenScope.READ), secure=False
    )
    headers = Headers({"cookie": cookie.partition(";")[0]})
    assert (signed.signed_in(headers, secure=False) or (None,))[0] == found


def test_a_session_outlives_a_restart(make_server: MakeServer) -> None:
    server = make_server()
    cookie = server.session()
    server.stop()
    assert status(make_server(), cookie) == 200
