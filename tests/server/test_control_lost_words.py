"""What a server shows of controls when messages about them were lost: with a report, a process or a
restored database."""

from __future__ import annotations

import math
import time
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


def test_active_version_is_not_reused_by_a_server_that_lost_it(
    server: ServerInThread, rank: Rank
) -> None:
    """As after an older database was restored, or an empty one took its place."""
    rank.send(step_report(7, {}, control_version=3))
    assert server.http.get(f"{rank.path}/control").json()["active"] is None, (
        "version 3 is unknown here"
    )
    assert put(server, rank, 0).json()["version"] == 4
    assert put(server, rank, 4).json()["version"] == 5


def test_a_number_an_outcome_named_is_not_given_out_again(
    server: ServerInThread, rank: Rank
) -> None:
    rank.answer(7, 6, "REJECTED", code="capability_missing")
    assert put(server, rank, 0).json()["version"] == 7
    assert rank.requested().version == 7


def test_refused_version_is_not_the_active_one(server: ServerInThread, rank: Rank) -> None:
    """The server reused a number before the run could report that it is active."""
    put(server, rank, 0)
    rank.hello()
    rank.answer(3, 1, "REJECTED", code="version_taken", active=1)
    body = server.http.get(f"{rank.path}/control").json()
    assert (body["state"], body["code"], body["active"]) == ("REJECTED", "version_taken", None)
    assert put(server, rank, 1).json()["version"] == 2


def test_a_number_no_server_can_have_given_out_is_not_counted_on_from(
    server: ServerInThread, rank: Rank
) -> None:
    rank.send(step_report(7, {}, control_version=2**63 - 1))
    assert put(server, rank, 0).json()["version"] == 1


@pytest.mark.parametrize("outcome", ["APPLIED", "REJECTED"])
def test_outcome_of_a_quarantined_report_counts(server: ServerInThread, outcome: str) -> None:
    rank = delivered(server)
    step = 5 if outcome == "APPLIED" else None
    word = ControlOutcome(version=1, state=OutcomeState(outcome), at=time.time(), step=step)
    active = 1 if outcome == "APPLIED" else 0
    reply = rank.send(step_report(5, {"n" * 501: 1.0}, control_version=active, outcomes=(word,)))
    assert [item.code for item in reply.quarantined] == ["name_too_long"]
    assert (state(server, rank, 1)["state"], state(server, rank, 1)["applied_step"]) == (
        outcome,
        step,
    )


def test_a_word_in_a_refused_report_that_no_database_holds_is_passed_over(
    server: ServerInThread,
) -> None:
    rank = delivered(server)
    word = ControlOutcome(version=1, state=OutcomeState.APPLIED, at=math.inf, step=5)
    reply = rank.send(step_report(5, {}, control_version=1, outcomes=(word,)))
    assert ([item.code for item in reply.quarantined], reply.acked_through) == (["bad_time"], 1)
    assert state(server, rank, 1)["state"] == "DELIVERED"


def test_a_version_whose_word_was_lost_was_applied_when_reports_are_made_under_it(
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


def test_a_guessed_expiry_yields_to_a_report_made_under_the_version(
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


def test_a_resumed_life_shows_when_its_version_was_applied(
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


def test_a_ranks_own_word_counts_more_than_what_its_reports_name(make_server: MakeServer) -> None:
    server = make_server(control_rank_grace_seconds=0.2, sweep_interval_seconds=0.05)
    rank = delivered(server)
    rank.send(step_report(7, {}, control_version=1))
    assert state(server, rank, 1)["state"] == "DELIVERED"
    rank.answer(8, 1, "REJECTED", code="version_taken", active=1)
    assert (state(server, rank, 1)["state"], state(server, rank, 1)["code"]) == (
        "REJECTED",
        "version_taken",
    )


def test_a_version_no_probe_has_fetched_is_not_the_one_a_report_names(
    server: ServerInThread, rank: Rank
) -> None:
    put(server, rank, 0)
    rank.send(step_report(7, {}, control_version=1))
    assert state(server, rank, 1)["state"] == "PENDING"
    assert state(server, rank, 1)["applied_step"] is None


def test_late_outcome_of_an_older_attempt_counts_after_the_finish(server: ServerInThread) -> None:
    first = delivered(server, started_at=1000.0)
    second = Rank(server, run_id=first.run_id, incarnation="second", started_at=2000.0)
    second.send(step_report(3, {}), RunFinished(status="finished", finished_at=time.time(), step=3))
    assert (state(server, first, 1)["state"], state(server, first, 1)["code"]) == (
        "EXPIRED",
        "run_ended",
    )
    first.answer(2, 1, "APPLIED", active=1)
    assert (state(server, first, 1)["state"], state(server, first, 1)["applied_step"]) == (
        "APPLIED",
        2,
    )


def test_a_life_that_began_under_another_control_is_shown_under_its_own(
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
