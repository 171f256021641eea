"""Packed reports: they read as before, are stored once, and are in one place whatever happens."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sqlalchemy import event, func, select

from isentrope_server.store.reports import compacting
from isentrope_server.store.reports.blocks import pack_arrays, unpack_arrays
from isentrope_server.store.reports.compacting import BlockOvertaken, BlockSizes
from isentrope_server.store.tables import blocks, metric_chunks, records
from isentrope_wire.codec import record_of, record_to_pb
from isentrope_wire.reports import Gap, RunFinished, ScoreHistogram
from tests.server.compaction import (
    EVERYTHING,
    NEVER,
    eventful_run,
    everything_said_of,
    key_of,
    live_after,
    pack_all,
    unpacked_reports,
)
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.killed_compactor import POINTS, SIZES
from tests.server.rank import Rank, step_report

DATABASES = ("sqlite", "postgresql")


@pytest.fixture
def still(make_server: MakeServer) -> ServerInThread:
    """A server that packs only on request."""
    return make_server(housekeeping_interval_seconds=NEVER)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_packing_changes_no_answer(still: ServerInThread, seed: int) -> None:
    rank = eventful_run(still, seed)
    before = everything_said_of(still, rank)
    assert pack_all(still, BlockSizes(reports=16, left_unpacked=20, fewest=1)) >= 5
    assert 0 < unpacked_reports(still, rank) < 180
    half_packed = everything_said_of(still, rank)
    assert {path for path in before if half_packed[path] != before[path]} == set()
    pack_all(still)
    assert unpacked_reports(still, rank) < 48
    packed = everything_said_of(still, rank)
    assert {path for path in before if packed[path] != before[path]} == set()


def test_returning_listener_gets_packed_reports_in_order(still: ServerInThread) -> None:
    rank = eventful_run(still, 3)
    received = live_after(still, rank, 0, limit=1000)
    pack_all(still)
    place, heard = 0, []
    while more := live_after(still, rank, place, limit=7):
        heard += more
        place = more[-1].position
    assert repr(heard) == repr(received)
    assert len(received) > 150


def test_a_late_repeat_of_a_packed_report_counts_as_accepted(still: ServerInThread) -> None:
    rank = Rank(still)
    reports = [step_report(step, {"x": float(step)}) for step in range(40)]
    rank.send(*reports)
    pack_all(still)
    unpacked = unpacked_reports(still, rank)
    assert unpacked < 16
    again = rank.push([record_to_pb(record_of(1 + index, report)) for index, report in enumerate(reports)])
    assert (again.acked_through, list(again.quarantined)) == (40, [])
    assert unpacked_reports(still, rank) == unpacked
    changed = rank.push([record_to_pb(record_of(3, step_report(2, {"x": 99.0})))])
    assert [(q.seq, q.code) for q in changed.quarantined] == [(3, "key_conflict")]
    assert changed.acked_through == 40
    columns = still.http.get(f"{rank.path}/metrics/series?name=x").json()["series"]["x"]
    assert columns["value"] == [float(step) for step in range(40)]
    assert rank.report(40, x=40.0).acked_through == 41


def test_nothing_is_packed_before_what_was_sent_before_it_has_come(still: ServerInThread) -> None:
    rank = Rank(still)
    rank.send(*(step_report(step, {"x": 1.0}) for step in range(5)))
    records_ = [record_to_pb(record_of(seq, step_report(seq, {"x": 1.0}))) for seq in range(7, 47)]
    rank.push(records_)
    pack_all(still, BlockSizes(reports=10, left_unpacked=0, fewest=1))
    assert unpacked_reports(still, rank) >= 40
    late = rank.push([record_to_pb(record_of(6, step_report(6, {"x": 1.0})))])
    assert late.acked_through == 46
    pack_all(still, BlockSizes(reports=10, left_unpacked=0, fewest=1))
    assert unpacked_reports(still, rank) < 10


def test_records_that_are_no_reports_stay_rows_and_count(still: ServerInThread) -> None:
    rank = Rank(still)
    rank.send(*(step_report(step, {"x": 1.0}) for step in range(20)), Gap(first_seq=21, last_seq=21, reason="full"))
    rank.send(*(step_report(step, {"x": 1.0}) for step in range(20, 40)))
    done = rank.send(RunFinished(status="finished", finished_at=2.0, step=39))
    assert done.acked_through == 42
    pack_all(still)
    assert unpacked_reports(still, rank) == 0
    with still.backend.database.reading() as connection:
        kinds = connection.execute(select(records.c.kind).where(records.c.run_key == key_of(still, rank))).scalars()
        assert sorted(kinds) == ["gap", "run_finished"]
    assert rank.hello().acked_through == 42


def test_a_run_that_goes_on_keeps_its_newest_reports_unpacked_and_one_that_ended_keeps_few(
    still: ServerInThread,
) -> None:
    sizes = BlockSizes(reports=10, left_unpacked=10, fewest=4)
    rank = Rank(still)
    rank.send(*(step_report(step, {"x": 1.0}) for step in range(37)))
    assert pack_all(still, sizes) == 2
    assert unpacked_reports(still, rank) == 17
    rank.send(RunFinished(status="finished", finished_at=2.0))
    assert pack_all(still, sizes) == 2
    assert unpacked_reports(still, rank) == 0
    short = Rank(still)
    short.send(*(step_report(step, {"x": 1.0}) for step in range(3)), RunFinished(status="failed", finished_at=2.0))
    assert pack_all(still, sizes) == 0
    assert unpacked_reports(still, short) == 3


def test_a_block_holds_no_more_bytes_than_it_may_and_at_least_one_report(still: ServerInThread) -> None:
    rank = Rank(still)
    large = {f"m/{number}": 1.0 for number in range(100)}
    rank.send(*(step_report(step, {"x": 1.0} if step < 30 else large) for step in range(40)))
    rank.send(RunFinished(status="finished", finished_at=2.0))
    # 30 of 8 bytes and 3 of 800 fit, then 3 though more was asked for; the 4 that are left are too few to be looked at.
    pack_all(still, BlockSizes(reports=1_000, left_unpacked=0, fewest=7, bytes=2_700))
    assert reports_of_blocks(still, rank) == [33, 3]
    tiny = Rank(still)
    tiny.send(*(step_report(step, large) for step in range(4)), RunFinished(status="finished", finished_at=2.0))
    pack_all(still, BlockSizes(reports=1_000, left_unpacked=0, fewest=1, bytes=10))
    assert reports_of_blocks(still, tiny) == [1, 1, 1, 1]


def reports_of_blocks(server: ServerInThread, rank: Rank) -> list[int]:
    query = select(blocks.c.reports).where(blocks.c.run_key == key_of(server, rank)).order_by(blocks.c.first_position)
    with server.backend.database.reading() as connection:
        return list(connection.execute(query).scalars())


def test_chunk_has_count_bounds_and_sum_of_finite_values(still: ServerInThread) -> None:
    rank = Rank(still)
    values = [1.0, math.nan, -3.0, math.inf, 2.5, 0.0]
    rank.send(*(step_report(step, {"x": value, "never": math.nan}) for step, value in enumerate(values)))
    pack_all(still, BlockSizes(reports=6, left_unpacked=0, fewest=1))
    summary = select(*(metric_chunks.c[name] for name in ("count", "minimum", "maximum", "total")))
    of_run = summary.where(metric_chunks.c.run_key == key_of(still, rank)).order_by(metric_chunks.c.name.desc())
    with still.backend.database.reading() as connection:
        rows = [tuple(row) for row in connection.execute(of_run)]
    assert rows == [(6, -3.0, math.inf, 0.5), (6, None, None, 0.0)]


def test_counts_beyond_float_precision_are_kept(still: ServerInThread) -> None:
    rank = Rank(still)
    counts = [(2**24 + 1 + step, 0, 2**62 + step) for step in range(20)]
    rank.send(
        *(
            step_report(step, {}, histograms=[ScoreHistogram(name="h", low=-1.5, high=2.0, counts=counts[step])])
            for step in range(20)
        )
    )
    pack_all(still)
    answer = still.http.get(f"{rank.path}/histograms/h").json()
    assert [tuple(one) for one in answer["counts"]] == counts


def test_second_compactor_packs_nothing(still: ServerInThread) -> None:
    rank = Rank(still)
    rank.send(*(step_report(step, {"x": float(step)}) for step in range(16)))
    with still.backend.database.reading() as connection:
        (stream,) = compacting.full_streams(connection, 0.0, EVERYTHING)
        packed = compacting.pack_next(connection, stream, EVERYTHING)
    assert packed is not None
    submit = still.backend.writer.submit
    submit(lambda transaction: compacting.replace_by(transaction.connection, packed)).result(timeout=10)
    with pytest.raises(BlockOvertaken, match=r"16 reports of stream .* were packed, 0 are left"):
        submit(lambda transaction: compacting.replace_by(transaction.connection, packed)).result(timeout=10)
    with still.backend.database.reading() as connection:
        assert connection.execute(select(func.count()).select_from(blocks)).scalar_one() == 1


@pytest.mark.slow
def test_a_killed_compactor_leaves_every_report_in_one_place(still: ServerInThread) -> None:
    rank = eventful_run(still, 4)
    url = still.backend.settings.resolved_database_url
    still.stop()
    received = subprocess.run(
        [sys.executable, "-m", "tests.server.killed_compactor", url, rank.run_id],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    ).stdout
    untouched, *deaths = (json.loads(line) for line in received.splitlines())
    assert [death["point"] for death in deaths] == list(POINTS)
    assert {death["status"] for death in deaths} == {-signal.SIGKILL}
    assert {death["digest"] for death in deaths} == {untouched["digest"]}
    left = [(death["blocks"], death["unpacked"]) for death in deaths]
    assert left == [(0, untouched["unpacked"])] * (len(POINTS) - 1) + [(1, untouched["unpacked"] - SIZES.reports)]


def test_the_server_packs_by_itself_while_reports_come_in(make_server: MakeServer) -> None:
    server = make_server(housekeeping_interval_seconds=0.05)
    rank = Rank(server)
    for start in range(0, 4500, 100):
        rank.send(*(step_report(step, {"x": float(step)}) for step in range(start, start + 100)))
    for _ in range(200):
        if unpacked_reports(server, rank) < 2000:
            break
        time.sleep(0.05)
    assert 1000 <= unpacked_reports(server, rank) < 2000
    columns = server.http.get(f"{rank.path}/metrics/series?name=x").json()["series"]["x"]
    assert columns["value"] == [float(step) for step in range(4500)]


def test_a_live_tick_reads_only_what_is_new(still: ServerInThread) -> None:
    rank = Rank(still)
    rank.send(*(step_report(step, {"x": float(step)}) for step in range(64)))
    pack_all(still)
    cursor = still.http.get(f"{rank.path}/metrics/series?name=x").json()["cursor"]
    rank.report(64, x=64.0)
    read: list[int] = []

    def count(*arguments: Any) -> None:
        if "metric_chunks" in arguments[2]:
            read.append(len(arguments[1].fetchall()))

    engine = still.backend.database.reading_engine
    event.listen(engine, "after_cursor_execute", count)
    answer = still.http.get(f"{rank.path}/metrics/series?name=x&since={cursor}").json()
    event.remove(engine, "after_cursor_execute", count)
    assert (answer["series"]["x"]["step"], answer["reset"]) == ([64], False)
    assert sum(read) == 0


@settings(max_examples=30, deadline=None)
@given(
    arrays.arrays(np.int64, st.integers(0, 40)),
    arrays.arrays(np.float64, st.integers(0, 40)),
    arrays.arrays(np.uint64, st.tuples(st.integers(0, 9), st.integers(1, 5))),
    st.binary(max_size=50),
)
def test_packed_arrays_are_the_same_bit_for_bit(
    whole: np.ndarray[Any, Any], real: np.ndarray[Any, Any], counts: np.ndarray[Any, Any], text: bytes
) -> None:
    given_arrays = {"whole": whole, "real": real, "counts": counts, "text": np.frombuffer(text, dtype=np.uint8)}
    read = unpack_arrays(pack_arrays(given_arrays))
    for name, array in given_arrays.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()
