"""Sessions of browsers: a random id in a cookie stands for the token that logged in, and is none itself.

Browsers send a host's cookies to all its ports, so to other people's programs too. What those get ends with the token
or the session, opens nothing as `Authorization`, and names its database, so that two servers on a host don't mix theirs.

What browsers need besides a token: a cookie instead of a header, and protection from other sites' pages.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from isentrope_server.backend import Backend
from isentrope_server.background import attempt
from isentrope_server.security.tokens import Principal, secret_hash
from isentrope_server.store import browser_sessions
from isentrope_server.store.browser_sessions import StoredSession
from isentrope_server.store.writer import TokensChanged, Transaction

SESSION_SECONDS = 30 * 24 * 3600
"""How long after its log-in a browser stays logged in."""
EARLIER_COOKIE = "isentrope_session"
"""It held the token itself. Browsers that still have it are told to forget it."""


def _page(heading: str, text: str) -> str:
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Isentrope: log in</title>
<body style="font: 16px/1.5 system-ui, sans-serif; max-width: 34rem; margin: 15vh auto; padding: 0 1rem">
<main><h1 style="font-size: 1.4rem">{heading}</h1>
{text}</main>
</body></html>"""


REFUSED_PAGE = _page(
    "This page needs a token",
    """<p>Open the address that <code>isentrope up</code> printed when it started; it ends in <code>/?token=…</code>
and logs this browser in.</p>
<p>The owner finds the token in the file <code>owner-token</code> of the server's home; for someone else,
make one with <code>isentrope token create --scope read</code>.</p>""",
)
FOREIGN_LOG_IN = (
    "Another site's page asked to log this browser in, and could be giving it somebody else's token. If you trust the "
    "address, open it from the terminal or put it into the address bar yourself."
)
FOREIGN_LOG_IN_PAGE = _page("Not logged in", f"<p>{FOREIGN_LOG_IN}</p>")


def session_cookie_name(suffix: str, *, secure: bool) -> str:
    """The cookie's name.

    Args:
        suffix: the database's own. Not a port: behind a proxy the server's is another than the browser's.
        secure: over TLS the prefix keeps whoever has no TLS for this very host from setting the cookie.
    """
    return f"{'__Host-' if secure else ''}isentrope_session_{suffix}"


def session_cookie(name: str, session_id: str, *, secure: bool) -> str:
    """The Set-Cookie value that logs a browser in. No script can read it, and no other site's page can send it."""
    return _cookie(name, session_id, SESSION_SECONDS, secure=secure)


def ended_cookie(name: str, *, secure: bool) -> str:
    """The Set-Cookie value that has a browser forget a cookie."""
    return _cookie(name, "", 0, secure=secure)


def _cookie(name: str, value: str, seconds: int, *, secure: bool) -> str:
    return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")


def is_own_host(host_header: str, allowed: Iterable[str]) -> bool:
    """Whether a Host header names this server. A name an attacker points at this address (DNS rebinding) does not."""
    name = host_name(host_header)
    if name is None:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in {"localhost", socket.gethostname().lower(), *(a.lower() for a in allowed)}
    return True


def comes_from_own_page(headers: Headers, scheme: str) -> bool:
    """Whether a page of this very server sent the request, or no page at all.

    Browsers tell the origin of every change and every WebSocket, and modern ones `Sec-Fetch-Site` of everything. What
    carries neither was not sent by a browser, and nobody can be tricked into sending it.
    """
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    page = urlsplit(origin)
    # Behind a proxy that ends TLS the page is https while this process sees http.
    schemes = {"https"} if scheme in ("https", "wss") else {"http", "https"}
    host = headers.get("host", "")
    return page.scheme in schemes and bool(host) and page.netloc.lower() == host.lower()


def is_asked_for_by_another_site(headers: Headers) -> bool:
    """Whether a page of another site or port led the browser here, and not its user.

    An address that a terminal or the address bar opens comes with `none`, and from what is no browser without the header.
    """
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


def host_name(host_header: str) -> str | None:
    """The name in `name:port`, lower case, without brackets; None where there is none."""
    try:
        return urlsplit(f"//{host_header}").hostname
    except ValueError:
        return None


def security_headers(script_hashes: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Headers for every answer.

    Args:
        script_hashes: CSP hashes of the inline scripts the pages need; without any, inline scripts don't run.
    """
    policy = "; ".join(
        (
            "default-src 'self'",
            " ".join(("script-src 'self'", *script_hashes)),
            # Dash and Plotly set style attributes and insert style elements as they draw.
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            # Covers this server's WebSockets too.
            "connect-src 'self'",
            "worker-src 'self' blob:",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"x-frame-options", b"DENY"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
    ]


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
        await self._backend.reload_tokens()
        return session_id

    async def end(self, principal: Principal) -> None:
        """End the session somebody came with, and what it has open; nothing to do for who came with a token."""
        if principal.session is not None:
            await self._backend.write(_Change(ended=principal).make)
            await self._backend.reload_tokens()

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
        await attempt(self._backend.reload_tokens(), what="Reading the sessions anew")


async def open_sessions(backend: Backend) -> BrowserSessions:
    suffix = await backend.write(lambda transaction: browser_sessions.cookie_suffix(transaction.connection))
    return BrowserSessions(backend, suffix)
