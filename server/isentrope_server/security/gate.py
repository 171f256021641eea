"""Checks every HTTP request before routing and every gRPC call, with the same tokens; limits the
size of bodies; takes a proxy's path off.

A token counts when a request or call begins: an answer that has begun runs to its end after the
token is revoked."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl, quote, unquote, urlencode

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from starlette.datastructures import Headers, State
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isentrope_server.counters import REFUSALS, ServerFigures
from isentrope_server.errors import error_body
from isentrope_server.security import permissions, sessions
from isentrope_server.security.tokens import TokenBook
from isentrope_server.store.access import Principal
from isentrope_wire.answers import TokenScope
from isentrope_wire.reports import RUN_OF_CALL
from isentrope_wire.v1 import telemetry_pb2 as pb

if TYPE_CHECKING:
    # The stubs make them generic; at run time they are not.
    _Context = grpc.aio.ServicerContext[Any, Any]
    _Handler = grpc.RpcMethodHandler[Any, Any]

_log = logging.getLogger(__name__)


class Gate:
    """ASGI middleware: deny by default. Puts the principal into `scope["state"]["principal"]`, and
    into `["is_session"]` whether a browser's session named it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        state: State,
        allowed_hosts: Iterable[str],
        metrics_open: bool = False,
        root_path: str = "",
    ) -> None:
        """`state` is the application's, with `backend`, `sessions` and the CSP hashes of the pages'
        inline scripts. A Host header may name `allowed_hosts`, localhost, the machine's name and IP
        addresses. `metrics_open`: `/metrics` needs no token. `root_path` is what browsers have in
        front of every path."""
        self._app = app
        self._state = state
        self._metrics_open = metrics_open
        self._root_path = root_path
        self._allowed_hosts = tuple(allowed_hosts)

    @property
    def _tokens(self) -> TokenBook:
        tokens: TokenBook = self._state.backend.tokens
        return tokens

    @property
    def _sessions(self) -> sessions.BrowserSessions:
        found: sessions.BrowserSessions = self._state.sessions
        return found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            # No page needs one, but Dash has a route for them.
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["method"] == "HEAD":
            # No route names it; uvicorn leaves the body out.
            scope = {**scope, "method": "GET"}
        send = _add_headers(send, sessions.security_headers(self._state.script_hashes))
        answer = await self._sign_in(scope, receive) if _is_sign_in(scope) else self._admit(scope)
        if answer is None:
            await self._app(scope, receive, send)
            return
        # Without the query, which may hold a token.
        if answer.status_code >= 400:
            client = (scope.get("client") or ["?"])[0]
            if answer.status_code == 401 and (
                _is_sign_in(scope)
                or _has_token(Headers(scope=scope))
                or "token" in dict(_query(scope))
            ):
                await self._tokens.guessed(client)
            _log.info(
                "%s %r from %s is refused: %d",
                scope["method"],
                scope["path"][:200],
                client,
                answer.status_code,
            )
        await answer(scope, receive, send)

    def _admit(self, scope: Scope) -> Response | None:
        """Return the refusal or log-in to answer; None to let the request in."""
        method, path = scope["method"], scope["path"]
        if permissions.is_open(method, path, metrics_open=self._metrics_open):
            return None
        headers = Headers(scope=scope)
        if not sessions.is_own_host(headers.get("host", ""), self._allowed_hosts):
            return _unknown_host(headers)
        if path == "/" and method == "GET":
            login = self._log_in(scope, headers)
            if login is not None:
                return login
        return self._check_principal(scope, headers, method, path)

    def _check_principal(
        self, scope: Scope, headers: Headers, method: str, path: str
    ) -> Response | None:
        principal = self._tokens.find_by_header(headers.get("authorization", ""))
        is_session = principal is None and not _has_token(headers)
        if is_session:
            principal = self._signed_in(scope, headers)
            if (
                principal
                and method not in permissions.SAFE_METHODS
                and not sessions.comes_from_own_page(headers, scope["scheme"])
            ):
                return _refusal(403, "foreign_origin", sessions.foreign_origin(headers))
        if principal is None:
            return self._ask_to_sign_in(method, path, headers)
        needed = permissions.required_scope(method, path)
        if not principal.may(needed):
            message = (
                f"The token {principal.name!r} has the scope {principal.scope}; this address needs"
                f" {needed}."
            )
            return _refusal(
                403, "forbidden", message, scope=str(principal.scope), needed=str(needed)
            )
        if principal.run_id is not None and not permissions.shows_run(path, principal.run_id):
            message = f"You came by a link to the run {principal.run_id}, which shows no other."
            return _refusal(403, "forbidden", message)
        scope.setdefault("state", {}).update(principal=principal, is_session=is_session)
        return None

    def _ask_to_sign_in(self, method: str, path: str, headers: Headers) -> Response:
        if self._sessions.has_cookie(headers):
            return _unauthenticated(headers, sessions.SESSION_ENDED)
        is_page = method == "GET" and not path.startswith("/api") and not _has_token(headers)
        note = ""
        if is_page and self._sessions.lost_cookies(headers):
            note = sessions.NO_COOKIES
        answer = _unauthenticated(headers, note)
        # The second request comes from this server, so there is no third.
        if is_page and sessions.is_link_of_another_site(headers):
            answer = HTMLResponse(sessions.detour_page(), headers={"cache-control": "no-store"})
        if is_page and isinstance(answer, HTMLResponse):
            answer.headers.append("set-cookie", self._sessions.trial)
        return answer

    def _signed_in(self, scope: Scope, headers: Headers) -> Principal | None:
        return self._limited(self._sessions.signed_in(headers, secure=scope["scheme"] == "https"))

    def _find_by_secret(self, secret: str) -> Principal | None:
        return self._tokens.find_by_secret(secret) or self._limited(
            self._sessions.read_link(secret)
        )

    def _limited(self, known: tuple[str, str | None] | None) -> Principal | None:
        if known is None:
            principal = None
        else:
            principal = self._tokens.find_by_id(known[0])
        if principal is None or known is None:
            return None
        return replace(principal, run_id=known[1])

    def _log_in(self, scope: Scope, headers: Headers) -> Response | None:
        """Turn `/?token=...` into a session and redirect, so that the token leaves the address bar
        and the history."""
        secret = dict(_query(scope)).get("token")
        if secret is None:
            return None
        # From a terminal or the address bar it is `none`; clients other than browsers don't send
        # it.
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            # A link shows one run, so that no more than a click is needed.
            page = sessions.refused_page(sessions.FOREIGN_LOG_IN)
            if self._limited(self._sessions.read_link(secret)) is not None:
                page = sessions.link_page()
            return _refusal_of(headers, 403, "foreign_log_in", sessions.FOREIGN_LOG_IN, page)
        principal = self._find_by_secret(secret)
        # Who is signed in stays so.
        known = self._signed_in(scope, headers)
        if principal is not None:
            stays = (
                principal.run_id is not None
                and known is not None
                and known.run_id in (None, principal.run_id)
            )
            return self._begin(scope, principal, is_new=not stays)
        if known is not None:
            return None
        return _unauthenticated(headers, sessions.WRONG_TOKEN)

    async def _sign_in(self, scope: Scope, receive: Receive) -> Response:
        headers = Headers(scope=scope)
        if not sessions.is_own_host(headers.get("host", ""), self._allowed_hosts):
            return _unknown_host(headers)
        if not sessions.comes_from_own_page(headers, scope["scheme"]):
            why = sessions.foreign_origin(headers)
            return _refusal_of(headers, 403, "foreign_log_in", why, sessions.refused_page(why))
        form = dict(parse_qsl((await _read_form(receive)).decode("latin-1")))
        principal = self._find_by_secret(form.get("token", "").strip())
        if principal is None or not principal.may(TokenScope.READ):
            return _unauthenticated(
                headers, sessions.WRONG_TOKEN if principal is None else sessions.NO_PAGES
            )
        return self._begin(scope, principal)

    def _begin(self, scope: Scope, principal: Principal, *, is_new: bool = True) -> Response:
        """Begin a session, and show the address that was asked for; of a link, its run."""
        # One slash: with two of them the browser would go to another host.
        if principal.run_id is None:
            path = scope["path"]
        else:
            path = f"/runs/{quote(principal.run_id, safe='')}"
        address = self._root_path + "/" + quote(path.lstrip("/\\"))
        rest = urlencode([(name, value) for name, value in _query(scope) if name != "token"])
        if rest:
            address += f"?{rest}"
        answer = RedirectResponse(address, status_code=303)
        if is_new:
            answer.headers.append(
                "set-cookie", self._sessions.begin(principal, secure=scope["scheme"] == "https")
            )
        answer.headers["cache-control"] = "no-store"
        return answer


_FORM = "application/x-www-form-urlencoded"
_FORM_BYTES = 4 << 10


def _is_sign_in(scope: Scope) -> bool:
    """Whether the request is the form of the page without a session. The API and the pages'
    callbacks take JSON."""
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


def _has_token(headers: Headers) -> bool:
    """Whether `Authorization` is meant for this server. A proxy that asks for a password, or signs
    people in by itself, hands on the browser's Basic or a JWT of its own."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and not secret.strip().startswith("eyJ")


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _unknown_host(headers: Headers) -> Response:
    return _refusal(
        400,
        "unknown_host",
        f"The Host header {headers.get('host', '')[:200]!r} is not a name of this server; "
        "add it to ISENTROPE_ALLOWED_HOSTS. Where a proxy is in front and sets it, "
        "let it pass on the browser's (nginx: proxy_set_header Host $http_host).",
    )


def _unauthenticated(headers: Headers, note: str) -> Response:
    answer = _refusal_of(
        headers,
        401,
        "unauthenticated",
        (
            f"{sessions.WRONG_TOKEN} Check ISENTROPE_TOKEN."
            if _has_token(headers)
            else (
                "A token is needed: set ISENTROPE_TOKEN, send Authorization: Bearer TOKEN, or open"
                " the login address that `isentrope up` printed."
            )
        ),
        sessions.sign_in_page(note),
    )
    answer.headers["www-authenticate"] = "Bearer"
    return answer


def _refusal_of(headers: Headers, status: int, code: str, message: str, page: str) -> Response:
    """An HTML page for browsers, the error body for other clients."""
    if "text/html" in headers.get("accept", ""):
        return HTMLResponse(page, status_code=status, headers={"cache-control": "no-store"})
    return _refusal(status, code, message)


def _refusal(status: int, code: str, message: str, **details: object) -> Response:
    return JSONResponse(error_body(code, message, details), status_code=status)


def _add_headers(send: Send, headers: Sequence[tuple[bytes, bytes]]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *headers]}
        await send(message)

    return send_with_headers


class RootPath:
    """ASGI middleware: takes the root path off a request's address where the proxy has left it on.
    All that comes after it sees the address that it would have without a proxy."""

    def __init__(self, app: ASGIApp, *, root_path: str) -> None:
        """`root_path` is as in the settings: quoted, without a slash at its end, or empty."""
        self._app = app
        self._root = unquote(root_path)
        self._segments = root_path.count("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if self._root and f"{path}/".startswith(f"{self._root}/"):
            raw = scope.get("raw_path") or quote(path).encode()
            # By segments: a browser may quote them in another way.
            below = raw.split(b"/", self._segments + 1)[self._segments + 1 :]
            scope = {
                **scope,
                "path": path.removeprefix(self._root) or "/",
                "raw_path": b"/" + b"".join(below),
            }
        await self._app(scope, receive, send)


API_BODY_BYTES = 1 << 20
PAGE_BODY_BYTES = 16 << 20
"""A page's callback may contain a whole figure."""


class BodyTooLarge(HTTPException):
    """The body has more bytes than allowed. An HTTPException: FastAPI turns any other one, raised
    while a body is read, into a bad request."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(413, f"A request's body may have {limit_bytes} bytes, this one has more.")
        self._limit_bytes = limit_bytes

    def answer(self) -> JSONResponse:
        body = error_body("body_too_large", self.detail, {"limit_bytes": self._limit_bytes})
        return JSONResponse(body, self.status_code)


class BodyLimit:
    """ASGI middleware: a body beyond the limit is refused with 413 before it is parsed. Counted
    while it arrives. One that is compressed is refused with 415: it may be of any size."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = PAGE_BODY_BYTES
        if scope["path"].startswith("/api/"):
            limit = API_BODY_BYTES
        encoding = Headers(scope=scope).get("content-encoding", "identity")
        if encoding.lower() != "identity":
            message = f"The body is compressed ({encoding[:40]}); send it as it is."
            await _refusal(415, "unsupported_media_type", message)(scope, receive, send)
            return
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


_calling: ContextVar[Principal] = ContextVar("isentrope_server_grpc_principal")


def principal_of_call() -> Principal:
    return _calling.get()


class GrpcGate(grpc.aio.ServerInterceptor):
    """Refuses every method, known or not, without a token of the scope it needs; counts calls and
    times pushes."""

    def __init__(self, tokens: TokenBook, figures: ServerFigures) -> None:
        self._tokens, self._figures = tokens, figures

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        method = str(handler_call_details.method)
        metadata = dict(handler_call_details.invocation_metadata or ())
        principal = self._tokens.find_by_header(str(metadata.get("authorization", "")))
        needed = permissions.required_grpc_scope(method)
        if principal is None:
            self._tokens.note_refused(
                str(metadata.get("authorization", "")), unquote(str(metadata.get(RUN_OF_CALL, "")))
            )
            return _refusing(
                self._figures,
                method,
                grpc.StatusCode.UNAUTHENTICATED,
                "This server accepts reports only with a valid token: set ISENTROPE_TOKEN, "
                "or make one with `isentrope token create --scope ingest`.",
                guessed=self._tokens.guessed if "authorization" in metadata else None,
            )
        if not principal.may(needed):
            return _refusing(
                self._figures,
                method,
                grpc.StatusCode.PERMISSION_DENIED,
                f"The token {principal.name!r} may {principal.scope}, not {needed}: "
                f"make one with `isentrope token create --scope {needed}`.",
            )
        # The call's handler runs in the task of its interceptors.
        _calling.set(principal)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return _watched(handler, self._figures, method)


def _refusing(
    figures: ServerFigures,
    method: str,
    status: grpc.StatusCode,
    message: str,
    guessed: Callable[[str], Awaitable[None]] | None = None,
) -> _Handler:
    """A handler that refuses without reading a message, which would cost memory. Clients of all
    methods see the same."""

    async def refuse(_messages: object, context: _Context) -> NoReturn:
        _log.info("%r from %s is refused: %s", method[:200], context.peer(), status.name)
        if guessed is not None:
            await guessed(context.peer().rpartition(":")[0])
        figures.not_let_in.labels("grpc", REFUSALS[status.name]).inc()
        with figures.call(method, context):
            await abort(context, status, message)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _watched(handler: Any, figures: ServerFigures, method: str) -> _Handler:
    """The handler, whose calls are counted, and which refuses bytes that are no message; gRPC would
    report a server error."""

    def read(content: bytes) -> ProtobufMessage | None:
        try:
            message: ProtobufMessage = handler.request_deserializer(content)
        except DecodeError:
            return None
        return message

    async def check(request: ProtobufMessage | None, context: _Context) -> None:
        if request is None:
            message = "The request is not a message of this protocol version."
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, message)

    async def answer(request: ProtobufMessage | None, context: _Context) -> object:
        began = time.perf_counter()
        with figures.call(method, context):
            await check(request, context)
            reply: object = await handler.unary_unary(request, context)
        if isinstance(request, pb.PushRequest) and isinstance(reply, pb.PushReply):
            figures.pushed(request, reply, time.perf_counter() - began)
        return reply

    async def stream(request: ProtobufMessage | None, context: _Context) -> AsyncIterator[object]:
        with figures.call(method, context):
            await check(request, context)
            async for reply in handler.unary_stream(request, context):
                yield reply

    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, read, handler.response_serializer)
    return grpc.unary_unary_rpc_method_handler(answer, read, handler.response_serializer)


async def abort(context: _Context, code: grpc.StatusCode, message: str) -> NoReturn:
    await context.abort(code, message)
    raise AssertionError("grpc.aio raises in abort")
