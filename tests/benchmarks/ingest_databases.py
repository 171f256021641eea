"""Reports a second and time to the acknowledgement, SQLite and PostgreSQL in turns.

    python -m tests.benchmarks.ingest_databases

A real server process for each, both durable: SQLite synchronous=FULL, PostgreSQL fsync, full_page_writes and
synchronous_commit on. A report has 60 scalars and 4 histograms of 64 bins. *Paced*: four trainers push one report every
100 ms. *Flat out*: four push 64 reports at a time, the next push as soon as the last is acknowledged.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from isentrope_wire.codec import record_of, record_to_pb, run_started_to_pb
from isentrope_wire.reports import PROTOCOL_VERSION, RunStarted, ScoreHistogram, StepReport
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub
from tests.server.postgresql import PostgreSQL
from tests.system.running_server import RunningServer

TRAINERS = 4
ROUNDS = 3
SECONDS = 8.0
PACE_SECONDS = 0.1
REPORTS_IN_A_PUSH = 64
DURABLE = ("fsync=on", "full_page_writes=on", "synchronous_commit=on")


@dataclass
class Measured:
    """What the rounds of one candidate came to."""

    ack_seconds: list[float] = field(default_factory=list)
    reports: int = 0
    seconds: float = 0.0

    def row(self, name: str) -> str:
        p50, p99 = (1_000 * float(np.quantile(self.ack_seconds, q)) for q in (0.5, 0.99))
        return f"| {name} | {self.reports / self.seconds:,.0f} | {p50:,.0f} | {p99:,.0f} |"


class Pusher:
    """One trainer's shipper, reduced to its pushes."""

    def __init__(self, server: RunningServer, run_id: str) -> None:
        self._stub = TelemetryStub(grpc.insecure_channel(server.grpc_target))
        self._metadata = (("authorization", f"Bearer {server.token}"),)
        self._run_id = run_id
        self._seq = 0
        started = RunStarted(
            run_id=run_id, incarnation="first", rank=0, world_size=1, name=run_id, project="benchmark",
            started_at=time.time(), probe_version="0",
        )  # fmt: skip
        hello = pb.HelloRequest(run=run_started_to_pb(started), protocol_version=PROTOCOL_VERSION)
        self._stub.Hello(hello, metadata=self._metadata, timeout=30)

    def push(self, reports: int) -> float:
        """Push so many new reports; returns the seconds until they were acknowledged."""
        first = self._seq + 1
        self._seq += reports
        records = [record_to_pb(record_of(seq, _report(seq))) for seq in range(first, self._seq + 1)]
        request = pb.PushRequest(run_id=self._run_id, incarnation="first", rank=0, records=records)
        started = time.perf_counter()
        reply = self._stub.Push(request, metadata=self._metadata, timeout=60)
        assert reply.acked_through == self._seq
        return time.perf_counter() - started


def _report(step: int) -> StepReport:
    generator = np.random.default_rng(step)
    scalars = dict(zip((f"metric/{i}" for i in range(60)), generator.normal(size=60).tolist(), strict=True))
    histograms = tuple(
        ScoreHistogram(name=f"histogram/{i}", low=-1.0, high=1.0, counts=tuple(generator.poisson(100, 64).tolist()))
        for i in range(4)
    )
    return StepReport(step=step, recorded_at=time.time(), scalars=scalars, histograms=histograms)


def paced(pusher: Pusher, end: float, done: Callable[[float, int], None]) -> None:
    due = time.perf_counter()
    while due < end:
        time.sleep(max(0.0, due - time.perf_counter()))
        done(pusher.push(1), 1)
        due = max(due + PACE_SECONDS, time.perf_counter())


def flat_out(pusher: Pusher, end: float, done: Callable[[float, int], None]) -> None:
    while time.perf_counter() < end:
        done(pusher.push(REPORTS_IN_A_PUSH), REPORTS_IN_A_PUSH)


def measure_round(
    server: RunningServer, mode: Callable[[Pusher, float, Callable[[float, int], None]], None], into: Measured
) -> None:
    pushers = [Pusher(server, f"run-{time.time_ns()}-{number}") for number in range(TRAINERS)]
    lock = threading.Lock()

    def done(ack_seconds: float, reports: int) -> None:
        with lock:
            into.ack_seconds.append(ack_seconds)
            into.reports += reports

    started = time.perf_counter()
    threads = [threading.Thread(target=mode, args=(pusher, started + SECONDS, done)) for pusher in pushers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    into.seconds += time.perf_counter() - started


@contextlib.contextmanager
def servers() -> Iterator[dict[str, RunningServer]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        running = {}
        for name in ("SQLite", "PostgreSQL"):
            home = Path(folder) / name / "home"
            home.parent.mkdir()
            running[name] = RunningServer(home)
        postgresql = stack.enter_context(PostgreSQL(*DURABLE))
        url = stack.enter_context(postgresql.empty_database())
        running["PostgreSQL"].more_environment = {"ISENTROPE_DATABASE_URL": url}
        for server in running.values():
            stack.enter_context(server)
        yield running


def measure() -> list[str]:
    """The rows of the table."""
    rows = ["| | reports/s | ack p50, ms | ack p99, ms |", "|---|---|---|---|"]
    with servers() as running:
        for title, mode in (("paced", paced), ("flat out", flat_out)):
            found = {name: Measured() for name in running}
            for _ in range(ROUNDS):
                for name, server in running.items():
                    measure_round(server, mode, found[name])
            rows.extend(measured.row(f"{title}, {name}") for name, measured in found.items())
    return rows


if __name__ == "__main__":
    sys.stdout.write("\n".join(measure()) + "\n")
