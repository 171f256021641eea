"""Whose request is being answered: every call to the REST API is made with the browser user's own credentials.

Dash hands cookies to HTTP callbacks only; a WebSocket callback sees neither cookies nor headers. This ASGI layer notes
both for HTTP and WebSocket scopes in a context variable. The task of a callback is created inside the request's (or the
socket's) context and so inherits it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

_SESSION_COOKIE = re.compile(r"(?:__Host-)?isentrope_session_\w+", re.ASCII)
_SESSION_ID = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the browser sent to prove who it is. Its `repr` shows nothing of it."""

    session_cookies: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By name, which differs from database to database; other servers on the same host may have set some too."""
    authorization: str | None = field(default=None, repr=False)

    def headers(self) -> Mapping[str, str]:
        """The same proof as headers for a request to the REST API."""
        headers = {}
        if self.session_cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.session_cookies.items())
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
                session_cookies={
                    name: value
                    for name, value in connection.cookies.items()
                    if _SESSION_COOKIE.fullmatch(name) and _SESSION_ID.fullmatch(value)
                },
                authorization=connection.headers.get("authorization"),
            )
        )
        try:
            await self.app(scope, receive, send)
        finally:
            _current.reset(noted)
