"""The one door in front of every HTTP route and WebSocket. It stands outside routing, so no route can forget it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isentrope_server.errors import error_body
from isentrope_server.security.browsers import (
    REFUSED_PAGE,
    SESSION_COOKIE,
    comes_from_own_page,
    is_own_host,
    security_headers,
    session_cookie,
)
from isentrope_server.security.permissions import changes_something, is_open, required_scope
from isentrope_server.security.tokens import Principal, TokenBook
from isentrope_server.security.tokens import Scope as TokenScope


class Gate:
    """ASGI middleware: deny by default. Puts the principal into `scope["state"]["principal"]`."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Callable[[], TokenBook],
        allowed_hosts: Iterable[str],
        script_hashes: Callable[[], Sequence[str]],
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._allowed_hosts = tuple(allowed_hosts)
        self._script_hashes = script_hashes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        send = _with_headers(send, security_headers(self._script_hashes()))
        answer = self._admit(scope)
        if answer is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await _refuse_websocket(answer, scope, receive, send)
        else:
            await answer(scope, receive, send)

    def _admit(self, scope: Scope) -> Response | None:
        """None: come in, else what to answer instead."""
        method, path = scope.get("method", "GET"), scope["path"]
        if scope["type"] == "http" and is_open(method, path):
            return None
        headers = Headers(scope=scope)
        if not is_own_host(headers.get("host", ""), self._allowed_hosts):
            return _refusal(
                400, "unknown_host", "The Host header names no address of this server; see ISENTROPE_ALLOWED_HOSTS."
            )
        if scope["type"] == "http" and path == "/" and method == "GET":
            login = self._log_in(scope)
            if login is not None:
                return login
        return self._check_principal(scope, headers, method, path)

    def _check_principal(self, scope: Scope, headers: Headers, method: str, path: str) -> Response | None:
        principal = self._tokens().of_authorization(headers.get("authorization", ""))
        if principal is None and "authorization" not in headers:
            principal = self._tokens().of_secret(_session_secret(headers))
            must_be_own_page = changes_something(method) or scope["type"] == "websocket"
            if principal and must_be_own_page and not comes_from_own_page(headers, scope["scheme"]):
                return _refusal(403, "foreign_origin", "A browser's change must come from a page of this server.")
        if principal is None:
            return _unauthenticated(headers)
        needed = required_scope(method, path)
        if not principal.may(needed):
            return _forbidden(principal, needed)
        scope.setdefault("state", {})["principal"] = principal
        return None

    def _log_in(self, scope: Scope) -> Response | None:
        """`/?token=...` becomes a cookie, and the token leaves the address bar and its history."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        secret = dict(query).get("token")
        if secret is None or self._tokens().of_secret(secret) is None:
            return None
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        answer = RedirectResponse(f"/?{rest}" if rest else "/", status_code=303)
        answer.headers["set-cookie"] = session_cookie(secret, secure=scope["scheme"] == "https")
        answer.headers["cache-control"] = "no-store"
        return answer


def principal_of(scope: Scope) -> Principal:
    """Whoever the gate let in."""
    principal = scope["state"]["principal"]
    assert isinstance(principal, Principal)
    return principal


def _session_secret(headers: Headers) -> str:
    # The standard library's parser gives up all cookies for one that is malformed, and other programs of this host may
    # have set one.
    return cookie_parser(headers.get("cookie", "")).get(SESSION_COOKIE, "")


def _unauthenticated(headers: Headers) -> Response:
    if "text/html" in headers.get("accept", ""):
        return HTMLResponse(REFUSED_PAGE, status_code=401, headers={"cache-control": "no-store"})
    answer = _refusal(
        401,
        "unauthenticated",
        "A token this server knows is needed: Authorization: Bearer TOKEN, or the login address `isentrope up` printed.",
    )
    answer.headers["www-authenticate"] = "Bearer"
    return answer


def _forbidden(principal: Principal, needed: TokenScope) -> Response:
    return _refusal(
        403,
        "forbidden",
        f"The token {principal.name!r} has the scope {principal.scope}; this needs {needed}.",
        scope=str(principal.scope),
        needed=str(needed),
    )


def _refusal(status: int, code: str, message: str, **details: object) -> Response:
    return JSONResponse(error_body(code, message, details), status_code=status)


async def _refuse_websocket(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    if "websocket.http.response" in scope.get("extensions", {}):
        await answer(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})


def _with_headers(send: Send, headers: Sequence[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return send_with_headers
