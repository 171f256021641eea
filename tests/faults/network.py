"""A network that fails: a TCP proxy that misbehaves on demand."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from typing import Self

CHUNK_BYTES = 16 * 1024


class TcpProxy:
    """Carries connections to a target; its attributes may be set at any time. `with` opens and
    closes it."""

    def __init__(self, target: str) -> None:
        self.target = target
        """host:port; where new connections go."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.black_hole = False
        """Take everything, hand on nothing."""
        self.bytes_per_second: float | None = None
        self.reset_after_bytes: int | None = None
        """End each connection by a reset after so many bytes in one direction."""
        self._open: set[socket.socket] = set()
        self._ended = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            # Closing alone does not wake a thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset_all()

    def reset_all(self) -> None:
        """End all connections by a reset."""
        for connection in list(self._open):
            self._reset(connection)

    def _accept(self) -> None:
        while not self._ended:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self.target.rpartition(":")
            try:
                server = socket.create_connection((host, int(port)), timeout=5.0)
            except OSError:
                self._reset(client)
                continue
            server.settimeout(None)
            self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        carried = 0
        try:
            while data := source.recv(CHUNK_BYTES):
                carried += len(data)
                if self.reset_after_bytes is not None and carried > self.reset_after_bytes:
                    self._reset(source)
                    self._reset(sink)
                    return
                while self.black_hole and not self._ended:
                    # What has been swallowed never comes out again: the connection is lost, and
                    # neither end is informed.
                    time.sleep(0.05)
                    data = b""
                if data:
                    if self.bytes_per_second is not None:
                        time.sleep(len(data) / self.bytes_per_second)
                    sink.sendall(data)
        except OSError:
            pass
        self._reset(sink)

    def _reset(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
