"""One WebSocket's connection, which may be refused with an answer of HTTP without a word in the log."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class QuietlyRefused(WebSocketsSansIOProtocol):
    """uvicorn's, which takes the gate's 401 or 403 for an application that forgot to answer, and logs an error each time.

    Remove when uvicorn counts `websocket.http.response.body` as the end of a handshake.
    """

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
