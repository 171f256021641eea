"""Whose request is being answered: every call to the REST API is made with the browser user's own credentials.

Dash hands cookies to HTTP callbacks only; a WebSocket callback sees neither cookies nor headers. This ASGI layer notes
both for HTTP and WebSocket scopes in a context variable. The task of a callback is created inside the request's (or the
socket's) context and so inherits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

SESSION_COOKIE = "isentrope_session"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the browser sent to prove who it is. Its `repr` shows nothing of it."""

    session: str | None = field(default=None, repr=False)
    authorization: str | None = field(default=None, repr=False)

    def headers(self) -> Mapping[str, str]:
        """The same proof as headers for a request to the REST API."""
        headers = {}
        if self.session is not None:
            headers["Cookie"] = f"{SESSION_COOKIE}={self.session}"
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        return headers


_current: ContextVar[Credentials | None] = ContextVar("isentrope_dashboard_credentials", default=None)


def current_credentials() -> Credentials:
    """The credentials of the HTTP request or WebSocket the caller works for; empty outside of one."""
    return _current.get() or Credentials()


class CredentialsMiddleware:
    """Notes the credentials of each connection for the callbacks that answer it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        noted = _current.set(
            Credentials(
                session=connection.cookies.get(SESSION_COOKIE),
                authorization=connection.headers.get("authorization"),
            )
        )
        try:
            await self.app(scope, receive, send)
        finally:
            _current.reset(noted)
