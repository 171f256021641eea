"""Deleting: a run is out of sight at once, goes a piece at a time, and its space goes back to the
file system."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from sqlalchemy import Column, Table, UniqueConstraint, func, select

from isentrope_server.housekeeping import SteadyClock, delete_overdue
from isentrope_server.store import removal
from isentrope_server.store import runs as runs_store
from isentrope_server.store.runs import Run
from isentrope_server.store.tables import metadata
from isentrope_wire.reports import RunFinished
from tests.server.compaction import NEVER, finished_run, pack_all
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, age, step_report, wire_record
from tests.system.running_server import wait_for

DATABASES = ("sqlite", "postgresql")

DAY = 86_400.0
KEPT = {"alembic_version", "audit", "audit_head", "deleted_runs", "session_key", "tokens"}
"""Tables without rows of an existing run."""


def rows_by_table(server: ServerInThread) -> dict[str, int]:
    with server.backend.database.reading() as connection:
        return {
            name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in metadata.tables.items()
            if name not in KEPT
        }


def test_a_deleted_run_is_out_of_sight_at_once(still: ServerInThread) -> None:
    rank, other = finished_run(still, 30), finished_run(still, 10)
    assert still.http.delete(rank.path).status_code == 204
    for path in ("", "/metrics", "/steps/3", "/control", "/alerts"):
        assert still.http.get(rank.path + path).status_code == 404
    listed = still.http.get("/api/v1/runs").json()["items"]
    assert [run["id"] for run in listed] == [other.run_id]
    with pytest.raises(grpc.RpcError) as refused:
        rank.hello()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.RpcError) as refused:
        rank.report(31, x=1.0)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert still.http.delete(rank.path).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/metrics",
        "/metrics/series?name=metric/1",
        "/histograms/h",
        "/steps/3",
        "/tokens",
        "/tokens?step=3",
        "/tokens/recurring",
        "/rollouts",
        "/rollouts?step=3",
        "/law",
        "/alerts",
        "/gaps",
        "/control",
        "/control/history",
        "/export?format=jsonl",
        "PATCH",
        "PUT",
    ],
)
def test_a_run_that_is_deleted_while_it_is_asked_for_is_not_found(
    still_server: ServerInThread, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    rank = finished_run(still_server, 5)
    delete_after_the_look(still_server, rank, monkeypatch)
    answer = {
        "PATCH": lambda: still_server.http.patch(rank.path, json={"notes": "kept for the paper"}),
        "PUT": lambda: still_server.http.put(
            f"{rank.path}/control", json={"method": "none"}, headers={"If-Match": '"0"'}
        ),
    }.get(path, lambda: still_server.http.get(f"{rank.path}{path}"))()
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert answer.json()["error"]["details"] == {"run_id": rank.run_id}


def delete_after_the_look(
    server: ServerInThread, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request finds the run, and then all of it goes."""
    find = runs_store.find

    def find_and_delete(*arguments: Any, **named: Any) -> Run | None:
        found = find(*arguments, **named)
        monkeypatch.setattr(runs_store, "find", find)
        with server.client(server.owner_token) as other:
            assert other.delete(rank.path).status_code == 204
        for _ in remove_all(server):
            pass
        return found

    monkeypatch.setattr(runs_store, "find", find_and_delete)


def test_nothing_of_a_deleted_run_is_left(still: ServerInThread) -> None:
    kept = finished_run(still, 40)
    pack_all(still)
    rows = rows_by_table(still)
    gone = finished_run(still, 1_500, name="gone")
    pack_all(still)
    gone.push([wire_record(5_000, step_report(1, {}), claimed_hash=b"no hash of it")])
    still.http.delete(gone.path)
    *_, before_the_last = remove_all(still)
    assert rows_by_table(still) == rows
    # What goes with the run itself, in one transaction, is little.
    goes_with_the_run = {"runs", "run_digests", "streams", "controls"}
    assert {name for name in rows if before_the_last[name] != rows[name]} <= goes_with_the_run
    assert still.http.get(f"{kept.path}/steps/39").status_code == 200


def remove_all(server: ServerInThread) -> Iterator[dict[str, int]]:
    """Remove what is deleted, a transaction at a time; yields the number of rows before each."""
    with server.backend.database.reading() as connection:
        (run_key,) = removal.waiting(connection)
    something_is_left = True
    while something_is_left:
        yield rows_by_table(server)
        something_is_left = server.backend.writer.submit(
            lambda transaction: removal.remove_some(transaction.connection, run_key)
        ).result(timeout=30)


@pytest.mark.parametrize("table", ["layouts", "streams"])
def test_no_table_that_grows_with_the_reports_is_searched_for_what_refers_to_a_deleted_row(
    table: str,
) -> None:
    """The databases look for references by their columns: cheap where an index begins with
    these."""
    searched = {
        other.name
        for other in metadata.tables.values()
        for reference in other.foreign_keys
        if reference.column.table.name == table
        and not any(columns[0] is reference.parent for columns in indexed(other))
    }
    assert searched == set()


def indexed(table: Table) -> list[Sequence[Column[Any]]]:
    """The columns of every index, the implied ones too."""
    unique = [
        tuple(rule.columns) for rule in table.constraints if isinstance(rule, UniqueConstraint)
    ]
    return [
        tuple(table.primary_key.columns),
        *unique,
        *(tuple(index.columns) for index in table.indexes),
    ]


def test_no_transaction_removes_much_and_a_server_that_was_stopped_goes_on(
    still: ServerInThread,
) -> None:
    rank = Rank(still)
    for step in range(40):
        rank.report(step, x=1.0)
    rank.send(RunFinished(status="finished", finished_at=2.0))
    still.http.delete(rank.path)
    removing = remove_all(still)
    before, after = (sum(next(removing).values()) for _ in range(2))
    assert before - after == removal.LARGE_ROWS_AT_ONCE
    still.stop()
    url = still.backend.settings.database_url
    with ServerInThread(still.home, database_url=url, housekeeping_interval_seconds=0.02) as again:
        wait_for(lambda: sum(rows_by_table(again).values()) == 0)


def test_by_default_every_run_is_kept(still_server: ServerInThread) -> None:
    rank = finished_run(still_server, 3)
    age(still_server, rank, seconds=10_000 * DAY)
    asyncio.run(delete_overdue(still_server.backend))
    assert still_server.http.get(rank.path).status_code == 200


def test_deletion_of_silent_runs_is_audited(make_server: MakeServer) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER, retention_days=30)
    old, new, silent = finished_run(server, 3), finished_run(server, 3), Rank(server)
    for rank in (old, silent):
        age(server, rank, seconds=31 * DAY)
    asyncio.run(delete_overdue(server.backend))
    assert [server.http.get(rank.path).status_code for rank in (old, new, silent)] == [
        404,
        200,
        404,
    ]
    audited = audit_of(server, old)
    assert (audited["actor"], audited["action"]) == ("server", "run.deleted")
    assert audited["change"]["retention"] == "age"


def test_only_so_many_of_the_newest_runs_are_kept_and_any_that_still_reports(
    make_server: MakeServer,
) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER, retention_runs=2)
    reporting = Rank(server)
    reporting.report(0, x=1.0)
    ranks = [finished_run(server, 3) for _ in range(3)]
    asyncio.run(delete_overdue(server.backend))
    statuses = [server.http.get(rank.path).status_code for rank in (reporting, *ranks)]
    assert statuses == [200, 404, 200, 200]
    assert audit_of(server, ranks[0])["change"]["retention"] == "count"


def test_a_run_is_kept_while_a_step_of_it_may_take_hours(make_server: MakeServer) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER, retention_runs=1, retention_days=0.01)
    training, dead = Rank(server), Rank(server)
    finished_run(server, 3)
    age(server, training, seconds=0.9 * DAY)
    age(server, dead, seconds=1.1 * DAY)
    asyncio.run(delete_overdue(server.backend))
    assert [server.http.get(rank.path).status_code for rank in (training, dead)] == [200, 404]


def test_a_run_that_begins_again_while_retention_looks_is_kept(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server(housekeeping_interval_seconds=NEVER, retention_runs=1)
    old = finished_run(server, 3)
    finished_run(server, 3)
    overdue = removal.overdue_runs

    def begin_again_after_the_look(*arguments: Any, **named: Any) -> Any:
        found = overdue(*arguments, **named)
        if "run_key" not in named:
            Rank(server, run_id=old.run_id, incarnation="resumed")
        return found

    monkeypatch.setattr(removal, "overdue_runs", begin_again_after_the_look)
    asyncio.run(delete_overdue(server.backend))
    assert server.http.get(old.path).json()["status"] == "running"


def test_run_with_connected_shipper_is_kept_at_any_age(make_server: MakeServer) -> None:
    server = make_server(
        housekeeping_interval_seconds=NEVER,
        retention_runs=1,
        retention_days=1,
        heartbeat_seconds=0.1,
    )
    training = Rank(server)
    watching = training.watch()
    assert watching.next_kind() == "heartbeat"
    finished_run(server, 3)
    age(server, training, seconds=2 * DAY)
    asyncio.run(delete_overdue(server.backend))
    assert server.http.get(training.path).status_code == 200
    training.report(1, x=1.0)
    watching.close()


def test_a_run_with_an_open_watch_is_not_silent(make_server: MakeServer) -> None:
    server = make_server(
        housekeeping_interval_seconds=NEVER, heartbeat_seconds=5.0, silent_after_seconds=0.9
    )
    rank = Rank(server)
    age(server, rank, seconds=2 * DAY)
    assert server.http.get(rank.path).json()["status"] == "silent"
    watching = rank.watch()
    for _ in range(6):
        assert watching.next_kind() == "heartbeat"
        run = runs_store_of(server, rank)
        assert run.last_heard_at == pytest.approx(time.time(), abs=0.8)
        assert server.http.get(rank.path).json()["status"] == "running"
    watching.close()
    wait_for(lambda: server.http.get(rank.path).json()["status"] == "silent")


def test_a_clock_that_was_set_or_stood_still_is_noticed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SteadyClock()
    assert not clock.has_jumped()
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 25 * 3_600)
    assert clock.has_jumped()
    assert not clock.has_jumped()


def runs_store_of(server: ServerInThread, rank: Rank) -> Run:
    with server.backend.database.reading() as connection:
        run = runs_store.find(connection, rank.run_id, silent_after_seconds=60)
    assert run is not None
    return run


def audit_of(server: ServerInThread, rank: Rank) -> dict[str, Any]:
    audit = metadata.tables["audit"]
    query = (
        select(audit)
        .where(audit.c.subject == f"runs/{rank.run_id}")
        .order_by(audit.c.key.desc())
        .limit(1)
    )
    with server.backend.database.reading() as connection:
        return dict(connection.execute(query).one()._mapping)
