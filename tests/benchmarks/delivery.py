"""A step of 60 scalars, from the training loop to a reader.

Caller's side: the time the public calls of a step take (`probe.log` and `probe.step`), paced at ten
a second, in turns with the same of trackio, wandb (offline), mlflow and tensorboard, as far as this
Python, or the one that PEERS_PYTHON names, has them; and once more with our own server frozen.
Drained: a burst, from the first step to the server's last acknowledgement.
Visible: from the call to the moment a REST client reads the step.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import httpx

from isentrope.transport.spool_folder import ShipperStatus, find_spool_folders
from tests.system.running_server import RunningServer

TRACKER = Path(__file__).with_name("tracker_step.py")
PEERS = ("trackio", "wandb", "mlflow", "tensorboard")
ROUNDS, STEPS_PER_ROUND = 5, 40
BURST_STEPS = 10_000
QUEUED_STEPS = 1_000
"""How many steps of a burst may be ahead of the disk: fewer than a spool's queue holds."""


class Process:
    """A tracker's process, which logs on command."""

    def __init__(
        self, name: str, folder: Path, environment: dict[str, str], python: str = sys.executable
    ) -> None:
        folder.mkdir(parents=True)
        self._process = subprocess.Popen(
            [python, str(TRACKER), name, str(folder)],
            env=dict(os.environ) | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name} could not be started with {python}; is it installed there?")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, command: str) -> list[float]:
        """Returns: seconds, as the process measured them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer: list[float] = json.loads(self._process.stdout.readline())
        return answer


def measure() -> list[str]:
    """Rows of Markdown tables."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="delivery-")))
        server = stack.enter_context(RunningServer(folder / "server"))
        return [
            *_callers_side(folder, server),
            "",
            *_throughput(folder, server),
            "",
            *_visibility(folder, server),
        ]


def _callers_side(folder: Path, server: RunningServer) -> list[str]:
    python = os.environ.get("PEERS_PYTHON")
    peers = [name for name in PEERS if python or importlib.util.find_spec(name)]
    seconds: dict[str, list[float]] = {}
    with ExitStack() as stack:
        processes = {
            "isentrope": stack.enter_context(ours(folder / "paced", server, "paced")),
            "isentrope, server frozen": stack.enter_context(
                ours(folder / "frozen", server, "frozen")
            ),
        }
        for name in peers:
            processes[name] = stack.enter_context(
                Process(name, folder / name, {}, python or sys.executable)
            )
        for _ in range(ROUNDS):
            for name, process in processes.items():
                if "frozen" in name:
                    server.freeze()
                seconds.setdefault(name, []).extend(process.do(f"paced {STEPS_PER_ROUND}"))
                if "frozen" in name:
                    server.thaw()
        ends = {name: process.do("end")[0] for name, process in processes.items()}
    rows = [
        f"| {name} | {_percentile(values, 50) * 1e6:.0f} | {_percentile(values, 99) * 1e6:.0f} "
        f"| {max(values) * 1e6:.0f} | {ends[name]:.2f} |"
        for name, values in seconds.items()
    ]
    return [
        "| caller's side, µs a step | p50 | p99 | max | end, s |",
        "|---|---|---|---|---|",
        *rows,
    ]


def _throughput(folder: Path, server: RunningServer) -> list[str]:
    with ours(folder / "burst", server, "burst") as process:
        started = time.perf_counter()
        for _ in range(BURST_STEPS // QUEUED_STEPS):
            process.do(f"burst {QUEUED_STEPS}")
            _wait_for_the_disk(folder / "burst")
        on_disk = time.perf_counter() - started
        process.do("end")
        while _acknowledged(folder / "burst") is not None:
            time.sleep(0.01)
        drained = time.perf_counter() - started
    return [
        "| a burst | steps/s |",
        "|---|---|",
        f"| on disk | {BURST_STEPS / on_disk:.0f} |",
        f"| drained through gRPC and store | {BURST_STEPS / drained:.0f} |",
    ]


def _visibility(folder: Path, server: RunningServer, steps: int = 40) -> list[str]:
    headers = {"Authorization": f"Bearer {server.token}"}
    waited: list[float] = []
    with (
        httpx.Client(base_url=f"{server.url}/api/v1", headers=headers, timeout=10) as api,
        ours(folder / "visible", server, "visible") as process,
    ):
        process.do("burst 1")
        while not api.get("/runs/visible/steps/0").is_success:
            time.sleep(0.05)
        for step in range(1, steps + 1):
            time.sleep(0.05 + 0.003 * step)
            process.do("burst 1")
            started = time.perf_counter()
            while not api.get(f"/runs/visible/steps/{step}").is_success:
                time.sleep(0.002)
            waited.append(time.perf_counter() - started)
        process.do("end")
    return [
        "| from the call to a REST reader, s | p50 | p95 | max |",
        "|---|---|---|---|",
        (
            f"| one step | {statistics.median(waited):.3f} | {_percentile(waited, 95):.3f} |"
            f" {max(waited):.3f} |"
        ),
    ]


def ours(folder: Path, server: RunningServer, run_id: str) -> Process:
    """Our own, online, in a home of its own."""
    environment = server.environment | {"ISENTROPE_MODE": "online", "BENCHMARK_RUN": run_id}
    return Process("isentrope", folder, environment)


def _wait_for_the_disk(home: Path) -> None:
    (folder,) = find_spool_folders(home)
    before = -1
    while (size := sum(path.stat().st_size for path in folder.path.glob("*.seg"))) != before:
        before = size
        time.sleep(0.06)


def _acknowledged(home: Path) -> int | None:
    """None: everything, the spool is gone."""
    for folder in find_spool_folders(home):
        status = ShipperStatus.read(folder.status)
        return 0 if status is None else status.acked_through
    return None


def _percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]
