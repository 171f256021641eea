"""Bytes per step, and the time one series takes: rows of a thousand reports, and of one push.

`python -m tests.benchmarks.storage [sizes|million|ingest|recorded] ...`; a step has 60 scalars and
4 histograms of 64 bins."""

from __future__ import annotations

import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from isentrope_server.store import runs, streams
from isentrope_server.store.database import Database, upgrade
from isentrope_server.store.reports import histograms, packing, records, series
from isentrope_server.store.reports.packing import FullStream
from isentrope_server.store.reports.records import Arrival
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.rows import RowSizes
from isentrope_wire.reports import ScoreHistogram, StepReport
from tests.probe.transport.fake_telemetry import RUN

SCALARS, HISTOGRAMS, BINS = 60, 4, 64
STEPS = 20_000
MILLION = 1_000_000
MILLION_METRICS = 2
WITH_HISTOGRAM = 100_000
TOKENS = 8_192
"""Of a step: what its histograms count."""
POINTS = 1_500
_BATCH = 1_000


def reports(first: int, count: int, scalars: int, histogram_count: int) -> list[StepReport]:
    """Steps of a run whose values wander like measurements: no two digits of them are alike."""
    random = np.random.default_rng(first)
    values = 1.0 + 0.1 * random.normal(size=(count, scalars))
    shape = np.exp(-(np.linspace(-3, 3, BINS) ** 2))
    counts = random.multinomial(TOKENS, shape / shape.sum(), size=(count, histogram_count))
    return [
        StepReport(
            step=first + row,
            recorded_at=1.7e9 + first + row + float(random.random()),
            scalars={f"metric/{column}": float(values[row, column]) for column in range(scalars)},
            histograms=tuple(
                ScoreHistogram(
                    name=f"histogram/{index}",
                    low=-1.0,
                    high=1.0,
                    counts=tuple(counts[row, index].tolist()),
                )
                for index in range(histogram_count)
            ),
            labels={"control/method": "clip_v"},
        )
        for row in range(count)
    ]


class OurStore:
    """The server's own store in a file."""

    def __init__(self, file: Path, *, packing: bool = True, push: int = 250) -> None:
        self.file = file
        self.packing = packing
        self.push = push
        self.database = Database(f"sqlite:///{file}")
        with self.database.writing_engine.begin() as connection:
            upgrade(connection)
            self.run_key = runs.create(connection, RUN, 1.0)
            self._stream_key = streams.create(connection, self.run_key, RUN, 1.0)

    def write(self, batch: Sequence[StepReport]) -> None:
        first = batch[0].step
        arrivals = [
            Arrival(seq=report.step + 1, payload=b"", payload_hash=os.urandom(16), message=report)
            for report in batch
        ]
        for start in range(0, len(arrivals), self.push):
            with self.database.writing_engine.begin() as connection:
                records.append(
                    connection,
                    arrivals[start : start + self.push],
                    run_key=self.run_key,
                    stream_key=self._stream_key,
                    after_position=first + start,
                    known_layouts={},
                    now=2e9,
                )
        if self.packing:
            self._pack(len(batch))

    def _pack(self, reports: int) -> None:
        stream = FullStream(
            run_key=self.run_key, run_id="r", stream_key=self._stream_key, reports=reports
        )
        with self.database.reading() as connection:
            joined = packing.join_next(connection, stream)
        assert joined is not None
        with self.database.writing_engine.begin() as connection:
            packing.replace_by(connection, joined)

    def read(self) -> int:
        with self.database.reading() as connection:
            found = series.read(connection, self.run_key, ["metric/7"], StepRange())["metric/7"]
        return len(found.steps)

    def close(self) -> None:
        self.database.close()


def sizes(steps: int = STEPS) -> Iterator[str]:
    """Bytes on disk, CPU time of writing a step, and of reading one series of all steps; the stores
    take turns."""
    with tempfile.TemporaryDirectory() as folder:
        stores = {
            "packed": OurStore(Path(folder, "packed.db")),
            "a row per push of 250": OurStore(Path(folder, "pushes.db"), packing=False),
            "a row per push of 25": OurStore(Path(folder, "reports.db"), packing=False, push=25),
        }
        writing = dict.fromkeys(stores, 0.0)
        for first in range(0, steps, _BATCH):
            batch = reports(first, _BATCH, SCALARS, HISTOGRAMS)
            for name, store in stores.items():
                started = time.process_time()
                store.write(batch)
                writing[name] += time.process_time() - started
        reading: dict[str, list[float]] = {name: [] for name in stores}
        for _ in range(7):
            for name, store in stores.items():
                started = time.process_time()
                assert store.read() == steps
                reading[name].append(time.process_time() - started)
        yield (
            f"| {steps} steps | bytes per step | writing, µs of CPU per step | one series, ms of"
            " CPU |"
        )
        yield "|---|---|---|---|"
        for name, store in stores.items():
            store.close()
            yield (
                f"| {name} | {_file_bytes(store.file) / steps:.0f} |"
                f" {writing[name] / steps * 1e6:.0f} |"
                f" {statistics.median(reading[name]) * 1e3:.1f} |"
            )


def million(steps: int = MILLION) -> Iterator[str]:
    """Reading a run of a million steps, warm: milliseconds, median and 95th percentile of 40; in
    brackets of CPU."""
    with tempfile.TemporaryDirectory() as folder:
        store = OurStore(Path(folder, "million.db"))
        for first in range(0, steps, _BATCH):
            store.write(
                reports(first, _BATCH, MILLION_METRICS, int(first >= steps - WITH_HISTOGRAM))
            )

        def reduced(first: int | None, name: str = "metric/1") -> None:
            with store.database.reading() as connection:
                found = series.read(connection, store.run_key, [name], StepRange(first=first))[name]
            assert series.columns(found, POINTS).reduced

        def tick() -> None:
            with store.database.reading() as connection:
                series.read(
                    connection, store.run_key, ["metric/1"], StepRange(), after_position=steps - 1
                )

        def distributions(count: int, points: int) -> None:
            with store.database.reading() as connection:
                wanted = StepRange(first=steps - count)
                histograms.read(connection, store.run_key, "histogram/0", wanted, points=points)

        yield "| of 1 000 000 steps | median | 95th percentile |"
        yield "|---|---|---|"
        yield _timed(f"the whole series in {POINTS} buckets", lambda: reduced(None))
        yield _timed(f"100 000 steps in {POINTS} buckets", lambda: reduced(steps - 100_000))
        yield _timed("a live tick with `since`", tick)
        yield _timed(
            "a histogram over 10 000 steps in 200 buckets", lambda: distributions(10_000, 200)
        )
        yield _timed(
            "a histogram over 100 000 steps in 200 buckets",
            lambda: distributions(WITH_HISTOGRAM, 200),
        )
        store.close()


def _timed(name: str, work: Callable[[], object], rounds: int = 40) -> str:
    wall, cpu = [], []
    for turn in range(rounds + 1):
        started, started_cpu = time.perf_counter(), time.process_time()
        work()
        if turn:
            wall.append((time.perf_counter() - started) * 1e3)
            cpu.append((time.process_time() - started_cpu) * 1e3)
    tail = min(rounds - 1, round(rounds * 0.95))
    return (
        f"| {name} | {statistics.median(wall):.1f} ({statistics.median(cpu):.1f}) "
        f"| {sorted(wall)[tail]:.1f} ({sorted(cpu)[tail]:.1f}) |"
    )


def _file_bytes(file: Path) -> int:
    """The database with its log written back."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return file.stat().st_size


def ingest(seconds: float = 60.0) -> Iterator[str]:
    """Reports a second through gRPC into SQLite with synchronous=FULL, and what acks and readers
    wait meanwhile."""
    from tests.benchmarks.storage_ingest import measured

    return measured(seconds)


def recorded(count: int = 20) -> Iterator[str]:
    """The recorded run of the reference trainer, with tokens, rollouts and what-if sums: bytes a
    step on the wire, in the database while the run is live, and packed after its end."""
    from isentrope_wire.codec import encode_payload
    from isentrope_wire.reports import RunFinished
    from tests.countdown import countdown_run
    from tests.server.compaction import NEVER, pack_all
    from tests.server.in_thread import ServerInThread
    from tests.server.rank import Rank

    steps = countdown_run().reports
    wire = sum(len(encode_payload(report)) for report in steps) / len(steps)
    yield f"| {count} runs of {len(steps)} steps | bytes a step | a run, MB |"
    yield "|---|---|---|"
    yield f"| on the wire | {wire:.0f} | {wire * len(steps) / 1e6:.2f} |"
    with tempfile.TemporaryDirectory() as home:
        with ServerInThread(Path(home), housekeeping_interval_seconds=NEVER) as server:
            file = Path(home, "isentrope.db")
            ranks = [Rank(server) for _ in range(count)]
            for rank in ranks:
                for first in range(0, len(steps), 50):
                    rank.send(*steps[first : first + 50])
            live = _file_bytes(file) / count / len(steps)
            yield f"| in the database, live | {live:.0f} | {live * len(steps) / 1e6:.2f} |"
            for rank in ranks:
                rank.send(RunFinished(status="finished", finished_at=time.time()))
            pack_all(server, RowSizes())
        # What packing freed is used by later reports; VACUUM gives it back, so that the rest can be
        # counted.
        with sqlite3.connect(file) as connection:
            connection.execute("VACUUM")
        connection.close()
        packed = _file_bytes(file) / count / len(steps)
        yield f"| in the database, packed | {packed:.0f} | {packed * len(steps) / 1e6:.2f} |"


def main(names: Sequence[str]) -> None:
    parts = {"sizes": sizes, "million": million, "ingest": ingest, "recorded": recorded}
    for name in names or parts:
        work = parts[name]
        print(f"\n{work.__doc__}\n")
        for line in work():
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
