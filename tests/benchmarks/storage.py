"""Bytes per step, and the time one series takes: packed blocks against a row per scalar and JSON per step.

`python -m tests.benchmarks.storage [sizes|million|tasks|ingest|recorded] ...`; a step has 60 scalars and 4 histograms of 64 bins.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from isentrope_server.store import runs, streams
from isentrope_server.store.database import Database, upgrade
from isentrope_server.store.reports import compacting, histograms, records, series
from isentrope_server.store.reports.compacting import BlockSizes
from isentrope_server.store.reports.records import Arrival
from isentrope_server.store.reports.series import StepRange
from isentrope_wire.reports import RunStarted, ScoreHistogram, StepReport

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
                ScoreHistogram(name=f"histogram/{index}", low=-1.0, high=1.0, counts=tuple(counts[row, index].tolist()))
                for index in range(histogram_count)
            ),
            labels={"control/method": "clip_v"},
        )
        for row in range(count)
    ]


class Store(Protocol):
    """One way to keep reports in an SQLite file."""

    name: str
    file: Path

    def write(self, batch: Sequence[StepReport]) -> None: ...

    def read(self) -> int:
        """Read one series; how many steps it has."""

    def close(self) -> None: ...


class OurStore:
    """The server's own store in a file."""

    name = "packed blocks"

    def __init__(self, file: Path, *, packing: bool = True) -> None:
        self.file = file
        self.packing = packing
        self.database = Database(f"sqlite:///{file}")
        started = RunStarted(
            run_id="r", incarnation="a", rank=0, world_size=1, name="", project="", started_at=1.0, probe_version="0"
        )
        with self.database.writing_engine.begin() as connection:
            upgrade(connection)
            self.run_key = runs.create(connection, started, 1.0)
            self._stream_key = streams.create(connection, self.run_key, started, 1.0)

    def write(self, batch: Sequence[StepReport]) -> None:
        first = batch[0].step
        arrivals = [
            Arrival(seq=report.step + 1, payload=b"", payload_hash=os.urandom(16), message=report) for report in batch
        ]
        with self.database.writing_engine.begin() as connection:
            records.append(
                connection,
                arrivals,
                run_key=self.run_key,
                stream_key=self._stream_key,
                after_position=first,
                known_layouts={},
                now=2e9,
            )
        if self.packing:
            self._pack(first + len(batch))

    def _pack(self, acked_through: int) -> None:
        stream = compacting.FullStream(
            run_key=self.run_key, run_id="r", stream_key=self._stream_key, acked_through=acked_through, blocks=1
        )
        with self.database.reading() as connection:
            packed = compacting.pack_next(connection, stream, BlockSizes())
        assert packed is not None
        with self.database.writing_engine.begin() as connection:
            compacting.replace_by(connection, packed)

    def read(self) -> int:
        with self.database.reading() as connection:
            found = series.read(connection, self.run_key, ["metric/7"], StepRange())["metric/7"]
        return len(found.steps)

    def close(self) -> None:
        self.database.close()


class RowPerScalar:
    """What most trackers do: one row for each value, one for each histogram."""

    name = "a row per scalar"

    def __init__(self, file: Path) -> None:
        self.file = file
        self.connection = sqlite3.connect(file)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("CREATE TABLE names (key INTEGER PRIMARY KEY, name TEXT UNIQUE)")
        self.connection.execute(
            "CREATE TABLE points (run INTEGER, name INTEGER, step INTEGER, value REAL, PRIMARY KEY (run, name, step))"
        )
        self.connection.execute(
            "CREATE TABLE distributions (run INTEGER, name TEXT, step INTEGER, low REAL, high REAL, counts BLOB,"
            " PRIMARY KEY (run, name, step))"
        )

    def write(self, batch: Sequence[StepReport]) -> None:
        names = {name: index for index, name in enumerate(sorted(batch[0].scalars))}
        with self.connection:
            self.connection.executemany(
                "INSERT INTO points VALUES (1, ?, ?, ?)",
                [(names[name], report.step, value) for report in batch for name, value in report.scalars.items()],
            )
            self.connection.executemany(
                "INSERT INTO distributions VALUES (1, ?, ?, ?, ?, ?)",
                [
                    (h.name, report.step, h.low, h.high, np.array(h.counts, dtype="<f4").tobytes())
                    for report in batch
                    for h in report.histograms
                ],
            )

    def read(self) -> int:
        rows = self.connection.execute("SELECT step, value FROM points WHERE run = 1 AND name = 7 ORDER BY step")
        found = rows.fetchall()
        steps, values = (np.array(column) for column in zip(*found, strict=True))
        assert len(values) == len(steps)
        return len(steps)

    def close(self) -> None:
        self.connection.close()


class JsonPerStep:
    """One JSON document for each step."""

    name = "JSON per step"

    def __init__(self, file: Path) -> None:
        self.file = file
        self.connection = sqlite3.connect(file)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("CREATE TABLE steps (run INTEGER, step INTEGER, report TEXT, PRIMARY KEY (run, step))")

    def write(self, batch: Sequence[StepReport]) -> None:
        rows = [
            (report.step, json.dumps({"scalars": report.scalars, "histograms": [h.counts for h in report.histograms]}))
            for report in batch
        ]
        with self.connection:
            self.connection.executemany("INSERT INTO steps VALUES (1, ?, ?)", rows)

    def read(self) -> int:
        rows = self.connection.execute(
            "SELECT step, json_extract(report, '$.scalars.metric/7') FROM steps WHERE run = 1 ORDER BY step"
        )
        steps, values = (np.array(column) for column in zip(*rows.fetchall(), strict=True))
        assert len(values) == len(steps)
        return len(steps)

    def close(self) -> None:
        self.connection.close()


def sizes(steps: int = STEPS) -> Iterator[str]:
    """Bytes on disk, CPU time of writing a step, and of reading one series of all steps; the candidates take turns."""
    with tempfile.TemporaryDirectory() as folder:
        stores: list[Store] = [
            OurStore(Path(folder, "packed.db")),
            _unpacked(Path(folder, "rows.db")),
            RowPerScalar(Path(folder, "scalars.db")),
            JsonPerStep(Path(folder, "json.db")),
        ]
        writing = {store.name: 0.0 for store in stores}
        for first in range(0, steps, _BATCH):
            batch = reports(first, _BATCH, SCALARS, HISTOGRAMS)
            for store in stores:
                started = time.process_time()
                store.write(batch)
                writing[store.name] += time.process_time() - started
        reading: dict[str, list[float]] = {store.name: [] for store in stores}
        for _ in range(7):
            for store in stores:
                started = time.process_time()
                assert store.read() == steps
                reading[store.name].append(time.process_time() - started)
        yield f"| {steps} steps | bytes per step | writing, µs of CPU per step | one series, ms of CPU |"
        yield "|---|---|---|---|"
        for store in stores:
            store.close()
            yield (
                f"| {store.name} | {_file_bytes(store.file) / steps:.0f} | {writing[store.name] / steps * 1e6:.0f} "
                f"| {statistics.median(reading[store.name]) * 1e3:.1f} |"
            )


def _unpacked(file: Path) -> OurStore:
    store = OurStore(file, packing=False)
    store.name = "a row per report (before packing)"
    return store


def million(steps: int = MILLION) -> Iterator[str]:
    """Reading a run of a million steps, warm: milliseconds, median and 95th percentile of 40; in brackets of CPU."""
    with tempfile.TemporaryDirectory() as folder:
        store = OurStore(Path(folder, "million.db"))
        for first in range(0, steps, _BATCH):
            store.write(reports(first, _BATCH, MILLION_METRICS, int(first >= steps - WITH_HISTOGRAM)))

        def reduced(first: int | None, name: str = "metric/1") -> None:
            with store.database.reading() as connection:
                found = series.read(connection, store.run_key, [name], StepRange(first=first))[name]
            assert series.reduce(found, POINTS) is not None

        def tick() -> None:
            with store.database.reading() as connection:
                series.read(connection, store.run_key, ["metric/1"], StepRange(), after_position=steps - 1)

        def distributions(count: int, points: int) -> None:
            with store.database.reading() as connection:
                wanted = StepRange(first=steps - count)
                histograms.read(connection, store.run_key, "histogram/0", wanted, points=points)

        yield "| of 1 000 000 steps | median | 95th percentile |"
        yield "|---|---|---|"
        yield _timed(f"the whole series in {POINTS} buckets", lambda: reduced(None))
        yield _timed(f"100 000 steps in {POINTS} buckets", lambda: reduced(steps - 100_000))
        yield _timed("a live tick with `since`", tick)
        yield _timed("a histogram over 10 000 steps in 200 buckets", lambda: distributions(10_000, 200))
        yield _timed("a histogram over 100 000 steps in 200 buckets", lambda: distributions(WITH_HISTOGRAM, 200))
        store.close()


def tasks(steps: int = 10_000, left_unpacked: int = 2_000) -> Iterator[str]:
    """A run each step of which scores 30 of 200 tasks, and so has a layout of its own, beside one that scores the same 30
    in every step; the newest 2 000 of 10 000 steps unpacked, warm: milliseconds, median and 95th percentile of 40; in
    brackets of CPU."""
    random = np.random.default_rng(0)
    choices: dict[str, Callable[[], Sequence[int]]] = {
        "30 of 200 tasks": lambda: random.choice(200, 30, replace=False).tolist(),
        "always the same": lambda: range(30),
    }
    yield "| of 10 000 steps | median | 95th percentile |"
    yield "|---|---|---|"
    for kind, choose in choices.items():
        with tempfile.TemporaryDirectory() as folder:
            store = OurStore(Path(folder, "tasks.db"))
            for first in range(0, steps, _BATCH):
                store.packing = first < steps - left_unpacked
                store.write(
                    [
                        replace(report, scalars={**report.scalars, **{f"task/{task}": 1.0 for task in choose()}})
                        for report in reports(first, _BATCH, SCALARS, HISTOGRAMS)
                    ]
                )
            yield _timed(f"{kind}: newest values of all metrics", partial(_newest, store))
            yield _timed(f"{kind}: a series of all steps", partial(_series, store, 0))
            yield _timed(f"{kind}: a live tick with `since`", partial(_series, store, steps - 1))
            store.close()


def _newest(store: OurStore) -> None:
    with store.database.reading() as connection:
        assert len(series.latest(connection, store.run_key)) >= SCALARS + 30


def _series(store: OurStore, after_position: int) -> None:
    with store.database.reading() as connection:
        found = series.read(connection, store.run_key, ["metric/1"], StepRange(), after_position=after_position)
        assert len(found["metric/1"].steps)


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
    """Reports a second through gRPC into SQLite with synchronous=FULL, and what acks and readers wait meanwhile."""
    from tests.benchmarks.storage_ingest import measured

    return measured(seconds)


def recorded(count: int = 20) -> Iterator[str]:
    """The recorded run of the reference trainer, with tokens, rollouts and what-if sums: bytes a step on the wire, in the
    database while the run is live, and packed after its end."""
    from isentrope_trainer.recording import SHIPPED, read_recording
    from isentrope_wire.codec import encode_payload
    from isentrope_wire.reports import RunFinished
    from tests.server.compaction import NEVER, pack_all
    from tests.server.in_thread import ServerInThread
    from tests.server.rank import Rank

    steps = read_recording(SHIPPED).reports
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
            pack_all(server, BlockSizes())
        # What packing freed is used by later reports; VACUUM gives it back, so that the rest can be counted.
        with sqlite3.connect(file) as connection:
            connection.execute("VACUUM")
        connection.close()
        packed = _file_bytes(file) / count / len(steps)
        yield f"| in the database, packed | {packed:.0f} | {packed * len(steps) / 1e6:.2f} |"


def main(names: Sequence[str]) -> None:
    parts = {"sizes": sizes, "million": million, "tasks": tasks, "ingest": ingest, "recorded": recorded}
    for name in names or parts:
        work = parts[name]
        print(f"\n{work.__doc__}\n")
        for line in work():
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
