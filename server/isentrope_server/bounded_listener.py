"""A listening socket that takes so many connections and no more, and doesn't fill the log when it can take none."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from typing import Any
from weakref import WeakSet

_log = logging.getLogger(__name__)

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_REST_SECONDS = 0.5
"""asyncio tries again after a second, yet asks some thousand times before it rests, and logs each."""
_SAID_SECONDS = 10.0


class BoundedListener(socket.socket):
    """Counts connections from their arrival to their end, so that TLS handshakes count too."""

    def __init__(self, listening: socket.socket, most: int) -> None:
        """
        Args:
            listening: its descriptor becomes this one's.
            most: connections beyond are closed at once.
        """
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._most = most
        # Weak: one that is lost without being closed is closed by then.
        self._open: WeakSet[_Connection] = WeakSet()
        self._resting_until = 0.0

    def accept(self) -> tuple[socket.socket, Any]:
        """As every socket does, for an event loop: BlockingIOError where there is nothing to take now."""
        if time.monotonic() < self._resting_until:
            raise BlockingIOError
        try:
            arrived, address = super().accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._resting_until = time.monotonic() + _REST_SECONDS
            raise
        if len(self._open) >= self._most:
            arrived.close()
            raise BlockingIOError
        connection = _Connection(arrived, self._open)
        self._open.add(connection)
        return connection, address


class _Connection(socket.socket):
    """Gives its place back when it is closed."""

    def __init__(self, arrived: socket.socket, places: WeakSet[_Connection]) -> None:
        super().__init__(arrived.family, arrived.type, arrived.proto, fileno=arrived.detach())
        self._places = places

    def close(self) -> None:
        super().close()
        self._places.discard(self)


class CalmExceptionHandler:
    """An event loop's: asyncio's traceback for each connection it can't accept becomes a line now and then."""

    def __init__(self) -> None:
        self._silent_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        is_accept = "accept" in str(context.get("message"))
        if not (is_accept and isinstance(error, OSError) and error.errno in _EXHAUSTED):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + _SAID_SECONDS
            _log.error(
                "The HTTP port can't take connections now: %s. It tries again every second; see `ulimit -n`.",
                error.strerror,
            )
