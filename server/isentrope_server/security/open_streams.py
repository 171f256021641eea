"""What is still open when a token is revoked or a browser logs out: requests not yet read whole, answers without an end,
WebSockets, Watch streams.

Each asks the gate's `OpenStreams` for a `Leave` of its token or session, and ends when it is withdrawn. Withdrawing
happens on the event loop, whichever thread read that the token is gone.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isentrope_server.errors import error_body
from isentrope_server.security.permissions import Door
from isentrope_server.security.tokens import Principal, TokenBook


class Leave:
    """Permission to stay, until it is withdrawn."""

    def __init__(self, principal: Principal, door: Door) -> None:
        self.principal = principal
        self.door = door
        self._withdrawn = asyncio.Event()

    @property
    def is_withdrawn(self) -> bool:
        return self._withdrawn.is_set()

    def withdraw(self) -> None:
        self._withdrawn.set()

    async def wait_withdrawn(self) -> None:
        await self._withdrawn.wait()


class OpenStreams:
    """Every open request and stream by the token it came with. Lives on one event loop."""

    def __init__(self, tokens: TokenBook, loop: asyncio.AbstractEventLoop) -> None:
        self._tokens = tokens
        self._loop = loop
        self._leaves: dict[str, set[Leave]] = defaultdict(set)
        tokens.on_revocation(self._revoked)

    def count(self, principal: Principal, door: Door) -> int:
        """How many this token holds open that came in there."""
        return sum(leave.door is door for leave in self._leaves.get(principal.token_id, ()))

    @property
    def total(self) -> int:
        return sum(len(leaves) for leaves in self._leaves.values())

    @contextmanager
    def opened(self, principal: Principal, door: Door) -> Iterator[Leave]:
        """Count something as open while it runs."""
        leave = Leave(principal, door)
        self._leaves[principal.token_id].add(leave)
        try:
            # Revoked between the look at the book and this line.
            if not self._tokens.is_in_force(principal):
                leave.withdraw()
            yield leave
        finally:
            self._leaves[principal.token_id].discard(leave)
            if not self._leaves[principal.token_id]:
                del self._leaves[principal.token_id]

    def _revoked(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._withdraw)

    def _withdraw(self) -> None:
        for leaves in self._leaves.values():
            for leave in leaves:
                if not self._tokens.is_in_force(leave.principal):
                    leave.withdraw()


def while_allowed(app: ASGIApp, leave: Leave) -> ASGIApp:
    """The same application, to which the client seems gone once the leave is withdrawn."""

    async def allowed(scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _Exchange(scope["type"], receive, send, leave)
        try:
            await app(scope, exchange.receive, exchange.send)
        except (_Withdrawn, ClientDisconnect):
            # Starlette makes the second of the first.
            if not leave.is_withdrawn:
                raise
        await exchange.end()

    return allowed


class _Withdrawn(OSError):
    """To an application that only sends: the client is gone."""


_EVENTS = b"text/event-stream"
_GONE: dict[str, Message] = {
    "http": {"type": "http.disconnect"},
    "websocket": {"type": "websocket.disconnect", "code": 1008, "reason": "The token was revoked."},
}


class _Exchange:
    """One request and its answer, or one WebSocket."""

    def __init__(self, kind: str, receive: Receive, send: Send, leave: Leave) -> None:
        self._kind = kind
        self._receive = receive
        self._send = send
        self._leave = leave
        self._is_cut = False
        self._has_begun = False
        self._is_open = False
        # A stream of events may end after any of them, and ends by what it receives; of all else a part is a torso.
        self._is_events = False

    async def receive(self) -> Message:
        """The next message. Of a body the rest, too, counts for nothing once the token is revoked: a request that was
        begun before must not do anything after."""
        waiting = asyncio.ensure_future(self._receive())
        gone = asyncio.ensure_future(self._leave.wait_withdrawn())
        try:
            await asyncio.wait((waiting, gone), return_when=asyncio.FIRST_COMPLETED)
            if not self._leave.is_withdrawn:
                return waiting.result()
            self._is_cut = True
            return _GONE[self._kind]
        finally:
            for task in (waiting, gone):
                task.cancel()

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if self._kind == "http" and self._is_cut and not self._has_begun:
            return  # what the application makes of half a request; `end` says what happened
        if kind in ("http.response.start", "websocket.accept"):
            self._has_begun = self._is_open = True
            self._is_events = any(
                name.lower() == b"content-type" and value.startswith(_EVENTS)
                for name, value in message.get("headers", ())
            )
        elif kind == "websocket.close" or (kind == "http.response.body" and not message.get("more_body", False)):
            self._is_open = False
        elif kind == "http.response.body" and self._leave.is_withdrawn and not self._is_events:
            raise _Withdrawn("The token was revoked.")
        await self._send(message)

    async def end(self) -> None:
        """Answer, or close, what the application left because it took the client for gone.

        An answer of which a part was sent stays without its end: the server closes the connection, and the client knows.
        """
        if not self._leave.is_withdrawn:
            return
        if self._kind == "http" and not self._has_begun:
            body = json.dumps(
                error_body("unauthenticated", "The token was revoked while the request came in.")
            ).encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"www-authenticate", b"Bearer"),
            ]
            await self._send({"type": "http.response.start", "status": 401, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
            return
        if not self._is_open:
            return
        if self._kind == "websocket":
            await self._send({"type": "websocket.close", "code": 1008, "reason": "The token was revoked."})
        elif self._is_events:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
