"""What browsers need besides a token: a session in a cookie, and protection from other sites'
pages.

The cookie holds the id of the token that logged in and when the session ends, signed with a key
that only the database holds. It is not a token: it opens nothing as `Authorization`, and ends with
its token. Browsers send a host's cookies to all ports of the host, so to other people's programs
too; logging out deletes the cookie in the browser alone."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
import time
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import urlsplit

from itsdangerous import BadData, URLSafeSerializer
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from isentrope_server.store.access import Principal

SESSION_SECONDS = 30 * 24 * 3600
"""How long a browser stays logged in."""


_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --line: #d9dde5;
  --text: #1b2130; --dim: #5b6475; --note: #b64a08 }
@media (prefers-color-scheme: dark) {
  :root { --ground: #0e1116; --card: #161a21; --line: #2c3340;
    --text: #e6e9ef; --dim: #98a1b2; --note: #f0925a }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 12vh auto; max-width: 30rem; padding: 0 1rem;
  background: var(--ground); color: var(--text) }
main { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1.5rem }
h1 { font-size: 1.2rem; margin: 0 0 .75rem }
p { color: var(--dim); margin: .75rem 0 0 }
p.note { color: var(--note); margin: 0 0 .75rem }
label { display: block; font-weight: 600; font-size: 13px; margin-bottom: .25rem }
form { display: grid; grid-template-columns: 1fr auto; gap: 8px }
form label { grid-column: 1 / -1; margin: 0 }
input, button { font: inherit; padding: .45rem .75rem; border-radius: 6px;
  border: 1px solid var(--line); min-width: 0 }
input { background: var(--ground); color: inherit }
button { background: #4456c8; color: #fff; border-color: #4456c8; font-weight: 600 }
:focus-visible { outline: 2px solid #7a8af1; outline-offset: 2px }
"""


def _page(heading: str, text: str) -> str:
    # With the server's own policy `no-referrer` a form would be sent with the origin `null`.
    return f"""<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="referrer" content="same-origin"><link rel="icon" href="data:,">
<title>Isentrope: sign in</title><style>{_STYLE}</style>
<body><main><h1>{heading}</h1>
{text}</main></body></html>"""


def sign_in_page(note: str = "") -> str:
    """The page without a session; the note, not escaped, says why there is none. Its form is sent
    to its own address, which is shown after signing in."""
    return _page(
        "Sign in to Isentrope",
        (f'<p class="note" role="alert">{note}</p>' if note else "")
        + """<form method="post"><label for="token">Access token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Sign in</button></form>
<p>Or open the address that <code>isentrope up</code> printed; it ends in <code>/?token=…</code>.
The owner's token is in the file <code>owner-token</code> of the server's home. Others get one
from the owner, who makes it on the page Access or
with <code>isentrope token create --scope read</code>.</p>""",
    )


SESSION_ENDED = "The session ended, or its token was revoked."
WRONG_TOKEN = "This token is not active here: it was revoked, or it belongs to another server."
NO_PAGES = "This token reports runs; it shows no pages."
FOREIGN_LOG_IN = (
    "A page of another site opened this log-in address, perhaps with the token of another person."
    " If you trust the address, open it from the terminal or paste it into the address bar."
)
NO_COOKIES = (
    "If you have just signed in: this browser keeps no cookies of this address. "
    "Allow them, then sign in again."
)


def refused_page(why: str) -> str:
    """The page of a browser that was not signed in, and why."""
    return _page("Not signed in", f"<p>{escape(why)}</p>")


def link_page() -> str:
    """The page of a link to one run that was clicked on another site: opened from here, it is of
    this site."""
    return _page(
        "A link to one run",
        """<p>It shows one run of this server, and signs this browser in for it alone.</p>
<p><a href="">Open the run</a></p>""",
    )


def detour_page() -> str:
    """A page that asks for its own address again. Browsers keep the session's cookie from a
    navigation that another site began, and send it with one that begins here."""
    return """<!doctype html><html lang="en"><meta charset="utf-8">
<meta http-equiv="refresh" content="0"><title>Isentrope</title></html>"""


def is_link_of_another_site(headers: Headers) -> bool:
    """Whether a browser opens an address that a page of another site names, in a window of its own:
    a link in web mail or chat."""
    return (
        headers.get("sec-fetch-site") == "cross-site"
        and headers.get("sec-fetch-mode") == "navigate"
        and headers.get("sec-fetch-dest") == "document"
    )


def foreign_origin(headers: Headers) -> str:
    """Why a browser's change, or its signing in, is refused."""
    origin = headers.get("origin")
    came = f"This one comes from {origin}, but the header Host is {headers.get('host', '')!r}"
    if origin is None:
        came = "This one comes from another site"
    return (
        f"A browser's change must come from a page of this server. {came}. "
        "Where a proxy is in front, let it pass on Host; nginx: proxy_set_header Host $http_host."
    )


_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^\[\]@/:?#\\\s]+)(:[0-9]*)?")
"""Host and port; a user, a path, or a name behind an address in brackets is no host."""


def is_own_host(host_header: str, allowed: Iterable[str]) -> bool:
    """Whether a Host header names this server. A name an attacker points at this address (DNS
    rebinding) does not."""
    parts = _HOST.fullmatch(host_header)
    if parts is None:
        return False
    name = parts["name"].strip("[]").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in {"localhost", socket.gethostname().lower(), *(a.lower() for a in allowed)}
    return True


def comes_from_own_page(headers: Headers, scheme: str) -> bool:
    """Whether a page of this server sent the request, or no page at all. Browsers send `Origin`
    with every change and `Sec-Fetch-Site` with every request. A request with neither does not come
    from a browser."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    page = urlsplit(origin)
    # Behind a proxy that terminates TLS the page has https while this process sees http.
    if scheme == "https":
        schemes = {"https"}
    else:
        schemes = {"http", "https"}
    host = headers.get("host", "")
    return page.scheme in schemes and bool(host) and page.netloc.lower() == host.lower()


def security_headers(script_hashes: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Headers for every response; of inline scripts, those with these CSP hashes run."""
    policy = "; ".join(
        (
            "default-src 'self'",
            " ".join(("script-src 'self'", *script_hashes)),
            # Dash and Plotly set style attributes and insert style elements.
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
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


class BrowserSessions:
    """Makes and reads the cookies of one database's servers."""

    def __init__(self, key: bytes, root_path: str = "") -> None:
        """`key` signs the cookies; it is the same for all servers on one database. Browsers send
        them below `root_path` alone."""
        digest = {"digest_method": hashlib.sha256}
        self._signer = URLSafeSerializer(key, salt="isentrope session", signer_kwargs=digest)
        self._links = URLSafeSerializer(key, salt="isentrope link to a run", signer_kwargs=digest)
        # In the name, so that two servers on one host don't overwrite each other's cookie.
        self._suffix = hashlib.sha256(key).hexdigest()[:8]
        self._path = root_path or "/"
        # Shows whether a browser that has no session keeps cookies.
        self.trial = "isentrope_keeps_cookies=1; Path=/; HttpOnly; SameSite=Strict"
        # The stricter prefix allows no path.
        if root_path:
            self._prefix = "__Secure-"
        else:
            self._prefix = "__Host-"

    def cookie_name(self, *, secure: bool) -> str:
        """Over TLS, the prefix keeps pages without TLS for this very host from setting the
        cookie."""
        name = f"isentrope_session_{self._suffix}"
        if secure:
            return f"{self._prefix}{name}"
        return name

    def begin(self, principal: Principal, *, secure: bool) -> str:
        """The Set-Cookie value that logs a browser in. No script can read it, and no other site's
        page can send it."""
        value = self._signer.dumps(
            [principal.token_id, int(time.time()) + SESSION_SECONDS, principal.run_id]
        )
        return self._cookie(str(value), SESSION_SECONDS, secure=secure)

    def end(self, *, secure: bool) -> str:
        """The Set-Cookie value that logs a browser out."""
        return self._cookie("", 0, secure=secure)

    def _cookie(self, value: str, seconds: int, *, secure: bool) -> str:
        name = self.cookie_name(secure=secure)
        cookie = f"{name}={value}; Path={self._path}; Max-Age={seconds}; HttpOnly; SameSite=Strict"
        if secure:
            cookie += "; Secure"
        return cookie

    def has_cookie(self, headers: Headers) -> bool:
        """Whether the browser logged in before, validly or not."""
        return any(
            name.endswith(self.cookie_name(secure=False))
            for name in cookie_parser(headers.get("cookie", ""))
        )

    def lost_cookies(self, headers: Headers) -> bool:
        """Whether the browser comes from a page of this server without the cookie of that page."""
        is_own = headers.get("sec-fetch-site") == "same-origin"
        return is_own and "isentrope_keeps_cookies" not in cookie_parser(headers.get("cookie", ""))

    def link(self, token_id: str, run_id: str) -> str:
        """What logs a browser in to see one run, as long as the token is active. As `Authorization`
        it opens nothing."""
        return str(self._links.dumps([token_id, run_id]))

    def read_link(self, secret: str) -> tuple[str, str] | None:
        """The token and the run of a link; None of anything else."""
        try:
            token_id, run_id = self._links.loads(secret)
        except BadData:
            return None
        return token_id, run_id

    def signed_in(self, headers: Headers, *, secure: bool) -> tuple[str, str | None] | None:
        """Id of the token that the browser logged in with, and the run that a link limits it to;
        None without a session."""
        # The standard library's parser drops all cookies for one that is malformed, and other
        # programs of this host may have set one.
        cookies = cookie_parser(headers.get("cookie", ""))
        value = cookies.get(self.cookie_name(secure=True), "")
        if not value and not secure:
            # Not over TLS: there any program of this host could have set it.
            value = cookies.get(self.cookie_name(secure=False), "")
        try:
            token_id, expires_at, *run = self._signer.loads(value)
        except BadData:
            return None
        # Sessions that began before there were links have no third part.
        if expires_at <= time.time():
            return None
        return str(token_id), run[0] if run else None
