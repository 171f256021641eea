"""Networks that fail: a TCP proxy that misbehaves on demand, and a link to a network namespace that can be cut."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
from typing import ClassVar, Self

CHUNK_BYTES = 16 * 1024


class TcpProxy:
    """Carries connections to a target; its attributes may be set at any time. `with` opens and closes it."""

    def __init__(self, target: str, host: str = "127.0.0.1") -> None:
        """
        Args:
            target: host:port; where new connections go, and may be set at any time.
            host: the address to listen on.
        """
        self.target = target
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
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
                    # What has been swallowed never comes out again: the connection is lost, and neither end is informed.
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


def has_namespaces() -> bool:
    """Whether this machine lets us make network namespaces and join them by a link."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with NetworkNamespace():
            return True
    except subprocess.CalledProcessError:
        return False


class NetworkNamespace:
    """A network of its own, joined to the machine's by a link that can be cut. `with` makes and removes it."""

    _made = itertools.count()
    _existing: ClassVar[set[NetworkNamespace]] = set()

    def __init__(self) -> None:
        number = (os.getpid() * 8 + next(self._made)) % 16_000
        self._name = f"isentrope-{number}"
        self._outer = f"isf{number}o"
        self._inner = f"isf{number}i"
        base, last = f"10.231.{number // 64}", number % 64 * 4
        self.outer_address = f"{base}.{last + 1}"
        """The machine's end of the link: what processes in the namespace can reach."""
        self._inner_address = f"{base}.{last + 2}"

    @property
    def prefix(self) -> list[str]:
        """A command that runs the rest in the namespace."""
        return ["ip", "netns", "exec", self._name]

    @classmethod
    def remove_all(cls) -> None:
        """Remove those this process made; processes in them must be gone before."""
        for namespace in tuple(cls._existing):
            namespace.__exit__()

    def __enter__(self) -> Self:
        self._existing.add(self)
        _ip("netns", "add", self._name)
        try:
            _ip("link", "add", self._outer, "type", "veth", "peer", "name", self._inner, "netns", self._name)
            _ip("addr", "add", f"{self.outer_address}/30", "dev", self._outer)
            _ip("link", "set", self._outer, "up")
            _ip("-n", self._name, "addr", "add", f"{self._inner_address}/30", "dev", self._inner)
            _ip("-n", self._name, "link", "set", self._inner, "up")
            _ip("-n", self._name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for command in (("link", "del", self._outer), ("netns", "del", self._name)):
            subprocess.run(["ip", *command], check=False, capture_output=True)
        self._existing.discard(self)

    def cut(self) -> None:
        """Pull the cable: both ends see it."""
        _ip("link", "set", self._outer, "down")

    def mend(self) -> None:
        _ip("link", "set", self._outer, "up")
        subprocess.run(["ip", "neigh", "flush", "dev", self._outer], check=False, capture_output=True)

    def swallow(self) -> None:
        """Lose every packet on its way to the namespace, silently: they are sent to a machine that isn't there."""
        _ip(
            "neigh",
            "replace",
            self._inner_address,
            "lladdr",
            "02:00:00:00:00:99",
            "dev",
            self._outer,
            "nud",
            "permanent",
        )

    def stop_swallowing(self) -> None:
        _ip("neigh", "del", self._inner_address, "dev", self._outer)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
