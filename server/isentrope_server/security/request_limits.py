"""How large a request's body may be. Counted while it streams in: a header may lie."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isentrope_server.errors import error_body

API_BODY_BYTES = 1 << 20
PAGE_BODY_BYTES = 16 << 20
"""A page's callback may carry the state of a whole figure."""


class BodyTooLarge(HTTPException):
    """FastAPI lets an HTTPException out of its body parser as it is; anything else it calls a bad request."""

    code = "body_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(413, f"A request's body may have {limit_bytes} bytes, this one has more.")
        self.limit_bytes = limit_bytes

    def answer(self) -> JSONResponse:
        return JSONResponse(error_body(self.code, self.detail, {"limit_bytes": self.limit_bytes}), self.status_code)


class BodyLimit:
    """ASGI middleware: a body beyond the limit ends in 413 before anybody parses it."""

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
