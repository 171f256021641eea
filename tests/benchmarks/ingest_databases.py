"""Ingest into SQLite and PostgreSQL: reports a second, time to the acknowledgement, CPU time of
server and database.

    python -m tests.benchmarks.ingest_databases                        # both databases in turns
    python -m tests.benchmarks.ingest_databases servers 1 2 3          # servers over one PostgreSQL
    python -m tests.benchmarks.ingest_databases clients 100 1000  # runs, a connection each

Real server processes, all durable: SQLite synchronous=FULL, PostgreSQL fsync, full_page_writes and
synchronous_commit on. A report has 60 scalars and 4 histograms of 64 bins. *Paced*: four trainers
push one report every 100 ms. *Flat out*: four push 64 reports at a time, the next push as soon as
the last is acknowledged. *Clients*: each run holds a Watch stream and pushes one report of the
recorded run every `--period` seconds; first no run pushes, then all do. CPU seconds are of the
processes alone; a database's are its own, SQLite's are in the server's."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil  # type: ignore[import-untyped]

from isentrope_wire.codec import encode_payload
from isentrope_wire.reports import PROTOCOL_VERSION, StepReport
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub
from tests.benchmarks.measuring import cpu_seconds
from tests.benchmarks.storage import HISTOGRAMS, SCALARS
from tests.benchmarks.storage import reports as some_reports
from tests.countdown import countdown_run
from tests.probe.transport.fake_telemetry import RUN
from tests.server.postgresql import PostgreSQL
from tests.server.rank import wire_record
from tests.system.running_server import RunningServer

TRAINERS = 4
ROUNDS = 3
SECONDS = 8.0
PACE_SECONDS = 0.1
REPORTS_IN_A_PUSH = 64
DURABLE = ("fsync=on", "full_page_writes=on", "synchronous_commit=on")
CONNECTING_AT_ONCE = 50
RETRY_SECONDS = 1.0
SQLITE, POSTGRESQL = "SQLite", "PostgreSQL"


@dataclass
class Used:
    """CPU seconds so far of the servers and of the database, each with its children, also ended
    ones."""

    servers: float
    database: float

    def since(self, before: Used) -> Used:
        return Used(self.servers - before.servers, self.database - before.database)


@dataclass(frozen=True)
class Candidate:
    """Servers over one database."""

    name: str
    servers: tuple[RunningServer, ...]
    postgresql: PostgreSQL | None

    def used(self) -> Used:
        database = 0.0 if self.postgresql is None else cpu_seconds(self.postgresql.pid)
        return Used(sum(cpu_seconds(server.pid) for server in self.servers), database)


@dataclass
class Measured:
    """What the rounds of one candidate came to."""

    ack_seconds: list[float] = field(default_factory=list)
    reports: int = 0
    seconds: float = 0.0
    used: list[Used] = field(default_factory=list)

    def row(self, name: str) -> str:
        p50, p99 = (1_000 * float(np.quantile(self.ack_seconds, q)) for q in (0.5, 0.99))
        return (
            f"| {name} | {self.reports / self.seconds:,.0f} | {p50:,.0f} | {p99:,.0f} |"
            f" {self.cpu} |"
        )

    @property
    def cpu(self) -> str:
        """Of servers and database, in CPU seconds for 1 000 reports."""
        parts = (sum(one.servers for one in self.used), sum(one.database for one in self.used))
        return " | ".join(f"{1_000 * part / self.reports:.2f}" for part in parts)


class Pusher:
    """One trainer's shipper, reduced to its pushes."""

    def __init__(self, server: RunningServer, run_id: str) -> None:
        self._stub = TelemetryStub(grpc.insecure_channel(server.grpc_target))
        self._metadata = (("authorization", f"Bearer {server.token}"),)
        self._run_id = run_id
        self._seq = 0
        self._stub.Hello(hello(run_id), metadata=self._metadata, timeout=30)

    def push(self, reports: int) -> float:
        """Push so many new reports; returns the seconds until they were acknowledged."""
        new = some_reports(self._seq + 1, reports, SCALARS, HISTOGRAMS)
        self._seq += reports
        records = [wire_record(report.step, report) for report in new]
        request = pb.PushRequest(run_id=self._run_id, incarnation="first", rank=0, records=records)
        started = time.perf_counter()
        reply = self._stub.Push(request, metadata=self._metadata, timeout=60)
        assert reply.acked_through == self._seq
        return time.perf_counter() - started


def hello(run_id: str, rank: int = 0, world_size: int = 1) -> pb.HelloRequest:
    started = replace(
        RUN, run_id=run_id, rank=rank, world_size=world_size, name=run_id, started_at=time.time()
    )
    return pb.HelloRequest(run=encode_payload(started), protocol_version=PROTOCOL_VERSION)


def record_at(step: int, template: StepReport) -> pb.Record:
    """A template's report under another step."""
    return wire_record(step, replace(template, step=step))


Mode = Callable[[Pusher, float, Callable[[float, int], None]], None]


def paced(pusher: Pusher, end: float, done: Callable[[float, int], None]) -> None:
    due = time.perf_counter()
    while due < end:
        time.sleep(max(0.0, due - time.perf_counter()))
        done(pusher.push(1), 1)
        due = max(due + PACE_SECONDS, time.perf_counter())


def flat_out(pusher: Pusher, end: float, done: Callable[[float, int], None]) -> None:
    while time.perf_counter() < end:
        done(pusher.push(REPORTS_IN_A_PUSH), REPORTS_IN_A_PUSH)


def measure_round(candidate: Candidate, mode: Mode, into: Measured) -> None:
    servers = candidate.servers
    pushers = [
        Pusher(servers[n % len(servers)], f"run-{time.time_ns()}-{n}")
        for n in range(max(TRAINERS, len(servers)))
    ]
    lock = threading.Lock()

    def done(ack_seconds: float, reports: int) -> None:
        with lock:
            into.ack_seconds.append(ack_seconds)
            into.reports += reports

    before = candidate.used()
    started = time.perf_counter()
    threads = [
        threading.Thread(target=mode, args=(pusher, started + SECONDS, done)) for pusher in pushers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    into.seconds += time.perf_counter() - started
    into.used.append(candidate.used().since(before))


@contextlib.contextmanager
def candidate(database: str, servers: int = 1) -> Iterator[Candidate]:
    """So many running servers over one database of this kind."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        environment, postgresql = {}, None
        if database == POSTGRESQL:
            postgresql = stack.enter_context(PostgreSQL(*DURABLE))
            environment = {
                "ISENTROPE_DATABASE_URL": stack.enter_context(postgresql.empty_database())
            }
        running = []
        for number in range(servers):
            home = Path(folder) / str(number) / "home"
            home.parent.mkdir()
            running.append(RunningServer(home))
            running[-1].more_environment = dict(environment)
            stack.enter_context(running[-1])
        name = database if servers == 1 else f"{database}, {servers} servers"
        yield Candidate(name, tuple(running), postgresql)


HEADER = [
    "| | reports/s | ack p50, ms | ack p99, ms | servers' CPU s / 1 000 | database's |",
    "|---|---|---|---|---|---|",
]


def both() -> Iterator[str]:
    """The rows of the table of both databases."""
    yield from HEADER
    with candidate(SQLITE) as sqlite, candidate(POSTGRESQL) as postgresql:
        for title, mode in (("paced", paced), ("flat out", flat_out)):
            found = {one.name: Measured() for one in (sqlite, postgresql)}
            for _ in range(ROUNDS):
                for one in (sqlite, postgresql):
                    measure_round(one, mode, found[one.name])
            yield from (measured.row(f"{title}, {name}") for name, measured in found.items())


def several(counts: Sequence[int]) -> Iterator[str]:
    """Flat out on more and more servers over one PostgreSQL."""
    yield from HEADER
    for count in counts:
        with candidate(POSTGRESQL, count) as one:
            measured = Measured()
            for _ in range(ROUNDS):
                measure_round(one, flat_out, measured)
            yield measured.row(f"flat out, {count} over one PostgreSQL")


def many(counts: Sequence[int], database: str, period: float, seconds: float) -> Iterator[str]:
    """More and more runs that push a report every `period` seconds."""
    yield (
        "| runs | reports/s | servers' CPU s / 1 000 | database's | ack p50, p99, ms "
        "| a connected run that is silent, CPU ms a minute | memory a run, KiB |"
    )
    yield "|---|---|---|---|---|---|---|"
    with asyncio.Runner() as loop:  # one for all counts: gRPC asks the first it has seen
        for count in counts:
            with candidate(database) as one:
                yield loop.run(_many(one, count, period, seconds))


class _Client:
    """One run's shipper: a connection of its own, a Watch stream, and a report now and then."""

    def __init__(self, server: RunningServer, number: int, templates: Sequence[StepReport]) -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)
        self._channel = grpc.aio.insecure_channel(server.grpc_target, options=options)
        self._stub: Any = TelemetryStub(self._channel)
        self._metadata = (("authorization", f"Bearer {server.token}"),)
        self._run_id = f"run-{number}"
        self._templates = templates
        self._seq = 0

    async def connect(self, at_once: asyncio.Semaphore) -> None:
        async with at_once:
            await self._stub.Hello(hello(self._run_id), metadata=self._metadata, timeout=120)
            self._watching = asyncio.create_task(self._watch())

    async def push_until(self, end: float, period: float, into: Measured) -> None:
        due = time.monotonic() + random.uniform(0, period)
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._seq += 1
            record = record_at(self._seq, self._templates[self._seq % len(self._templates)])
            request = pb.PushRequest(
                run_id=self._run_id, incarnation="first", rank=0, records=[record]
            )
            started = time.perf_counter()
            while not await self._acknowledged(request):
                await asyncio.sleep(RETRY_SECONDS)
            into.ack_seconds.append(time.perf_counter() - started)
            into.reports += 1
            due += period

    async def _acknowledged(self, request: pb.PushRequest) -> bool:
        """Whether a push came through; a shipper sends it again where it did not."""
        try:
            reply = await self._stub.Push(request, metadata=self._metadata, timeout=120)
        except grpc.aio.AioRpcError:
            return False
        return bool(reply.acked_through == self._seq)

    async def _watch(self) -> None:
        """As a shipper: again where the stream ends."""
        request = pb.WatchRequest(run_id=self._run_id, incarnation="first", rank=0)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in self._stub.Watch(request, metadata=self._metadata):
                    pass
            await asyncio.sleep(RETRY_SECONDS)

    async def close(self) -> None:
        self._watching.cancel()
        await self._channel.close()


async def _many(one: Candidate, count: int, period: float, seconds: float) -> str:
    (server,) = one.servers
    # What a probe really sends, with tokens, rollouts and what-if sums; later steps have outcomes
    # of a control.
    templates = countdown_run().reports[:80]
    empty = psutil.Process(server.pid).memory_info().rss
    clients = [_Client(server, number, templates) for number in range(count)]
    at_once = asyncio.Semaphore(CONNECTING_AT_ONCE)
    await asyncio.gather(*(client.connect(at_once) for client in clients))
    before = one.used()
    await asyncio.sleep(seconds)
    idle = one.used().since(before)
    measured = Measured()
    before = one.used()
    end = time.monotonic() + seconds
    await asyncio.gather(*(client.push_until(end, period, measured) for client in clients))
    busy = one.used().since(before)
    # What waiting takes is a figure of its own.
    measured.used = [
        Used(max(0.0, busy.servers - idle.servers), max(0.0, busy.database - idle.database))
    ]
    memory = (psutil.Process(server.pid).memory_info().rss - empty) / 1024 / count
    p50, p99 = (1_000 * float(np.quantile(measured.ack_seconds, q)) for q in (0.5, 0.99))
    waiting = 1_000 * (idle.servers + idle.database) / count * 60 / seconds
    await asyncio.gather(*(client.close() for client in clients))
    return (
        f"| {count}, {one.name} | {measured.reports / seconds:.0f} | {measured.cpu} | {p50:.0f},"
        f" {p99:.0f} | {waiting:.1f} | {memory:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=["both", "servers", "clients"], default="both")
    parser.add_argument("counts", nargs="*", type=int, help="of servers, or of runs")
    parser.add_argument("--database", choices=[SQLITE, POSTGRESQL], default=SQLITE)
    parser.add_argument(
        "--period", type=float, default=10.0, help="seconds between two reports of a run"
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    if given.part == "both":
        rows = both()
    elif given.part == "servers":
        rows = several(given.counts or (1, 2, 3))
    else:
        rows = many(given.counts or (100, 1_000), given.database, given.period, given.seconds)
    for row in rows:
        print(row, flush=True)


if __name__ == "__main__":
    main()
