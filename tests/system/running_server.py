"""A real `isentrope up` in a process of its own, for tests that kill, freeze and restart it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

import httpx
from sqlalchemy import make_url

_T = TypeVar("_T")

OWNER_TOKEN = "the-owner-s-token-in-the-tests-of-the-system"
READY_SECONDS = 90.0
"""Far more than a start takes: on a machine that is busy with other things, imports alone may take
half a minute."""


def patience() -> float:
    """How many times longer than on a quiet machine to wait: 1 until more than two processes want
    each core."""
    return max(1.0, os.getloadavg()[0] / (2 * (os.cpu_count() or 1)))


def wait_for(
    what: Callable[[], _T | None], seconds: float = 15.0, sentence: str = "it happens"
) -> _T:
    """The first truthy answer of `what`, asked for so long on a quiet machine, and longer on a busy
    one.

    Asked less and less often: the answers cost the processor that what is waited for needs.
    """
    started = time.monotonic()
    while not (answer := what()):
        waited = time.monotonic() - started
        assert waited < seconds * patience(), f"waited {waited:.0f} s in vain until {sentence}"
        time.sleep(0.02 + min(waited / 20, 0.2))
    return answer


_given_ports: set[int] = set()


def free_port() -> int:
    """A free TCP port, another one at each call: a server needs two."""
    port = 0
    while port in _given_ports or not port:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
    _given_ports.add(port)
    return port


class RunningServer:
    """One server's home and ports; the process may come and go. `with` starts it and ends it for
    good."""

    def __init__(self, home: Path, *, token: str = OWNER_TOKEN) -> None:
        self.home = home
        self.token = token
        self.command: list[str] = [sys.executable, "-m", "isentrope"]
        """What is started, up to `up` and its options."""
        self.more_environment: dict[str, str] = {}
        """Variables the next process is started with besides."""
        self.http_port = free_port()
        self.grpc_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_target(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def database_url(self) -> str:
        """For reading past the server while it runs."""
        shared = self.more_environment.get("ISENTROPE_DATABASE_URL")
        if shared is not None:
            return (
                make_url(shared)
                .set(drivername="postgresql+psycopg")
                .render_as_string(hide_password=False)
            )
        return f"sqlite:///file:{self.home / 'isentrope.db'}?mode=ro&uri=true"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What its processes wrote."""
        return (self.home.parent / "server.log").read_text(encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        """What a client or trainer needs to find this server, with a home of its own beside the
        server's."""
        return clean_environment() | {
            "ISENTROPE_HOME": str(self.home.parent / "client-home"),
            "ISENTROPE_URL": self.url,
            "ISENTROPE_GRPC": self.grpc_target,
            "ISENTROPE_TOKEN": self.token,
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self, *, until_ready: bool = True) -> None:
        """Start the process and wait until it answers.

        Args:
            until_ready: False for a server that is to die by itself, maybe before it is ready.
        """
        ports = ["--http-port", str(self.http_port), "--grpc-port", str(self.grpc_port)]
        given = {
            "ISENTROPE_HOME": str(self.home),
            "ISENTROPE_TOKEN": self.token,
            "ISENTROPE_DASHBOARD": "false",
        }
        with (self.home.parent / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.command, "up", *ports],
                env=clean_environment() | given | self.more_environment,
                stdout=log,
                stderr=log,
            )
        if until_ready:
            try:
                self._wait_until_ready()
            except BaseException:
                self.kill()
                raise

    def kill(self) -> None:
        """SIGKILL: nothing is flushed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: sockets stay open, nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _wait_until_ready(self) -> None:
        started = time.monotonic()
        while time.monotonic() - started < READY_SECONDS * patience():
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"The server ended while starting: {self.log}")
            try:
                if httpx.get(f"{self.url}/readyz", timeout=1.0).is_success:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError(
            f"The server was not ready after {time.monotonic() - started:.0f} s: {self.log}"
        )


def clean_environment() -> dict[str, str]:
    """This process's environment without anything that steers Isentrope but the cache of compiled
    kernels."""
    kept = "ISENTROPE_KERNEL_CACHE"
    return {
        name: value
        for name, value in os.environ.items()
        if name == kept or not name.startswith("ISENTROPE_")
    }
