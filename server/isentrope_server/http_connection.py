"""One HTTP connection with deadlines: whoever sends or reads too slowly gives its place to others.

uvicorn ends a connection that is silent between two requests, and waits for ever for one that sends a byte of its
headers a minute, or that doesn't read its answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from isentrope_server.errors import error_body

HEADER_SECONDS = 10.0
"""From the first byte of a request, or from the connection's opening, to the end of its headers."""
BODY_SECONDS = 60.0
"""From there to the end of its body: the largest takes 13 s at 10 Mbit/s."""
STALL_SECONDS = 30.0
"""How long an answer may wait for its client to read on."""


class _Awaited(StrEnum):
    HEADERS = "headers"
    BODY = "body"


_SECONDS = {_Awaited.HEADERS: HEADER_SECONDS, _Awaited.BODY: BODY_SECONDS}


class PatientForAWhile(H11Protocol):
    """uvicorn's connection, with deadlines and the one error body."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._awaited: _Awaited | None = None
        self._reading_deadline: asyncio.TimerHandle | None = None
        self._writing_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_more()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clocks()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:
            # The first bytes of a further request: its time begins now, not at the end of the one before.
            self._await(None)
        super().data_received(data)
        self._await_more()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        # The connection is another protocol's from here on, and that one sends pings.
        self._stop_clocks()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_more()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing_deadline is None:
            self._writing_deadline = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing_deadline is not None:
            self._writing_deadline.cancel()
            self._writing_deadline = None

    def send_400_response(self, msg: str) -> None:
        """Called where the request can't be read at all."""
        error = sys.exc_info()[1]
        # h11 takes headers that are too long for a broken request of status 431.
        too_long = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == too_long:
            self._refuse(
                too_long, "headers_too_large", "A request's address and headers may have 16 KiB, these have more."
            )
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "no_http", "This is no HTTP request.")

    def _await_more(self) -> None:
        state = self.conn.their_state
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._await(None)
        elif state is h11.IDLE:
            self._await(_Awaited.HEADERS)
        else:
            self._await(_Awaited.BODY if state is h11.SEND_BODY else None)

    def _await(self, awaited: _Awaited | None) -> None:
        if awaited is self._awaited:
            return
        if self._reading_deadline is not None:
            self._reading_deadline.cancel()
            self._reading_deadline = None
        self._awaited = awaited
        if awaited is not None:
            self._reading_deadline = self.loop.call_later(_SECONDS[awaited], self._too_slow)

    def _too_slow(self) -> None:
        self._reading_deadline = None
        if self.conn.our_state is h11.IDLE and self._awaited is _Awaited.HEADERS:
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT, "too_slow", f"A request's headers must come within {HEADER_SECONDS:g} s."
            )
        else:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        body = json.dumps(error_body(code, message)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        events = (
            h11.Response(status_code=status, headers=headers, reason=status.phrase.encode()),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _stop_clocks(self) -> None:
        self._await(None)
        if self._writing_deadline is not None:
            self._writing_deadline.cancel()
            self._writing_deadline = None
