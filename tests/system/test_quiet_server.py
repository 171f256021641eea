"""Streams of controls end in every way they do, and the server's terminal shows nobody a traceback."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.system.running_server import RunningServer
from tests.system.trainer import Trainer, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "server") as running:
        yield running


@contextmanager
def a_followed_run(server: RunningServer, run_id: str) -> Iterator[Trainer]:
    """A training process whose shipper holds a Watch open."""
    environment = server.environment | {"ISENTROPE_DRAIN_SECONDS": "3"}
    with Trainer(server.home.parent / run_id, environment, run_id, steps=10_000, step_seconds=0.02) as trainer:
        wait_until(lambda: open_watches(server) == 1)
        yield trainer


def open_watches(server: RunningServer) -> int:
    headers = {"Authorization": f"Bearer {server.token}"}
    figures = httpx.get(f"{server.url}/metrics", headers=headers, trust_env=False).text
    found = re.search(r"^isentrope_watch_streams (\d+)", figures, re.MULTILINE)
    assert found is not None, figures
    return int(found[1])


def said(server: RunningServer) -> str:
    return (server.home.parent / "server.log").read_text(encoding="utf-8")


def test_a_run_that_ends_and_a_shipper_that_is_killed_leave_no_traceback(server: RunningServer) -> None:
    with a_followed_run(server, "ends") as trainer:
        trainer.process.kill()
        trainer.process.wait()
        trainer.wait_until_delivered()
        wait_until(lambda: open_watches(server) == 0)
    assert "Traceback" not in said(server)
    with a_followed_run(server, "is-killed") as trainer:
        trainer.process.kill()
        trainer.process.wait()
        os.kill(trainer.status().pid, signal.SIGKILL)
        wait_until(lambda: open_watches(server) == 0)
        # Nobody is left who would say that the spool is delivered.
        trainer.folder.remove()
    assert "Traceback" not in said(server)


def test_a_server_that_ends_while_it_is_followed_leaves_no_traceback(server: RunningServer) -> None:
    with a_followed_run(server, "goes-on"):
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: not server.alive)
    assert "Traceback" not in said(server)
