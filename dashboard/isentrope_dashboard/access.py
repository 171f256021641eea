"""The REST API as the browser's user: pages call it in process, with the credentials of the request they answer.

Dash's callbacks don't see the request's headers. An ASGI layer notes them in a context variable, which the task of a
callback inherits.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpx
from fastapi import FastAPI
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from isentrope.client.connection import AsyncClient

_SESSION_COOKIE = re.compile(r"(?:__Host-)?isentrope_session_\w+", re.ASCII)
_SESSION_ID = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The session cookies and token that the browser sent. Its `repr` shows nothing of them."""

    session_cookies: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By name, which differs from database to database; other servers on the same host may have set some too."""
    authorization: str | None = field(default=None, repr=False)

    def headers(self) -> Mapping[str, str]:
        """The same as headers of a request to the REST API."""
        headers = {}
        if self.session_cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.session_cookies.items())
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        return headers


_current: ContextVar[Credentials | None] = ContextVar("isentrope_dashboard_credentials", default=None)


class Api:
    """Opens clients of the REST API that `app` serves."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)

    @property
    def grpc_port(self) -> int:
        """Where this server takes reports."""
        return int(self._app.state.grpc_port)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncClient]:
        """A client that acts for the user whose request is being answered."""
        # Compressing would cost twice and save nothing: it is this very process that answers.
        headers = {**(_current.get() or Credentials()).headers(), "Accept-Encoding": "identity"}
        async with httpx.AsyncClient(
            transport=self._transport, base_url="http://localhost/api/v1/", headers=headers, trust_env=False
        ) as http:
            yield AsyncClient(http)


class CredentialsMiddleware:
    """Notes the credentials of each request for the callbacks that answer it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
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
