"""Whether memory stays flat: `python -m tests.benchmarks.soak [MINUTES]`, twenty without a number.

A real server that packs meanwhile; one training process that hands over ten steps a second, one that does so in bursts of
fifty each second, their shippers; a reader that asks for what is new, for a whole series, a histogram and the runs each
second, and one that listens to the live stream. A step has 60 scalars and 256 observed tokens.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from isentrope.transport.spool_folder import ShipperStatus, find_spool_folders
from tests.benchmarks.delivery import Process, ours
from tests.system.running_server import RunningServer

SAMPLE_SECONDS = 15.0
PATHS = (
    "/runs/steady/metrics/series?name=group1/metric7&points=1500",
    "/runs/bursts/metrics/series?name=group1/metric7&points=1500",
    "/runs/bursts/histograms/score%2Fvocab_centered?points=200",
    "/runs/steady/steps/1",
    "/runs",
)


def measure(minutes: float = 20.0) -> list[str]:
    """Rows of a Markdown table: resident MiB of each process over the time, and what the last half added."""
    samples: dict[str, list[float]] = {}
    done: Counter[str] = Counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        server = stack.enter_context(RunningServer(folder / "server"))
        processes = {
            "steady": stack.enter_context(ours(folder / "steady", server, "steady", "observed")),
            "bursts": stack.enter_context(ours(folder / "bursts", server, "bursts", "observed")),
        }
        end = time.monotonic() + 60.0 * minutes
        stack.enter_context(_beside(lambda: _hand_over(processes["steady"], "paced 50", 0.0), end))
        stack.enter_context(_beside(lambda: _hand_over(processes["bursts"], "burst 50", 1.0), end))
        stack.enter_context(_beside(lambda: _read(server, done), end))
        stack.enter_context(_beside(lambda: _listen(server, done), end))
        while time.monotonic() < end:
            time.sleep(SAMPLE_SECONDS)
            for name, pid in _pids(server, processes, folder).items():
                samples.setdefault(name, []).append(_resident_mib(pid))
    return [
        *_rows(samples),
        "",
        f"{done['answers']} answers were read and {done['events']} lines of the live stream received.",
    ]


def _rows(samples: Mapping[str, list[float]]) -> Iterator[str]:
    yield "| resident, MiB | after a tenth | a quarter | half | at the end | most | second half added |"
    yield "|---|---|---|---|---|---|---|"
    for name, values in samples.items():
        tenth, quarter, half = (values[len(values) * share // 20] for share in (2, 5, 10))
        places = (tenth, quarter, half, values[-1], max(values), values[-1] - half)
        yield f"| {name} | {' | '.join(f'{value:.1f}' for value in places)} |"


def _pids(server: RunningServer, processes: Mapping[str, Process], folder: Path) -> dict[str, int]:
    found = {"server": server.pid}
    for name, process in processes.items():
        found[f"training process, {name}"] = process.pid
        for spool in find_spool_folders(folder / name):
            status = ShipperStatus.read(spool.status)
            if status is not None:
                found[f"shipper, {name}"] = status.pid
    return found


def _resident_mib(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _hand_over(process: Process, command: str, rest_seconds: float) -> None:
    process.do(command)
    time.sleep(rest_seconds)


def _read(server: RunningServer, done: Counter[str]) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=f"{server.url}/api/v1", headers=headers, timeout=30) as api:
        for path in PATHS:
            done["answers"] += api.get(path).is_success
    time.sleep(1.0)


def _listen(server: RunningServer, done: Counter[str]) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.stream("GET", f"{server.url}/api/v1/runs/bursts/live", headers=headers, timeout=30) as answer:
        until = time.monotonic() + 60.0
        for _ in answer.iter_lines():
            done["events"] += answer.is_success
            if time.monotonic() > until:
                return
    time.sleep(1.0)


@contextmanager
def _beside(work: Callable[[], None], end: float) -> Iterator[None]:
    """Do it again and again on a thread of its own until the time is over."""

    def repeat() -> None:
        while time.monotonic() < end:
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(timeout=60.0)


if __name__ == "__main__":
    print("\n".join(measure(*map(float, sys.argv[1:]))))
