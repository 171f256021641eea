"""`isentrope demo` in a process of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psutil  # type: ignore[import-untyped]

ISENTROPE = (sys.executable, "-m", "isentrope")


def free_ports() -> tuple[int, int]:
    with closing(socket.socket()) as first, closing(socket.socket()) as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


@contextmanager
def running_demo(
    *arguments: str, longest_seconds: float = 120
) -> Iterator[tuple[subprocess.Popen[str], str, str, str]]:
    """A demo in a process of its own: the process, the server's address, the login address, the run's id.

    Args:
        longest_seconds: after them it is killed.
    """
    http_port, grpc_port = free_ports()
    ports = ("--http-port", str(http_port), "--grpc-port", str(grpc_port))
    process = subprocess.Popen(
        [*ISENTROPE, "demo", "--headless", *ports, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    watchdog = threading.Timer(longest_seconds, _kill_with_descendants, (process.pid,))
    watchdog.start()
    try:
        assert process.stdout is not None
        login = process.stdout.readline().strip()
        run = process.stdout.readline().strip()
        assert run.startswith("run: ")
        yield process, f"http://127.0.0.1:{http_port}", login, run.removeprefix("run: ")
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _kill_with_descendants(pid: int) -> None:
    """Kill a demo with its server and shipper, which have sessions of their own and would go on without it."""
    demo = psutil.Process(pid)
    for process in (*demo.children(recursive=True), demo):
        process.kill()
