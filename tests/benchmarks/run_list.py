"""The list of runs: the time of a page, and what keeping the digests current takes.

    python -m tests.benchmarks.run_list [--runs 1000] [--live 200] [--steps 1000]

A page is timed over HTTP on this machine, from the request to the last byte; the processor's time is that of client and
server, which share a process. A round renews the digest of each live run
after one more step of it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from isentrope_server.digests import renew_digests
from isentrope_wire.reports import RunFinished, StepReport
from tests.server.compaction import NEVER
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

METRICS = 60
PAGES: Mapping[str, dict[str, Any]] = {
    "newest 50": {"limit": 50},
    "50 by attention": {"order": "attention", "limit": 50},
    "50 by attention, searched": {"order": "attention", "limit": 50, "q": "grpo", "tag": ["seed-1", "seed-2"]},
}


def _report(step: int) -> StepReport:
    scalars = {f"metric/{number}": 0.5 for number in range(METRICS - 2)}
    scalars |= {"entropy/mean": 0.6 * 0.998**step, "reward/mean": 1 - 0.999**step}
    return StepReport(step=step, recorded_at=time.time(), scalars=scalars)


def _made(server: ServerInThread, number: int, steps: int, *, is_live: bool) -> Rank:
    described = {"name": f"grpo-{number}", "project": f"p{number % 7}", "tags": (f"seed-{number % 5}",)}
    rank = Rank(server, config={f"option {index}": index for index in range(30)}, **described)  # type: ignore[arg-type]
    for first in range(1, steps, 250):
        rank.send(*map(_report, range(first, min(steps, first + 250))))
    if not is_live:
        rank.send(RunFinished(status="finished", finished_at=time.time()))
    return rank


def _milliseconds(work: Callable[[], object], rounds: int = 60) -> str:
    times, used = [], time.process_time()
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - started))
    cpu = 1e3 * (time.process_time() - used) / rounds
    return f"{statistics.median(times):.1f} | {sorted(times)[int(0.95 * rounds)]:.1f} | {cpu:.1f}"


def measure(count: int, live: int, steps: int) -> Iterator[str]:
    """Rows of a Markdown table."""
    with (
        tempfile.TemporaryDirectory() as home,
        ServerInThread(Path(home), housekeeping_interval_seconds=NEVER, silent_after_seconds=NEVER) as server,
    ):
        ranks = [
            _made(server, number, steps if number < live else 40, is_live=number < live) for number in range(count)
        ]
        live_ranks = ranks[:live]
        while asyncio.run(renew_digests(server.backend, rest=0)):
            pass
        yield f"| {count} runs, {live} of them live with {steps} steps | p50, ms | p95, ms | processor, ms |\n|---|---|---|---|"
        for name, query in PAGES.items():
            yield f"| {name} | {_milliseconds(partial(server.http.get, '/api/v1/runs', params=query))} |"
        yield f"| counts | {_milliseconds(lambda: server.http.get('/api/v1/run-counts'))} |"
        seconds = []
        for extra in range(3):
            for rank in live_ranks:
                rank.send(_report(steps + extra))
            started = time.process_time()
            renewed = 0
            while some := asyncio.run(renew_digests(server.backend, rest=0)):
                renewed += some
            seconds.append(time.process_time() - started)
            assert renewed == live
        each = statistics.median(seconds) / max(1, live)
        yield f"\nA round of {live} digests: {1e3 * statistics.median(seconds):.0f} ms of one processor, {1e3 * each:.1f} ms each."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in (("--runs", 1_000), ("--live", 200), ("--steps", 1_000)):
        parser.add_argument(option, type=int, default=default)
    given = parser.parse_args()
    print("\n".join(measure(given.runs, given.live, given.steps)))
