"""Sessions of browsers: a random id in a cookie stands for the token that logged in, and is none itself.

Browsers send a host's cookies to all its ports, so to other people's programs too. What those get ends with the token
or the session, opens nothing as `Authorization`, and names its database, so that two servers on a host don't mix theirs.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from isentrope_server.backend import Backend
from isentrope_server.background import attempt
from isentrope_server.security.bookkeeping import reload_tokens
from isentrope_server.security.browsers import SESSION_SECONDS, session_cookie_name
from isentrope_server.security.tokens import Principal, secret_hash
from isentrope_server.store import browser_sessions
from isentrope_server.store.browser_sessions import StoredSession
from isentrope_server.store.events import TokensChanged
from isentrope_server.store.writer import Transaction

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{43}")
_SECONDS_BETWEEN_READINGS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What a log-in or a log-out does to the store."""

    ended: Principal | None
    begun: StoredSession | None = None

    def make(self, transaction: Transaction) -> None:
        if self.ended is not None and self.ended.session is not None:
            browser_sessions.end(transaction.connection, self.ended.session)
        if self.begun is not None:
            browser_sessions.add(transaction.connection, self.begun)
        transaction.announce(TokensChanged())


class BrowserSessions:
    """The sessions of one database."""

    def __init__(self, backend: Backend, cookie_suffix: str) -> None:
        self._backend = backend
        self._cookie_suffix = cookie_suffix
        self._next_reading: asyncio.Task[object] | None = None
        self._read_at = -_SECONDS_BETWEEN_READINGS

    def cookie_name(self, *, secure: bool) -> str:
        return session_cookie_name(self._cookie_suffix, secure=secure)

    async def begin(self, principal: Principal, *, instead_of: Principal | None) -> str:
        """Make a session for whoever logged in; returns its id, which nothing but the cookie will know.

        Args:
            instead_of: whose session the browser had until now; it ends.
        """
        session_id, now = secrets.token_urlsafe(32), time.time()
        begun = StoredSession(
            session_hash=secret_hash(session_id),
            token_id=principal.token_id,
            created_at=now,
            expires_at=now + SESSION_SECONDS,
        )
        await self._backend.write(_Change(ended=instead_of, begun=begun).make)
        await reload_tokens(self._backend)
        return session_id

    async def end(self, principal: Principal) -> None:
        """End the session somebody came with, and what it has open; nothing to do for who came with a token."""
        if principal.session is not None:
            await self._backend.write(_Change(ended=principal).make)
            await reload_tokens(self._backend)

    async def of_cookies(self, headers: Headers, *, secure: bool) -> Principal | None:
        """Whoever the session in the cookies belongs to."""
        # The standard library's parser gives up all cookies for one that is malformed, and other programs of this host
        # may have set one.
        cookies = cookie_parser(headers.get("cookie", ""))
        session_id = cookies.get(self.cookie_name(secure=True), "")
        if not session_id and not secure:
            # Not over TLS: there any program of this host could have set it.
            session_id = cookies.get(self.cookie_name(secure=False), "")
        if not _SESSION_ID.fullmatch(session_id):
            return None
        principal = self._backend.tokens.of_session(session_id)
        if principal is None and self._backend.database.is_shared:
            await self._read_soon()
            principal = self._backend.tokens.of_session(session_id)
        return principal

    async def _read_soon(self) -> None:
        """Learn of a log-in at another server a moment ago. However many ask, the store is read a few times a second."""
        if self._next_reading is None:
            self._next_reading = asyncio.create_task(self._read())
        await asyncio.shield(self._next_reading)

    async def _read(self) -> None:
        await asyncio.sleep(self._read_at + _SECONDS_BETWEEN_READINGS - time.monotonic())
        # Whoever asks from now on asks for what this reading may have missed.
        self._next_reading, self._read_at = None, time.monotonic()
        await attempt(reload_tokens(self._backend), what="Reading the sessions anew")


async def open_sessions(backend: Backend) -> BrowserSessions:
    suffix = await backend.write(lambda transaction: browser_sessions.cookie_suffix(transaction.connection))
    return BrowserSessions(backend, suffix)
