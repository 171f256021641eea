"""Ingest: how many reports a second a server takes, and what its readers wait meanwhile.

A real `isentrope up` with its compactor; two ranks push batches of ready-made reports with a window
of unacknowledged ones, as fast as they are acknowledged or so many a second; a reader asks for
series, a step and the list of runs. Everything shares the machine.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx

from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub
from tests.benchmarks.ingest_databases import hello, record_at
from tests.benchmarks.measuring import cpu_seconds
from tests.benchmarks.storage import BINS, HISTOGRAMS, SCALARS, reports
from tests.system.running_server import RunningServer

RANKS = 2
REPORTS_IN_A_PUSH = 250
WINDOW = 4
"""Pushes of a rank on their way at once."""
ASKED_FOR = 5_000.0
"""Reports a second."""
_TEMPLATES = 64
_READ_EVERY_SECONDS = 0.25


@dataclass(slots=True)
class Waits:
    """Seconds each push and each reading took."""

    pushes: list[float] = field(default_factory=list)
    readings: list[float] = field(default_factory=list)


async def _measure(
    server: RunningServer,
    seconds: float,
    scalars: int,
    histograms: int,
    reports_a_second: float | None = None,
) -> tuple[int, Waits, float]:
    waits = Waits()
    end = time.monotonic() + seconds
    # Each place of a window sends at times of its own; what is late is sent at once.
    places = RANKS * WINDOW
    apart = 0.0 if reports_a_second is None else places * REPORTS_IN_A_PUSH / reports_a_second
    async with grpc.aio.insecure_channel(server.grpc_target) as channel:
        ranks = [
            _Rank(TelemetryStub(channel), server.token, rank, scalars, histograms)
            for rank in range(RANKS)
        ]
        for rank in ranks:
            await rank.hello()
        cpu = cpu_seconds(server.pid)
        reading = asyncio.create_task(_read_until(server, end, waits))
        pushing = (rank for _ in range(WINDOW) for rank in ranks)
        await asyncio.gather(
            *(
                rank.push_until(end, waits, apart * (place / places), apart)
                for place, rank in enumerate(pushing)
            )
        )
        cpu = cpu_seconds(server.pid) - cpu
        await reading
    return sum(rank.accepted for rank in ranks), waits, cpu


class _Rank:
    def __init__(self, stub: Any, token: str, rank: int, scalars: int, histograms: int) -> None:
        self.accepted = 0
        self._stub = stub
        self._rank = rank
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._seq = 0
        self._templates = list(reports(0, _TEMPLATES, scalars, histograms))

    async def hello(self) -> None:
        await self._stub.Hello(
            hello("flood", self._rank, RANKS), metadata=self._metadata, timeout=30
        )

    async def push_until(self, end: float, waits: Waits, after: float, apart: float) -> None:
        due = time.monotonic() + after
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += apart
            if time.monotonic() >= end:
                return
            records = list(self._next_records())
            started = time.monotonic()
            request = pb.PushRequest(
                run_id="flood", incarnation="first", rank=self._rank, records=records
            )
            reply = await self._stub.Push(request, metadata=self._metadata, timeout=60)
            assert not reply.quarantined
            waits.pushes.append(time.monotonic() - started)
            self.accepted += len(records)

    def _next_records(self) -> Iterator[pb.Record]:
        for _ in range(REPORTS_IN_A_PUSH):
            self._seq += 1
            yield record_at(self._seq, self._templates[self._seq % _TEMPLATES])


async def _read_until(server: RunningServer, end: float, waits: Waits) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    paths = (
        "/runs/flood/metrics/series?name=metric/7&points=1500",
        "/runs/flood/steps/100",
        "/runs",
        "/runs/flood/metrics",
    )
    async with httpx.AsyncClient(
        base_url=f"{server.url}/api/v1", headers=headers, trust_env=False, timeout=60
    ) as http:
        turn = 0
        while time.monotonic() < end:
            started = time.monotonic()
            answer = await http.get(paths[turn % len(paths)])
            if answer.status_code == 200:
                waits.readings.append(time.monotonic() - started)
            turn += 1
            await asyncio.sleep(_READ_EVERY_SECONDS)


def measured(seconds: float) -> Iterator[str]:
    """Whole reports as fast as they go and so many a second as are asked for; small ones as fast as
    they go."""
    yield (
        "| a report has | sent | reports/s | ack median, p99 | REST median, p95 | server CPU per"
        " report | bytes per step |"
    )
    yield "|---|---|---|---|---|---|---|"
    for scalars, histograms, rate in (
        (SCALARS, HISTOGRAMS, None),
        (SCALARS, HISTOGRAMS, ASKED_FOR),
        (10, 0, None),
    ):
        with tempfile.TemporaryDirectory() as folder:
            server = RunningServer(Path(folder))
            server.more_environment["ISENTROPE_DASHBOARD"] = "false"
            with server:
                accepted, waits, cpu = asyncio.run(
                    _measure(server, seconds, scalars, histograms, rate)
                )
            held = sum(path.stat().st_size for path in Path(folder).glob("isentrope.db*"))
        yield (
            f"| {scalars} scalars, {histograms} histograms of {BINS} bins |"
            f" {'as fast as it goes' if rate is None else f'{rate:.0f}/s'} |"
            f" {accepted / seconds:.0f} | {_milliseconds(waits.pushes, 0.5)},"
            f" {_milliseconds(waits.pushes, 0.99)} | {_milliseconds(waits.readings, 0.5)},"
            f" {_milliseconds(waits.readings, 0.95)} | {cpu / accepted * 1e6:.0f} µs |"
            f" {held / accepted:.0f} |"
        )


def _milliseconds(waits: list[float], quantile: float) -> str:
    if len(waits) < 2:
        return "-"
    value = statistics.quantiles(waits, n=100, method="inclusive")[round(quantile * 100) - 1]
    return f"{value * 1e3:.0f} ms"
