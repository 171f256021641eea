"""`isentrope up` as a child process: started, waited for, and always stopped again."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import Self
from urllib.parse import quote

import click

import isentrope
from isentrope_wire import environment
from isentrope_wire.errors import IsentropeError

_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.1
_UP = (sys.executable, "-m", "isentrope", "up")


class ServerDidNotStart(IsentropeError, RuntimeError):
    """The server ended before it answered. The reason is on standard error."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(
            f"The server ended with status {status} before it answered; its reason is above."
        )


def choose_server(host: str | None, http_port: int | None, grpc_port: int | None) -> ServerProcess:
    """The server that runs with this home, where no address was given. Else one of its own, on a
    free port where the usual one is taken."""
    held = environment.server_of(environment.home()) or {}
    if {"url", "grpc"} <= held.keys() and not (host or http_port or grpc_port):
        click.echo(f"This home's server runs already: the run reports to {held['url']}.", err=True)
        return RunningServer(held["url"], held["grpc"])
    host = host or "127.0.0.1"
    return ServerProcess(
        host, http_port or _free_port(host, 7070), grpc_port or _free_port(host, 7071)
    )


def _free_port(host: str, usual: int) -> int:
    for port in (usual, 0):
        try:
            with socket.create_server((host, port)) as listening:
                free = int(listening.getsockname()[1])
        except OSError:
            continue
        if free != usual:
            click.echo(f"Port {usual} is taken: the demo's server uses {free}.", err=True)
        return free
    # The server says what is wrong with the host.
    return usual


class ServerProcess:
    """A server of its own for the demo. Entering the context starts it, leaving stops it."""

    is_own = True

    def __init__(self, host: str, http_port: int, grpc_port: int) -> None:
        self.url = f"http://{host}:{http_port}"
        self.grpc = f"{host}:{grpc_port}"
        self._arguments = (
            "--host",
            host,
            "--http-port",
            str(http_port),
            "--grpc-port",
            str(grpc_port),
        )
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        # A session of its own: Ctrl-C in the terminal reaches the demo alone, which stops the
        # server last.
        self._process = subprocess.Popen(
            [*_UP, *self._arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_until_ready(self) -> str:
        """Wait until everything answers; return the address that logs a browser in.
        ServerDidNotStart: a port is taken or the home can't be used."""
        assert self._process is not None, "the context is entered"
        assert self._process.stdout is not None, "stdout was asked for"
        # The server's only line, its address, printed when everything answers; none when it could
        # not start.
        url = self._process.stdout.readline().strip()
        if not url:
            raise ServerDidNotStart(self._process.wait(_STOP_SECONDS))
        return _login_address(url)

    def wait(self) -> None:
        """Until the server ends by itself."""
        if self._process is not None:
            self._process.wait()

    def wait_for_end_of_run(self, run_id: str, seconds: float) -> bool:
        """Whether the run's last message arrived within `seconds`: what it reported is then
        stored."""
        deadline = time.monotonic() + seconds
        with isentrope.Client(self.url) as client:
            while time.monotonic() < deadline:
                try:
                    if client.run(run_id).status.is_over:
                        return True
                except isentrope.IsentropeError:
                    # Not known yet, or the server is gone: either way the deadline decides.
                    pass
                time.sleep(_POLL_SECONDS)
        return False


class RunningServer(ServerProcess):
    """A server that somebody else started, and that goes on when the demo ends."""

    is_own = False

    def __init__(self, url: str, grpc: str) -> None:
        self.url, self.grpc = url, grpc
        self._process = None

    def __enter__(self) -> Self:
        return self

    def wait_until_ready(self) -> str:
        return _login_address(self.url)


def _login_address(url: str) -> str:
    token = environment.owner_token_file().read_text(encoding="utf-8").strip()
    return f"{url}/?token={quote(token, safe='')}"
