"""Which incarnation is the newest, though the trainer's clock be wrong and old spools come late."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from isentrope.transport import telemetry_connection
from isentrope_server.ingest.succession import placed
from isentrope_server.store.streams import Incarnation
from isentrope_wire.messages import RunStarted
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
        server, run_id=run_id, incarnation=incarnation, rank=rank, name=incarnation, started_at=now - ago, sent_at=now
    )  # fmt: skip


def test_a_trainer_whose_clock_was_set_back_an_hour_goes_on_with_its_run(server: ServerInThread) -> None:
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


def test_a_clock_that_was_an_hour_ahead_before_the_resume_keeps_it_back_no_longer(server: ServerInThread) -> None:
    first = begin(server, "first", clock=HOUR)
    first.report(0, loss=0.0)
    begin(server, "second", run_id=first.run_id).report(0, loss=10.0)
    assert loss_by_step(server, first) == {0: 10.0}


def test_the_probes_own_connection_says_when_it_sends_its_hello(
    server: ServerInThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin(server, "first")
    set_back = SimpleNamespace(time=lambda: time.time() - HOUR, monotonic=time.monotonic)
    monkeypatch.setattr(telemetry_connection, "time", set_back)
    started = replace(first.started, incarnation="second", name="second", started_at=set_back.time())
    with telemetry_connection.TelemetryConnection(
        server.grpc_target, server.owner_token, started, receive_control=print, report_problem=print
    ) as connection:
        connection.hello()
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


def test_an_incarnation_that_is_known_already_keeps_its_place_whatever_its_other_ranks_say() -> None:
    again = run_started("first", started_at=900.0)
    assert placed([known_since(1_000.0)], again, sent_at=901.0, now=1_100.0).started_at == 1_000.0


def run_started(incarnation: str, *, started_at: float) -> RunStarted:
    return RunStarted(
        run_id="r", incarnation=incarnation, rank=0, world_size=1, name="", project="", started_at=started_at,
        probe_version="0",
    )  # fmt: skip


def known_since(time: float) -> Incarnation:
    return Incarnation(name="first", started_at=time, opened_at=time, first_step=0, last_step=1, streams=())
