"""`isentrope demo` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil  # type: ignore[import-untyped]

from isentrope_wire import environment
from tests.system.running_server import free_port

ISENTROPE = (sys.executable, "-m", "isentrope")


@contextmanager
def running_demo(
    *arguments: str, headless: bool = True, longest_seconds: float = 120
) -> Iterator[tuple[subprocess.Popen[str], str, str, str]]:
    """A demo in a process of its own: the process, the server's address, the login address, the
    run's id.

    Args:
        headless: False leaves its pages up when the run is over, and what it says then can be read.
        longest_seconds: after them it is killed.
    """
    http_port, grpc_port = free_port(), free_port()
    ports = ("--http-port", str(http_port), "--grpc-port", str(grpc_port))
    process = subprocess.Popen(
        [*ISENTROPE, "demo", *(["--headless"] if headless else []), *ports, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if headless else subprocess.PIPE,
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


def login_address(origin: str) -> str:
    """Logs a browser in as the owner: the demo prints no token into a pipe."""
    token = environment.owner_token_file().read_text(encoding="utf-8").strip()
    return f"{origin}/?token={token}"


def _kill_with_descendants(pid: int) -> None:
    """Kill a demo with its server and shipper, which have sessions of their own and would go on
    without it."""
    demo = psutil.Process(pid)
    for process in (*demo.children(recursive=True), demo):
        process.kill()
