"""Nothing answers without a token: every HTTP route, every gRPC method. There is no WebSocket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import BaseRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from isentrope_server.app import create_app
from isentrope_server.security.permissions import (
    GRPC_SCOPES,
    PAGE_SCOPES,
    ROUTE_SCOPES,
    required_grpc_scope,
    required_scope,
)
from isentrope_server.security.sessions import NO_PAGES, SESSION_ENDED, WRONG_TOKEN
from isentrope_server.settings import Settings
from isentrope_wire.answers import TokenScope
from isentrope_wire.v1 import telemetry_pb2 as pb
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

OPEN = {("GET", "/healthz"), ("GET", "/readyz")}


def routes_of(app: FastAPI) -> list[tuple[str, str, BaseRoute]]:
    """(method, path, route) of everything the application answers over HTTP."""
    return [
        (method, re.sub(r"\{[^}]*\}", "x", template), route)
        for method, template, route in _answering(app)
    ]


def _answering(app: FastAPI) -> Iterator[tuple[str, str, BaseRoute]]:
    """(method, template, route)"""
    for prefix, route in _flat(app.routes, ""):
        path = getattr(route, "path", None)
        if path is not None and "WebSocket" not in type(route).__name__:
            for method in getattr(route, "methods", None) or ("GET",):
                yield method, f"{prefix}{path}", route


def _flat(routes: list[BaseRoute], prefix: str) -> Iterator[tuple[str, BaseRoute]]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield prefix, route
        else:
            yield from _flat(inner.routes, prefix + route.include_context.prefix)  # type: ignore[attr-defined]


def test_the_enumeration_finds_the_routes() -> None:
    found = {(method, path) for method, path, _ in routes_of(create_app(Settings(dashboard=True)))}
    assert {
        ("GET", "/api/v1/runs"),
        ("PUT", "/api/v1/runs/x/control"),
        ("GET", "/api/v1/runs/x/gaps"),
        ("POST", "/_dash-update-component"),
        ("GET", "/openapi.json"),
        ("GET", "/metrics"),
    } <= found
    assert len(found) > 30


def templates_of(app: FastAPI) -> set[tuple[str, str]]:
    """(method, template) of everything but what pages add to GET and the files they bring."""
    return {
        (method, template)
        for method, template, _ in _answering(app)
        if method not in ("HEAD", "OPTIONS")
    }


def test_every_route_declares_the_scope_it_needs() -> None:
    declared = set(ROUTE_SCOPES) | set(PAGE_SCOPES) | OPEN
    own = {
        one
        for one in templates_of(create_app(Settings(dashboard=False)))
        if one[1] != "/api{rest:path}"
    }
    assert own - declared == set(), "give it a line in isentrope_server.security.permissions"
    pages = templates_of(create_app(Settings(dashboard=True)))
    undeclared = {
        (method, template)
        for method, template in pages - declared
        # What a page adds to GET is for those who may read; under the API it would need the most
        # there is.
        if template != "/api{rest:path}" and (method != "GET" or template.startswith("/api"))
    }
    assert undeclared == set()
    routes = own | pages
    assert set(ROUTE_SCOPES) <= routes, "it is no more"
    assert set(PAGE_SCOPES) <= routes


def test_every_grpc_method_declares_the_scope_it_needs() -> None:
    service = pb.DESCRIPTOR.services_by_name["Telemetry"]
    assert set(GRPC_SCOPES) == {f"/{service.full_name}/{method.name}" for method in service.methods}
    assert required_grpc_scope("/isentrope_wire.v1.Telemetry/New") is TokenScope.ADMIN


@pytest.mark.parametrize("scope", list(TokenScope))
def test_every_route_refuses_tokens_of_the_wrong_scope(
    with_pages: ServerInThread, scope: TokenScope
) -> None:
    granted = {
        TokenScope.READ: {TokenScope.READ},
        TokenScope.INGEST: {TokenScope.INGEST},
        TokenScope.CONTROL: {TokenScope.READ, TokenScope.CONTROL},
        TokenScope.ADMIN: set(TokenScope),
    }[scope]
    with with_pages.client(with_pages.token(scope)) as client:
        for (method, template), needed in (ROUTE_SCOPES | PAGE_SCOPES).items():
            path = re.sub(r"\{[^}]*\}", "x", template)
            status = client.request(method, path).status_code
            assert (status == 403) == (needed not in granted), (method, path, scope, status)
            assert status != 401


def test_what_no_rule_names_needs_the_most_there_is() -> None:
    assert required_scope("GET", "/api/v1/new") is TokenScope.ADMIN
    assert required_scope("GET", "/api/v1/runs\n") is TokenScope.ADMIN
    assert required_scope("POST", "/new") is TokenScope.ADMIN
    assert required_scope("DELETE", "/api/v1/runs/r") is TokenScope.ADMIN
    assert required_scope("HEAD", "/api/v1/runs/r/control") is TokenScope.READ


def test_no_http_route_answers_without_a_token(with_pages: ServerInThread) -> None:
    app = create_app(Settings(dashboard=True))
    wrong = {"Authorization": "Bearer wrong", **with_pages.session()}
    name = wrong["Cookie"].partition("=")[0]
    with with_pages.client() as anonymous:
        for method, path, _ in routes_of(app):
            if (method, path) in OPEN:
                continue
            for headers in ({}, wrong, {"Cookie": f"{name}=wrong"}):
                answer = anonymous.request(method, path, headers=headers)
                assert answer.status_code == 401, (method, path)
                if method != "HEAD":
                    assert answer.json()["error"]["code"] == "unauthenticated", (method, path)


WHO = b'{"output": "who.children", "changedPropIds": [], '
OUTPUTS = b'"outputs": {"id": "who", "property": "children"}, '
INPUTS = b'"inputs": [{"id": "who", "property": "id"}], "state": '


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"",
        b'{"output": "x", "inputs": 3}',
        WHO + OUTPUTS + b'"inputs": [], "state": []}',
        WHO + b'"outputs": {"id": "whose", "property": "children"}, ' + INPUTS + b"[]}",
        WHO + b'"outputs": {}, ' + INPUTS + b"[]}",
        WHO
        + OUTPUTS
        + INPUTS
        + b'[{"id": "view", "property": "data", "value": {"query": [["a"]]}}]}',
    ],
)
def test_a_callback_that_no_page_asks_for_is_refused(
    with_pages: ServerInThread, body: bytes
) -> None:
    answer = with_pages.http.post(
        "/_dash-update-component", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400, answer.text


def test_a_script_that_no_page_has_is_not_found(with_pages: ServerInThread) -> None:
    assert with_pages.http.get("/_dash-component-suites/none/of.js").status_code == 404


def test_no_websocket_opens(with_pages: ServerInThread) -> None:
    address = with_pages.url.replace("http", "ws") + "/_dash-ws-callback"
    with pytest.raises(InvalidStatus):
        connect(
            address,
            origin=Origin(with_pages.url),
            additional_headers=with_pages.session(),
            proxy=None,
        )


def call_every_method(server: ServerInThread, token: str | None) -> dict[str, grpc.StatusCode]:
    """The status each gRPC method answers with, one unknown method included."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    channel = server.channel()
    service = pb.DESCRIPTOR.services_by_name["Telemetry"]
    statuses = {}
    methods: list[tuple[str, Any, bool]] = [
        (method.name, method.input_type._concrete_class, method.server_streaming)
        for method in service.methods
    ]
    for name, request, streams in [*methods, ("Unknown", pb.HelloRequest, False)]:
        path = f"/{service.full_name}/{name}"
        serialize = request.SerializeToString
        try:
            if streams:
                next(
                    iter(
                        channel.unary_stream(path, serialize, bytes)(
                            request(), metadata=metadata, timeout=5
                        )
                    )
                )
            else:
                channel.unary_unary(path, serialize, bytes)(request(), metadata=metadata, timeout=5)
        except grpc.RpcError as error:
            statuses[name] = error.code()
    return statuses


@pytest.mark.parametrize("token", [None, "wrong"])
def test_no_grpc_method_answers_without_a_token(server: ServerInThread, token: str | None) -> None:
    statuses = call_every_method(server, token)
    assert set(statuses) == {"Hello", "Push", "Watch", "Unknown"}
    assert set(statuses.values()) == {grpc.StatusCode.UNAUTHENTICATED}


def test_no_grpc_method_answers_a_token_that_may_not_ingest(server: ServerInThread) -> None:
    assert set(call_every_method(server, server.token("control")).values()) == {
        grpc.StatusCode.PERMISSION_DENIED
    }


def test_no_spelling_of_an_address_lowers_the_scope_it_needs(server: ServerInThread) -> None:
    with server.client(server.token("read")) as client:
        for path in ("/api/v1/access-tokens", "/api/v1/access-tokens%0A", "/api/v1/access-tokens/"):
            assert client.get(path).status_code == 403, path


def test_a_revoked_token_opens_nothing(server: ServerInThread) -> None:
    token = server.token("read")
    listed = server.http.get("/api/v1/access-tokens").json()["items"]
    assert all("token" not in item and "token_hash" not in item for item in listed)
    with server.client(token) as client:
        assert client.get("/api/v1/runs").status_code == 200
        assert server.http.delete(f"/api/v1/access-tokens/{listed[-1]['id']}").status_code == 204
        assert client.get("/api/v1/runs").status_code == 401
    assert server.http.delete("/api/v1/access-tokens/nothing").status_code == 404


def test_the_printed_address_logs_a_browser_in_and_forgets_the_token(
    server: ServerInThread,
) -> None:
    with server.client() as browser:
        answer = browser.get("/", params={"token": server.owner_token, "run": "r 1"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/?run=r+1")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert browser.get("/api/v1/runs").status_code == 200
        assert (
            browser.get("/", params={"token": "wrong"}, headers={"Cookie": ""}).status_code == 401
        )


@pytest.mark.parametrize(
    ("sent_by", "status"),
    [("none", 303), ("same-origin", 303), ("same-site", 403), ("cross-site", 403), ("new", 403)],
)
def test_no_other_site_s_page_logs_a_browser_in(
    server: ServerInThread, sent_by: str, status: int
) -> None:
    earlier = server.session()
    with server.client() as browser:
        answer = browser.get(
            "/", params={"token": server.token("read")}, headers={"Sec-Fetch-Site": sent_by}
        )
        assert answer.status_code == status
        assert ("set-cookie" in answer.headers) == (status == 303)
        if status == 403:
            assert answer.json()["error"]["code"] == "foreign_log_in"
            page = browser.get(
                "/?token=x", headers={"Sec-Fetch-Site": sent_by, "Accept": "text/html"}
            )
            assert (page.status_code, "the address bar" in page.text) == (403, True)
        assert browser.get("/api/v1/access-tokens", headers=earlier).status_code == 200


NAVIGATES = {
    "Accept": "text/html",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}


@pytest.mark.parametrize(
    ("path", "change", "detour"),
    [
        ("/runs/x?tab=tokens", {}, True),
        ("/", {}, True),
        ("/runs/x", {"Sec-Fetch-Site": "same-origin"}, False),
        ("/runs/x", {"Sec-Fetch-Site": "none"}, False),
        ("/runs/x", {"Sec-Fetch-Dest": "iframe"}, False),
        ("/runs/x", {"Sec-Fetch-Mode": "no-cors"}, False),
        ("/runs/x", {"Authorization": "Bearer wrong"}, False),
        ("/api/v1/runs", {}, False),
        ("/?token=wrong", {}, False),
    ],
)
def test_a_link_of_another_site_is_asked_for_again(
    server: ServerInThread, path: str, change: dict[str, str], detour: bool
) -> None:
    """Once: the second request comes from this server."""
    with server.client() as browser:
        answer = browser.get(path, headers=NAVIGATES | change)
        assert ('http-equiv="refresh"' in answer.text, answer.status_code == 200) == (
            detour,
            detour,
        )
        assert browser.post(path, headers=NAVIGATES | change).status_code in (401, 403)
        ended = {"Cookie": server.session()["Cookie"] + "x"}
        assert "refresh" not in browser.get(path, headers=NAVIGATES | change | ended).text


def test_a_link_to_one_run_needs_a_click(server: ServerInThread, rank: Rank) -> None:
    link = server.http.post(f"{rank.path}/link").json()["token"]
    with server.client() as browser:
        page = browser.get("/", params={"token": link}, headers=NAVIGATES)
        assert (page.status_code, "set-cookie" in page.headers) == (403, False)
        assert '<a href="">Open the run</a>' in page.text
        assert "Open the run" not in browser.get(f"/?token={link}x", headers=NAVIGATES).text
        owners = browser.get(f"/?token={server.owner_token}", headers=NAVIGATES)
        assert "Open the run" not in owners.text


def test_a_proxy_that_changes_the_host_is_named(server: ServerInThread, rank: Rank) -> None:
    origin = {"Origin": "https://hub.example<b>", "Host": "127.0.0.1:7070"}
    with server.client() as browser:
        cookie = server.session()
        change = browser.patch(rank.path, json={"notes": "x"}, headers=origin | cookie)
        form = browser.post("/", data={"token": "x"}, headers=origin | {"Accept": "text/html"})
    for answer in (change.json()["error"]["message"], form.text):
        assert "https://hub.example" in answer
        assert "127.0.0.1:7070" in answer
        assert "let it pass on Host" in answer
    assert "<b>" not in form.text


def test_a_browser_that_keeps_no_cookies_is_told(server: ServerInThread) -> None:
    page = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    with server.client() as browser:
        for _ in range(2):
            assert "keeps no cookies" in browser.get("/", headers=page).text
            browser.cookies.clear()
        browser.get("/", headers={"Accept": "text/html"})
        assert "keeps no cookies" not in browser.get("/", headers=page).text
        browser.cookies.clear()
        # Who signs out is told nothing of the kind.
        browser.get("/", params={"token": server.owner_token})
        browser.post("/logout", headers={"Origin": server.url})
        assert "keeps no cookies" not in browser.get("/", headers=page).text


def test_another_program_s_cookies_of_this_host_do_not_log_a_browser_out(
    server: ServerInThread,
) -> None:
    # Browsers send a host's cookies to all its ports, and not every program sets them by the book.
    others = 'preferences={"theme": "dark"}; ; flag'
    with server.client() as browser:
        cookies = f"{others}; {server.session()['Cookie']}"
        assert browser.get("/api/v1/runs", headers={"Cookie": cookies}).status_code == 200
        assert browser.get("/api/v1/runs", headers={"Cookie": others}).status_code == 401


@pytest.mark.parametrize("header", ["Basic dXNlcjpwYXNzd29yZA==", "Bearer eyJhbGciOiJ9.e30.c2ln"])
def test_what_a_proxy_asked_for_ends_no_session(server: ServerInThread, header: str) -> None:
    own = {"Authorization": header}
    with server.client() as browser:
        answer = browser.get("/api/v1/runs", headers={**own, **server.session()})
        assert answer.status_code == 200
        assert browser.get("/api/v1/runs", headers=own).status_code == 401
        foreign = {**own, **server.session(), "Origin": "https://elsewhere.example"}
        assert browser.post("/logout", headers=foreign).status_code == 403


def sign_in(
    server: ServerInThread, token: str, address: str = "/", **headers: str
) -> httpx.Response:
    """Sends the form of the page without a session."""
    with server.client() as browser:
        own = {"Origin": server.url, "Accept": "text/html"}
        return browser.post(address, data={"token": token}, headers={**own, **headers})


def test_the_form_signs_in_and_shows_the_address_asked_for(server: ServerInThread) -> None:
    answer = sign_in(server, f" {server.owner_token} ", "/runs/a%20b?tab=tokens&token=old")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/a%20b?tab=tokens")
    cookie = answer.headers["set-cookie"].partition(";")[0]
    with server.client() as browser:
        assert browser.get("/api/v1/runs", headers={"Cookie": cookie}).status_code == 200


@pytest.mark.parametrize(
    "address", ["//evil.example", "/\\\\evil.example", "/%2F%2Fevil.example", "/%5Cevil.example"]
)
def test_the_form_never_leads_to_another_host(server: ServerInThread, address: str) -> None:
    location = sign_in(server, server.owner_token, server.url + address).headers["location"]
    assert location.startswith("/")
    assert location[1] not in "/\\"


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_no_other_site_s_form_signs_a_browser_in(server: ServerInThread, origin: str) -> None:
    answer = sign_in(server, server.token("read"), Origin=origin)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("token", ["", "wrong", "x" * 5_000])
def test_the_form_with_a_wrong_token_is_shown_again(server: ServerInThread, token: str) -> None:
    answer = sign_in(server, token)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert WRONG_TOKEN in answer.text


def test_a_token_that_only_reports_opens_no_pages(server: ServerInThread) -> None:
    answer = sign_in(server, server.token("ingest"))
    assert (answer.status_code, NO_PAGES in answer.text) == (401, True)


def test_a_browser_whose_token_was_revoked_reads_that_its_session_ended(
    server: ServerInThread,
) -> None:
    created = server.http.post("/api/v1/access-tokens", json={"scope": "read"}).json()
    cookie = server.session(created["token"])
    server.http.delete(f"/api/v1/access-tokens/{created['id']}")
    with server.client() as browser:
        answer = browser.get("/runs/x", headers={**cookie, "Accept": "text/html"})
    assert (answer.status_code, SESSION_ENDED in answer.text) == (401, True)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "OWN"}, 200),
        ({}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_a_cookie_changes_things_only_from_a_page_of_this_server(
    server: ServerInThread, rank: Rank, headers: dict[str, str], status: int
) -> None:
    sent = {name: server.url if value == "OWN" else value for name, value in headers.items()}
    with server.client() as browser:
        cookie = server.session()
        assert (
            browser.patch(rank.path, json={"notes": "x"}, headers=sent | cookie).status_code
            == status
        )
        bearer = {"Authorization": f"Bearer {server.owner_token}"}
        assert (
            browser.patch(rank.path, json={"notes": "x"}, headers=sent | bearer).status_code == 200
        )


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9", 200),
        ("localhost", 200),
        ("[::1]:9", 200),
        ("evil.example", 400),
        ("[::1].evil.example", 400),
        ("user@127.0.0.1", 400),
        ("127.0.0.1/evil", 400),
        ("", 400),
        ("a b", 400),
    ],
)
def test_only_its_own_host_names_reach_a_route(
    server: ServerInThread, host: str, status: int
) -> None:
    answer = server.http.get("/api/v1/runs", headers={"Host": host})
    assert answer.status_code == status


def test_every_answer_carries_the_security_headers(with_pages: ServerInThread) -> None:
    with with_pages.client() as anonymous:
        answers = [
            with_pages.http.get("/"),
            with_pages.http.get("/api/v1/nothing"),
            anonymous.get("/api/v1/runs"),
            anonymous.get("/healthz"),
        ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "'unsafe-inline'" not in policy.partition("style-src")[0]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "'sha256-" in answers[0].headers["content-security-policy"]
