"""What stands in front of several servers, as small as it gets: it carries each connection to the server chosen last."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class SwitchingProxy:
    """Listens on a port of its own; a connection whose server goes away ends. `with` opens and closes it."""

    def __init__(self, target: str) -> None:
        """
        Args:
            target: host:port of the server that new connections go to; may be set anew at any time.
        """
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            # Closing alone doesn't wake a thread that accepts.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            server = socket.create_connection((host, int(port)), timeout=5.0)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        back = threading.Thread(target=_carry, args=(server, client), daemon=True)
        back.start()
        _carry(client, server)
        back.join()
        client.close()
        server.close()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
