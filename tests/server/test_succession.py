"""Which incarnation is the newest, though the trainer's clock be wrong and old spools come late."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import insert

from isentrope.transport import connection
from isentrope_server.ingest.opening import placed
from isentrope_server.store import runs, streams, tables
from isentrope_server.store.streams import Incarnation, Stream
from isentrope_server.store.writer import Transaction
from isentrope_wire.reports import RunStarted
from tests.probe.transport.fake_telemetry import RUN
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

HOUR = 3_600.0


def loss_by_step(server: ServerInThread, rank: Rank) -> dict[int, float]:
    found = server.http.get(f"{rank.path}/metrics/series?name=loss").json()["series"]["loss"]
    return dict(zip(found["step"], found["value"], strict=True))


def begin(
    server: ServerInThread,
    incarnation: str,
    *,
    run_id: str | None = None,
    clock: float = 0.0,
    ago: float = 0.0,
    rank: int = 0,
) -> Rank:
    """A trainer that began so many seconds ago, by a clock that is off by so many."""
    now = time.time() + clock
    return Rank(
        server,
        run_id=run_id,
        incarnation=incarnation,
        rank=rank,
        name=incarnation,
        started_at=now - ago,
        sent_at=now,
    )


def test_a_trainer_whose_clock_was_set_back_an_hour_goes_on_with_its_run(
    server: ServerInThread,
) -> None:
    first = begin(server, "first")
    first.report(0, loss=0.0)
    first.report(1, loss=1.0)
    second = begin(server, "second", run_id=first.run_id, clock=-HOUR)
    begin(server, "second", run_id=first.run_id, clock=-HOUR, rank=1)
    second.report(1, loss=10.0)
    second.report(2, loss=20.0)
    assert loss_by_step(server, first) == {0: 0.0, 1: 10.0, 2: 20.0}
    run = server.http.get(first.path).json()
    assert (run["name"], run["step"], run["status"]) == ("second", 2, "running")
    # Set back once more, and then right again.
    begin(server, "third", run_id=first.run_id, clock=-2 * HOUR).report(2, loss=200.0)
    begin(server, "fourth", run_id=first.run_id).report(3, loss=3_000.0)
    assert loss_by_step(server, first) == {0: 0.0, 1: 10.0, 2: 200.0, 3: 3_000.0}
    assert server.http.get(first.path).json()["name"] == "fourth"


def test_a_clock_that_was_an_hour_ahead_before_the_resume_keeps_it_back_no_longer(
    server: ServerInThread,
) -> None:
    first = begin(server, "first", clock=HOUR)
    first.report(0, loss=0.0)
    begin(server, "second", run_id=first.run_id).report(0, loss=10.0)
    assert loss_by_step(server, first) == {0: 10.0}


def test_probe_connection_dates_its_hello(
    server: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin(server, "first")
    set_back = SimpleNamespace(time=lambda: time.time() - HOUR, monotonic=time.monotonic)
    monkeypatch.setattr(connection, "time", set_back)
    started = replace(
        first.started, incarnation="second", name="second", started_at=set_back.time()
    )
    with connection.TelemetryConnection(
        server.grpc_target, server.owner_token, started
    ) as probes_own:
        probes_own.hello()
    assert server.http.get(first.path).json()["name"] == "second"


def test_a_spool_that_lay_about_stays_the_older_one(server: ServerInThread) -> None:
    newer = begin(server, "newer", ago=60.0)
    newer.report(1, loss=10.0)
    older = begin(server, "older", run_id=newer.run_id, ago=HOUR)
    older.report(0, loss=0.0)
    older.report(1, loss=1.0)
    assert loss_by_step(server, newer) == {0: 0.0, 1: 10.0}
    assert server.http.get(newer.path).json()["name"] == "newer"


@pytest.mark.parametrize("sent_at", [0.0, math.nan, math.inf, -math.inf, 899.0])
def test_without_a_time_that_can_be_right_the_clocks_order_counts(sent_at: float) -> None:
    started = run_started("second", started_at=900.0)
    assert placed([known_since(1_000.0)], started, sent_at=sent_at, now=5_000.0) == started


def test_an_incarnation_that_is_known_already_keeps_its_place_whatever_its_other_ranks_say() -> (
    None
):
    again = run_started("first", started_at=900.0)
    assert placed([known_since(1_000.0)], again, sent_at=901.0, now=1_100.0).started_at == 1_000.0


def run_started(incarnation: str, *, started_at: float) -> RunStarted:
    return replace(RUN, incarnation=incarnation, started_at=started_at)


def known_since(time: float) -> Incarnation:
    return Incarnation(
        name="first", started_at=time, opened_at=time, first_step=0, last_step=1, streams=()
    )


def test_the_newest_incarnation_is_asked_for_and_is_the_last_of_all(
    make_server: MakeServer,
) -> None:
    server = make_server()
    first = Rank(server, incarnation="b", started_at=10.0)
    others = [
        Rank(server, run_id=first.run_id, incarnation=name, rank=rank, started_at=started_at)
        for name, rank, started_at in (
            ("a", 1, 20.0),
            ("b", 1, 90.0),
            ("Z_9", 0, 20.0),
            ("a", 0, 80.0),
        )
    ]
    with server.backend.database.reading() as connection:
        run_key = runs.key_of(connection, first.run_id)
        assert run_key is not None
        known = streams.incarnations(connection, run_key)
        assert [one.name for one in known] == ["b", "Z_9", "a"]
        assert streams.newest_and(connection, run_key, "b") == [known[0], known[2]]
        assert streams.newest_and(connection, run_key, "a") == [known[2]]
        assert streams.newest_and(connection, run_key, "never") == [known[2]]
        current = [
            stream.key
            for one in known
            for stream in one.streams
            if (state := streams.push_state(connection, first.run_id, one.name, stream.rank, b""))
            and state.is_current
        ]
        assert current == [known[2].streams[0].key]
    for rank in (first, *others):
        rank.report(rank.started.rank + 3, loss=1.0)
    others[-1].report(7, loss=1.0)
    others[0].report(8, loss=1.0)
    assert server.http.get(first.path).json()["step"] == 7


def test_a_push_reads_no_more_of_a_run_with_many_incarnations(make_server: MakeServer) -> None:
    server = make_server(housekeeping_interval_seconds=3_600.0)  # digests read streams, too
    rank = Rank(server, incarnation="newest", started_at=1e9)
    rank.report(0, loss=1.0)
    row: dict[str, object] = {"rank": 0, "opened_at": 1.0, "acked_through": 0}

    def add_many(transaction: Transaction) -> None:
        run_key = runs.key_of(transaction.connection, rank.run_id)
        rows = [
            row | {"run_key": run_key, "incarnation": f"i{n}", "started_at": float(n)}
            for n in range(2_000)
        ]
        transaction.connection.execute(insert(tables.streams), rows)

    def fetched(step: int) -> int:
        made = 0

        def count(function: Callable[..., Stream]) -> Callable[..., Stream]:
            def counted(**fields: Any) -> Stream:
                nonlocal made
                made += 1
                return function(**fields)

            return counted

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(streams, "Stream", count(streams.Stream))
            rank.report(step, loss=1.0)
        return made

    before = fetched(1)
    server.backend.writer.submit(add_many).result(timeout=10)
    assert fetched(2) < before + 100  # a digest made meanwhile reads some, too
    assert server.http.get(rank.path).json()["step"] == 2


def test_a_default_replaces_no_stored_description(server: ServerInThread) -> None:
    given: dict[str, Any] = {"name": "countdown", "project": "demo", "config": {"lr": 1.0}}
    first = Rank(server, incarnation="first", started_at=1.0, **given)

    def described() -> dict[str, Any]:
        run = server.http.get(first.path).json()
        return {name: run[name] for name in given}

    unnamed: dict[str, Any] = {"name": "run", "project": "default", "config": {}}
    Rank(server, run_id=first.run_id, incarnation="second", started_at=2.0, **unnamed)
    assert described() == given
    other: dict[str, Any] = {"name": "sums", "project": "other", "config": {"lr": 2.0}}
    Rank(server, run_id=first.run_id, incarnation="third", started_at=3.0, **other)
    assert described() == other
