"""Checks every HTTP request before routing, so that no route can omit it, and limits the size of
bodies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isentrope_server.errors import error_body
from isentrope_server.security.permissions import Door, Reason, Refusals, changes_something, is_open, required_scope
from isentrope_server.security.sessions import (
    FOREIGN_LOG_IN,
    FOREIGN_LOG_IN_PAGE,
    NO_PAGES,
    SESSION_ENDED,
    WRONG_TOKEN,
    BrowserSessions,
    comes_from_own_page,
    is_asked_for_by_another_site,
    is_own_host,
    security_headers,
    sign_in_page,
)
from isentrope_server.security.tokens import Principal, TokenBook
from isentrope_wire.answers import TokenScope

_log = logging.getLogger(__name__)
_REASONS = {401: Reason.UNAUTHENTICATED, 403: Reason.FORBIDDEN}


class Gate:
    """ASGI middleware: deny by default. Puts the principal into `scope["state"]["principal"]`, and into `["is_session"]`
    whether a browser's session named it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Callable[[], TokenBook],
        sessions: Callable[[], BrowserSessions],
        allowed_hosts: Iterable[str],
        script_hashes: Callable[[], Sequence[str]],
        refusals: Refusals,
        metrics_open: bool = False,
    ) -> None:
        """
        Args:
            tokens: returns the active tokens; called at each request, as the other callables.
            sessions: returns the sessions of browsers.
            allowed_hosts: names in a Host header, besides localhost, the machine's name and IP addresses.
            script_hashes: returns the CSP hashes of the pages' inline scripts.
            refusals: counts and logs refused requests.
            metrics_open: whether `/metrics` needs no token.
        """
        self._app = app
        self._tokens = tokens
        self._sessions = sessions
        self._refusals = refusals
        self._metrics_open = metrics_open
        self._allowed_hosts = tuple(allowed_hosts)
        self._script_hashes = script_hashes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            # No page needs one, but Dash has a route for them.
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        send = _with_headers(send, security_headers(self._script_hashes()))
        answer = await self._sign_in(scope, receive) if _is_sign_in(scope) else self._admit(scope)
        if answer is None:
            await self._app(scope, self._while_active(scope, receive), send)
            return
        self._note(scope, answer)
        await answer(scope, receive, send)

    def _while_active(self, scope: Scope, receive: Receive) -> Receive:
        """Messages of the client, until its token is revoked: a request may begin with an active token and end
        later."""
        principal: Principal | None = scope.get("state", {}).get("principal")
        if principal is None:
            return receive

        async def receive_while_active() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not self._tokens().is_active(principal):
                raise TokenRevoked
            return message

        return receive_while_active

    def _note(self, scope: Scope, answer: Response) -> None:
        reason = _REASONS.get(answer.status_code)
        if reason is not None:
            # Without the query, which may hold a token.
            what = f"{scope['method']} {scope['path'][:200]!r} from {(scope.get('client') or ['?'])[0]}"
            self._refusals.note(Door.HTTP, reason, what)

    def _admit(self, scope: Scope) -> Response | None:
        """Return the refusal or log-in to answer; None to let the request in."""
        method, path = scope["method"], scope["path"]
        if is_open(method, path, metrics_open=self._metrics_open):
            return None
        headers = Headers(scope=scope)
        if not is_own_host(headers.get("host", ""), self._allowed_hosts):
            return _unknown_host()
        if path == "/" and method == "GET":
            login = self._log_in(scope, headers)
            if login is not None:
                return login
        return self._check_principal(scope, headers, method, path)

    def _check_principal(self, scope: Scope, headers: Headers, method: str, path: str) -> Response | None:
        principal = self._tokens().of_authorization(headers.get("authorization", ""))
        is_session = "authorization" not in headers
        if is_session:
            token_id = self._sessions().token_id(headers, secure=_is_secure(scope))
            principal = None if token_id is None else self._tokens().of_id(token_id)
            if principal and changes_something(method) and not comes_from_own_page(headers, scope["scheme"]):
                return _refusal(403, "foreign_origin", "A browser's change must come from a page of this server.")
        if principal is None:
            return _unauthenticated(headers, SESSION_ENDED if self._sessions().has_cookie(headers) else "")
        needed = required_scope(method, path)
        if not principal.may(needed):
            return _forbidden(principal, needed)
        scope.setdefault("state", {}).update(principal=principal, is_session=is_session)
        return None

    def _log_in(self, scope: Scope, headers: Headers) -> Response | None:
        """Turn `/?token=...` into a session and redirect, so that the token leaves the address bar and the history."""
        secret = dict(_query(scope)).get("token")
        if secret is None:
            return None
        if is_asked_for_by_another_site(headers):
            return _refusal_of(headers, 403, "foreign_log_in", FOREIGN_LOG_IN, FOREIGN_LOG_IN_PAGE)
        principal = self._tokens().of_secret(secret)
        if principal is None:
            return None
        return self._begin(scope, principal)

    async def _sign_in(self, scope: Scope, receive: Receive) -> Response:
        """The form of the page without a session."""
        headers = Headers(scope=scope)
        if not is_own_host(headers.get("host", ""), self._allowed_hosts):
            return _unknown_host()
        if not comes_from_own_page(headers, scope["scheme"]):
            return _refusal_of(headers, 403, "foreign_log_in", FOREIGN_LOG_IN, FOREIGN_LOG_IN_PAGE)
        form = dict(parse_qsl((await _read_form(receive)).decode("latin-1")))
        principal = self._tokens().of_secret(form.get("token", "").strip())
        if principal is None or not principal.may(TokenScope.READ):
            return _unauthenticated(headers, WRONG_TOKEN if principal is None else NO_PAGES)
        return self._begin(scope, principal)

    def _begin(self, scope: Scope, principal: Principal) -> Response:
        """Begin a session, and show the address that was asked for."""
        # One slash: with two of them the browser would go to another host.
        address = "/" + quote(scope["path"].lstrip("/\\"))
        rest = urlencode([(name, value) for name, value in _query(scope) if name != "token"])
        if rest:
            address += f"?{rest}"
        answer = RedirectResponse(address, status_code=303)
        answer.headers.append("set-cookie", self._sessions().begin(principal, secure=_is_secure(scope)))
        answer.headers["cache-control"] = "no-store"
        return answer


_FORM = "application/x-www-form-urlencoded"
_FORM_BYTES = 4 << 10


def _is_sign_in(scope: Scope) -> bool:
    """Whether the request is the form of the page without a session. The API and the pages' callbacks take JSON."""
    if scope["method"] != "POST" or scope["path"].startswith(("/api", "/_")):
        return False
    return Headers(scope=scope).get("content-type", "").startswith(_FORM)


async def _read_form(receive: Receive) -> bytes:
    """The body; nothing where it is too large or the client went away."""
    body = b""
    while len(body) <= _FORM_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            break
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body if len(body) <= _FORM_BYTES else b""
    return b""


def principal_of(scope: Scope) -> Principal:
    """The principal of a request that the gate let in."""
    principal = scope["state"]["principal"]
    assert isinstance(principal, Principal)
    return principal


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _is_secure(scope: Scope) -> bool:
    return bool(scope["scheme"] == "https")


def _unknown_host() -> Response:
    return _refusal(
        400, "unknown_host", "The Host header is not a name of this server; add it to ISENTROPE_ALLOWED_HOSTS."
    )


def _unauthenticated(headers: Headers, note: str) -> Response:
    answer = _refusal_of(
        headers,
        401,
        "unauthenticated",
        "A valid token is needed: send Authorization: Bearer TOKEN, or open the login address that `isentrope up` printed.",
        sign_in_page(note),
    )
    answer.headers["www-authenticate"] = "Bearer"
    return answer


def _forbidden(principal: Principal, needed: TokenScope) -> Response:
    return _refusal(
        403,
        "forbidden",
        f"The token {principal.name!r} has the scope {principal.scope}; this address needs {needed}.",
        scope=str(principal.scope),
        needed=str(needed),
    )


def _refusal_of(headers: Headers, status: int, code: str, message: str, page: str) -> Response:
    """An HTML page for browsers, the error body for other clients."""
    if "text/html" in headers.get("accept", ""):
        return HTMLResponse(page, status_code=status, headers={"cache-control": "no-store"})
    return _refusal(status, code, message)


def _refusal(status: int, code: str, message: str, **details: object) -> Response:
    return JSONResponse(error_body(code, message, details), status_code=status)


def _with_headers(send: Send, headers: Sequence[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return send_with_headers


API_BODY_BYTES = 1 << 20
PAGE_BODY_BYTES = 16 << 20
"""A page's callback may contain a whole figure."""


class RequestRefused(HTTPException):
    """A request refused while its body is read. FastAPI turns any other exception there into a bad request."""

    def __init__(self, status: int, code: str, message: str, **details: object) -> None:
        super().__init__(status, message)
        self._body = error_body(code, message, details)

    def answer(self) -> JSONResponse:
        return JSONResponse(self._body, self.status_code)


class BodyTooLarge(RequestRefused):
    """The body has more bytes than allowed."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            413,
            "body_too_large",
            f"A request's body may have {limit_bytes} bytes, this one has more.",
            limit_bytes=limit_bytes,
        )


class TokenRevoked(RequestRefused):
    """The token was revoked between the headers and the end of the body."""

    message = "The token was revoked."

    def __init__(self) -> None:
        super().__init__(401, "unauthenticated", self.message)


class BodyLimit:
    """ASGI middleware: a body beyond the limit is refused with 413 before it is parsed. Counted while it arrives."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = API_BODY_BYTES if scope["path"].startswith("/api/") else PAGE_BODY_BYTES
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdecimal() or int(declared) > limit:
            await BodyTooLarge(limit).answer()(scope, receive, send)
            return
        await self._app(scope, _counting(receive, limit), send)


def _counting(receive: Receive, limit: int) -> Receive:
    received = 0

    async def receive_within_limit() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise BodyTooLarge(limit)
        return message

    return receive_within_limit
