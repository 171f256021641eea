"""What becomes of a version of a run's control: whatever its probe says of it, in any order, late,
or not at all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from isentrope_wire.control import Control, Method
from isentrope_wire.methods import METHODS
from isentrope_wire.reports import ControlOutcome, ControlSnapshot, OutcomeState, RunFinished
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report
from tests.server.test_control import delivered, let_expire, put, state
from tests.system.running_server import wait_for


class Life:
    """What a run and its probes do, one after another; version 1 of its control is looked at."""

    def __init__(self, server: ServerInThread) -> None:
        self.server = server
        self.first = self.rank = Rank(server, started_at=1000.0)

    def shown(self) -> tuple[str, str, int | None]:
        """State, code and first step of version 1."""
        item = state(self.server, self.first, 1)
        return item["state"], item["code"], item["applied_step"]


Event = Callable[[Life], object]


def push(life: Life) -> None:
    newest = life.server.http.get(f"{life.rank.path}/control").json()["version"]
    assert put(life.server, life.rank, newest).status_code == 202


def fetch(life: Life) -> None:
    life.rank.hello()


def resume(life: Life) -> None:
    life.rank = Rank(life.server, run_id=life.first.run_id, incarnation="second", started_at=2000.0)


def join(life: Life) -> None:
    """A second rank; its words come next."""
    life.rank = Rank(life.server, run_id=life.first.run_id, rank=1, started_at=1000.0)


def go_back(life: Life) -> None:
    """To the first rank of the first attempt."""
    life.rank = life.first


def end(life: Life) -> None:
    life.rank.send(RunFinished(status="failed", finished_at=time.time(), error="out of memory"))


def say(outcome: str, step: int = 3, version: int = 1, code: str = "", active: int = 1) -> Event:
    return lambda life: life.rank.answer(step, version, outcome, code=code, active=active)


def report(step: int, active: int = 1, **fields: Any) -> Event:
    return lambda life: life.rank.send(step_report(step, {}, control_version=active, **fields))


def say_in_refused_report(outcome: str, *, at: float = 1e9, active: int = 1) -> Event:
    """The report has a name that is too long."""
    step = 5 if outcome == "APPLIED" else None
    word = ControlOutcome(version=1, state=OutcomeState(outcome), at=at, step=step)

    def send(life: Life) -> None:
        refused = step_report(5, {"n" * 501: 1.0}, control_version=active, outcomes=(word,))
        assert len(life.rank.send(refused).quarantined) == 1

    return send


MISSING, TAKEN = "capability_missing", "version_taken"
DELIVERED = (push, fetch)
LIVES: dict[str, tuple[Sequence[Event], tuple[str, str, int | None]]] = {
    "never fetched": ([push, push], ("SUPERSEDED", "never_delivered", None)),
    "fetched": ([*DELIVERED, push], ("DELIVERED", "", None)),
    "applied late": ([*DELIVERED, push, say("APPLIED")], ("APPLIED", "", 3)),
    "replaced": (
        [*DELIVERED, push, say("APPLIED"), fetch, say("APPLIED", 4, 2, active=2)],
        ("APPLIED", "", 3),
    ),
    "passed over": (
        [*DELIVERED, push, fetch, say("APPLIED", version=2, active=2)],
        ("SUPERSEDED", "newer_reached_probe", None),
    ),
    "run ended": ([push, report(1, 0), end], ("EXPIRED", "run_ended", None)),
    "applied before the end": (
        [*DELIVERED, say("APPLIED", 1), report(2), end],
        ("APPLIED", "", 1),
    ),
    "one rank spoke": ([*DELIVERED, join, go_back, say("APPLIED")], ("DELIVERED", "", None)),
    "both ranks applied": (
        [*DELIVERED, join, go_back, say("APPLIED"), join, say("APPLIED")],
        ("APPLIED", "", 3),
    ),
    "one rank rejected": (
        [*DELIVERED, join, go_back, say("APPLIED"), join, say("REJECTED", code=MISSING)],
        ("PARTIAL", MISSING, 3),
    ),
    "applied again": ([*DELIVERED, say("APPLIED"), resume, say("APPLIED")], ("APPLIED", "", 3)),
    "older attempt ended": (
        [*DELIVERED, resume, report(3, 0), end],
        ("EXPIRED", "run_ended", None),
    ),
    "older attempt speaks late": (
        [*DELIVERED, resume, report(3, 0), end, go_back, say("APPLIED", 2)],
        ("APPLIED", "", 2),
    ),
    "applied in a refused report": (
        [*DELIVERED, say_in_refused_report("APPLIED")],
        ("APPLIED", "", 5),
    ),
    "rejected in a refused report": (
        [*DELIVERED, say_in_refused_report("REJECTED", active=0)],
        ("REJECTED", "", None),
    ),
    "no database holds the word": (
        [*DELIVERED, say_in_refused_report("APPLIED", at=math.inf)],
        ("DELIVERED", "", None),
    ),
    "reported but not fetched": ([push, report(7)], ("PENDING", "", None)),
    "reported": ([*DELIVERED, report(7)], ("DELIVERED", "", None)),
    "rejected after reports": (
        [*DELIVERED, report(7), say("REJECTED", 8, code=TAKEN)],
        ("REJECTED", TAKEN, None),
    ),
}


@pytest.mark.parametrize("name", LIVES)
def test_version_ends_as_its_probes_say(server: ServerInThread, name: str) -> None:
    events, expected = LIVES[name]
    life = Life(server)
    for event in events:
        event(life)
    assert life.shown() == expected


@pytest.mark.parametrize(
    ("event", "following"),
    [
        (report(7, active=3), 4),
        (say("REJECTED", 7, 6, MISSING), 7),
        (report(7, active=2**63 - 1), 1),
    ],
)
def test_numbers_follow_what_the_run_names(
    server: ServerInThread, event: Event, following: int
) -> None:
    """As after an older database was restored, or an empty one took its place. A number that no
    server can have given is passed over."""
    life = Life(server)
    event(life)
    assert server.http.get(f"{life.rank.path}/control").json()["active"] is None
    assert put(server, life.rank, 0).json()["version"] == following
    assert put(server, life.rank, following).json()["version"] == following + 1
    assert life.rank.requested().version == following + 1


def test_refused_version_is_not_the_active_one(server: ServerInThread, rank: Rank) -> None:
    """The server reused a number before the run could report that it is active."""
    put(server, rank, 0)
    rank.hello()
    rank.answer(3, 1, "REJECTED", code="version_taken", active=1)
    body = server.http.get(f"{rank.path}/control").json()
    assert (body["state"], body["code"], body["active"]) == ("REJECTED", "version_taken", None)
    assert put(server, rank, 1).json()["version"] == 2


def test_reports_under_a_version_say_it_applied(
    make_server: MakeServer,
) -> None:
    server = make_server(control_rank_grace_seconds=0.2, sweep_interval_seconds=0.05)
    rank = Rank(server)
    rank.report(1, x=1.0)
    put(server, rank, 0)
    rank.hello()
    rank.send(step_report(7, {}, control_version=1), step_report(8, {}, control_version=1))
    wait_for(lambda: state(server, rank, 1)["state"] == "APPLIED")
    item = state(server, rank, 1)
    assert (item["code"], item["applied_step"]) == ("named_by_report", 7)
    assert server.http.get(f"{rank.path}/control").json()["active"]["state"] == "APPLIED"


def test_a_guessed_expiry_yields_to_a_report(
    make_server: MakeServer,
) -> None:
    server = make_server(sweep_interval_seconds=0.05, control_answer_grace_seconds=0.1)
    rank = delivered(server)
    let_expire(server, rank)
    rank.send(step_report(9, {}, control_version=1))
    assert (state(server, rank, 1)["state"], state(server, rank, 1)["applied_step"]) == (
        "APPLIED",
        9,
    )


def test_first_attempt_says_when_it_was_applied(
    make_server: MakeServer,
) -> None:
    server = make_server(control_rank_grace_seconds=0.2, sweep_interval_seconds=0.05)
    first = delivered(server, started_at=1000.0)
    second = Rank(server, run_id=first.run_id, incarnation="second", started_at=2000.0)
    second.send(step_report(6, {}, control_version=1))
    wait_for(lambda: state(server, first, 1)["state"] == "APPLIED")
    assert state(server, first, 1)["applied_step"] == 6
    first.answer(4, 1, "APPLIED", active=1)
    assert (state(server, first, 1)["applied_step"], state(server, first, 1)["code"]) == (4, "")
    first.answer(5, 1, "REJECTED", code="again", active=1)
    assert state(server, first, 1)["state"] == "APPLIED", "the outcome of the rank is kept"


def test_an_attempt_is_shown_under_its_control(
    server: ServerInThread,
) -> None:
    def brought(**values: Any) -> ControlSnapshot:
        return ControlSnapshot(
            version=0, control=Control(**values), author="config", requested_at=5.0
        )

    first = Rank(server, started_at=1000.0, initial_control=brought())
    first.report(1, x=1.0)
    second = Rank(
        server,
        run_id=first.run_id,
        incarnation="second",
        started_at=2000.0,
        initial_control=brought(method=Method.CLIP_V, mu_low=2.0),
    )
    second.report(2, x=1.0)
    body = server.http.get(f"{first.path}/control").json()
    shown = [
        (control["version"], control["method"], control["mu_low"])
        for control in (body, body["active"])
    ]
    assert shown == [(0, "clip_v", 2.0)] * 2
    put(server, first, 0)
    entries = server.http.get("/api/v1/audit").json()["items"]
    entry = next(entry for entry in entries if entry["subject"] == f"runs/{first.run_id}/control/1")
    assert entry["change"]["old"]["mu_low"] == 2.0
    body = server.http.get(f"{first.path}/control").json()
    assert (body["version"], body["active"]["method"]) == (1, "clip_v")


def test_resumed_attempt_is_shown_under_its_reported_control(
    server: ServerInThread,
) -> None:
    def brought(method: Method) -> ControlSnapshot:
        return ControlSnapshot(
            version=0, control=Control(method=method), author="config", requested_at=5.0
        )

    first = Rank(server, started_at=1000.0, initial_control=brought(METHODS["kl_cov"]))
    second = Rank(
        server,
        run_id=first.run_id,
        incarnation="second",
        started_at=2000.0,
        initial_control=brought(Method.NONE),
    )
    second.send(step_report(2, {}, labels={"control/method": "kl_cov", "control/scope": "all"}))
    body = server.http.get(f"{first.path}/control").json()
    assert (body["active"]["method"], body["method"]) == ("kl_cov", "kl_cov")
    second.send(step_report(3, {}, labels={"control/method": "none", "control/scope": "all"}))
    assert server.http.get(f"{first.path}/control").json()["active"]["method"] == "none"
