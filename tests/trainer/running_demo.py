"""`isentrope demo` in a process of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from isentrope_trainer.models.policy import PolicyConfig, build_policy
from isentrope_trainer.models.warm_start import WarmStartConfig, cache_path

ISENTROPE = (sys.executable, "-m", "isentrope")


def free_ports() -> tuple[int, int]:
    with closing(socket.socket()) as first, closing(socket.socket()) as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def without_warm_start(home: Path) -> None:
    """Put fresh weights where the warm start is cached, since learning them takes a minute.

    `home` must be ISENTROPE_HOME already.
    """
    path = cache_path(PolicyConfig(), WarmStartConfig())
    assert path.is_relative_to(home)
    path.parent.mkdir(parents=True)
    torch.save(build_policy(PolicyConfig(), seed=0).state_dict(), path)


@contextmanager
def running_demo(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, str, str]]:
    """A demo in a process of its own: the process, the server's address, the login address, the run's id."""
    http_port, grpc_port = free_ports()
    ports = ("--http-port", str(http_port), "--grpc-port", str(grpc_port))
    process = subprocess.Popen(
        [*ISENTROPE, "demo", "--headless", *ports, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    watchdog = threading.Timer(120, process.kill)
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
