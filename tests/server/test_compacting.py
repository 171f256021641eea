"""Rows that are joined: they read as before, are stored once, and are in one place whatever
happens."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, select

from isentrope_server.store.reports import packing, series
from isentrope_server.store.reports.packing import RowsOvertaken
from isentrope_server.store.rows import RowSizes
from isentrope_server.store.tables import records
from isentrope_wire.reports import Gap, RunFinished
from tests.server.compaction import (
    EVERYTHING,
    eventful_run,
    everything_said_of,
    key_of,
    pack_all,
    reports_of_rows,
)
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report, wire_record
from tests.system.running_server import wait_for

DATABASES = ("sqlite", "postgresql")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_packing_changes_no_answer(still: ServerInThread, seed: int) -> None:
    rank = eventful_run(still, seed)
    before = everything_said_of(still, rank)
    assert pack_all(still, RowSizes(reports=40, fewest=1)) >= 2
    assert 0 < sum(reports_of_rows(still, rank, packed=False)) < 120
    half_packed = everything_said_of(still, rank)
    assert {path for path in before if half_packed[path] != before[path]} == set()
    pack_all(still)
    assert sum(reports_of_rows(still, rank, packed=False)) < 48
    packed = everything_said_of(still, rank)
    assert {path for path in before if packed[path] != before[path]} == set()


def test_a_late_repeat_of_a_packed_report_counts_as_accepted(still: ServerInThread) -> None:
    rank = Rank(still)
    reports = [step_report(step, {"x": float(step)}) for step in range(40)]
    rank.send(*reports)
    pack_all(still)
    stored = reports_of_rows(still, rank, packed=True)
    assert stored == [40]
    again = rank.push([wire_record(1 + index, report) for index, report in enumerate(reports)])
    assert (again.acked_through, list(again.quarantined)) == (40, [])
    assert reports_of_rows(still, rank, packed=True) == stored
    changed = rank.push([wire_record(3, step_report(2, {"x": 99.0}))])
    assert [(q.seq, q.code) for q in changed.quarantined] == [(3, "key_conflict")]
    assert changed.acked_through == 40
    columns = still.http.get(f"{rank.path}/metrics/series?name=x").json()["series"]["x"]
    assert columns["value"] == [float(step) for step in range(40)]
    assert rank.report(40, x=40.0).acked_through == 41


def test_records_that_are_no_reports_stay_rows_and_count(still: ServerInThread) -> None:
    rank = Rank(still)
    rank.send(
        *(step_report(step, {"x": 1.0}) for step in range(20)),
        Gap(first_seq=21, last_seq=21, reason="full"),
    )
    rank.send(*(step_report(step, {"x": 1.0}) for step in range(20, 40)))
    done = rank.send(RunFinished(status="finished", finished_at=2.0, step=39))
    assert done.acked_through == 42
    pack_all(still)
    assert reports_of_rows(still, rank, packed=False) == []
    with still.backend.database.reading() as connection:
        kinds = connection.execute(
            select(records.c.kind).where(records.c.run_key == key_of(still, rank))
        ).scalars()
        assert sorted(kinds) == ["gap", "run_finished", *["step_report"] * 2]
    assert rank.hello().acked_through == 42


def test_a_run_that_goes_on_keeps_what_fills_no_row_and_one_that_ended_keeps_few(
    still: ServerInThread,
) -> None:
    sizes = RowSizes(reports=10, fewest=4)
    rank = Rank(still)
    for step in range(27):
        rank.report(step, x=1.0)
    assert pack_all(still, sizes) == 2
    assert (
        reports_of_rows(still, rank, packed=True),
        reports_of_rows(still, rank, packed=False),
    ) == (
        [10] * 2,
        [1] * 7,
    )
    rank.send(RunFinished(status="finished", finished_at=2.0))
    assert pack_all(still, sizes) == 1
    assert (
        reports_of_rows(still, rank, packed=True),
        reports_of_rows(still, rank, packed=False),
    ) == ([10, 10, 7], [])
    short = Rank(still)
    short.send(
        *(step_report(step, {"x": 1.0}) for step in range(3)),
        RunFinished(status="failed", finished_at=2.0),
    )
    assert pack_all(still, sizes) == 0
    assert reports_of_rows(still, short, packed=False) == [3]


def test_a_row_holds_no_more_bytes_than_it_may_and_at_least_one_report(
    still: ServerInThread,
) -> None:
    large = {f"m/{number}": 1.0 for number in range(100)}
    rank = Rank(still)
    for step in range(7):
        rank.report(step, **large)
    rank.send(RunFinished(status="finished", finished_at=2.0))
    pack_all(still, RowSizes(fewest=1, bytes=2_700))
    assert reports_of_rows(still, rank, packed=True) == [3, 3, 1]
    tiny = Rank(still)
    for step in range(3):
        tiny.report(step, **large)
    tiny.send(RunFinished(status="finished", finished_at=2.0))
    pack_all(still, RowSizes(fewest=1, bytes=10))
    assert reports_of_rows(still, tiny, packed=True) == [1, 1, 1]


def test_reports_with_hardly_a_metric_in_common_share_no_row(still: ServerInThread) -> None:
    rank = Rank(still)
    rank.send(*(step_report(step, {f"own/{step}": 1.0, "x": 1.0}) for step in range(40)))
    sizes = reports_of_rows(still, rank, packed=False)
    assert sum(sizes) == 40
    assert max(sizes) == 7  # 7 reports have 14 numbers, and 56 cells for 8 metrics


def test_second_server_packs_nothing(still: ServerInThread) -> None:
    rank = Rank(still)
    for step in range(16):
        rank.report(step, x=float(step))
    with still.backend.database.reading() as connection:
        (stream,) = packing.full_streams(connection, 0.0, EVERYTHING)
        row = packing.join_next(connection, stream, EVERYTHING)
    assert row is not None
    submit = still.backend.writer.submit
    submit(lambda transaction: packing.replace_by(transaction.connection, row)).result(timeout=10)
    with pytest.raises(RowsOvertaken, match=r"16 rows of run .* were joined, 0 are left"):
        submit(lambda transaction: packing.replace_by(transaction.connection, row)).result(
            timeout=10
        )
    assert reports_of_rows(still, rank, packed=True) == [16]


@pytest.mark.parametrize("statement", ["DELETE FROM records", "INSERT INTO records"])
def test_a_packing_that_fails_half_way_changes_nothing(
    still: ServerInThread, statement: str
) -> None:
    rank = eventful_run(still, 4)
    before, rows = everything_said_of(still, rank), reports_of_rows(still, rank, packed=False)

    def fail(connection: object, cursor: object, sent: str, *more: object) -> None:
        if sent.startswith(statement):
            raise OSError("the disk is gone")

    engine = still.backend.database.writing_engine
    event.listen(engine, "after_cursor_execute", fail)
    assert pack_all(still) == 0
    event.remove(engine, "after_cursor_execute", fail)
    assert reports_of_rows(still, rank, packed=False) == rows
    assert everything_said_of(still, rank) == before
    assert pack_all(still) > 0


def test_the_server_packs_by_itself_while_reports_come_in(make_server: MakeServer) -> None:
    server = make_server(housekeeping_interval_seconds=0.05)
    rank = Rank(server)
    for start in range(0, 4500, 100):
        rank.send(*(step_report(step, {"x": float(step)}) for step in range(start, start + 100)))
    wait_for(lambda: sum(reports_of_rows(server, rank, packed=False)) < 1000)
    columns = server.http.get(f"{rank.path}/metrics/series?name=x").json()["series"]["x"]
    assert columns["value"] == [float(step) for step in range(4500)]


def test_a_live_tick_reads_only_what_is_new(
    still: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = Rank(still)
    rank.send(*(step_report(step, {"x": float(step)}) for step in range(64)))
    pack_all(still)
    cursor = still.http.get(f"{rank.path}/metrics/series?name=x").json()["cursor"]
    rank.report(64, x=64.0)
    read: list[int] = []
    parts = series._parts

    def counted(*arguments: Any) -> Any:
        found = parts(*arguments)
        read.append(len(found["x"].steps))
        return found

    monkeypatch.setattr(series, "_parts", counted)
    answer = still.http.get(f"{rank.path}/metrics/series?name=x&since={cursor}").json()
    assert (answer["series"]["x"]["step"], answer["reset"]) == ([64], False)
    assert read == [1]
