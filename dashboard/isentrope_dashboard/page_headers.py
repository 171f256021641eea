"""Headers of the pages: a content security policy that lets nothing in from outside."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY_HEADER = "content-security-policy"


def content_security_policy(script_hashes: Sequence[str]) -> str:
    """The policy of every page.

    Scripts come from this origin, or are one of the few inline ones with a known hash. Styles may be inline, because
    the component library and the charts write style elements; icons are data URLs of the style sheet.
    """
    directives = {
        "default-src": ["'self'"],
        "script-src": ["'self'", *script_hashes],
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:", "blob:"],
        "font-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "worker-src": ["'self'", "blob:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
        "frame-ancestors": ["'none'"],
    }
    return "; ".join(f"{name} {' '.join(sources)}" for name, sources in directives.items())


class PageHeadersMiddleware:
    """Adds the policy to every HTML answer that has none yet."""

    def __init__(self, app: ASGIApp, policy: str) -> None:
        self.app = app
        self.policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.setdefault(POLICY_HEADER, self.policy)
                    headers.setdefault("x-content-type-options", "nosniff")
                    headers.setdefault("referrer-policy", "same-origin")
            await send(message)

        await self.app(scope, receive, send_with_headers)
