"""A control version is asked for once, delivered once, and ends in exactly one state."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from isentrope_server.control.outcomes import expire_overdue
from isentrope_server.digests import renew_digests
from isentrope_server.store.tables import audit as audit_table
from isentrope_server.store.tables import controls
from isentrope_server.store.tables import runs as runs_table
from isentrope_wire.codec import decode_control
from isentrope_wire.control import Control, Method
from isentrope_wire.methods import METHODS
from isentrope_wire.reports import Alert, AlertLevel, ControlSnapshot, RunFinished
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, report_slowly, step_report
from tests.system.running_server import wait_for

CLIP_V = {
    "method": "clip_v",
    "mu_low": 1.0,
    "mu_high": 2.0,
    "scope": "negative",
    "reason": "entropy falls",
}


def put(
    server: ServerInThread,
    rank: Rank,
    on: int,
    document: dict[str, Any] | None = None,
    *,
    idempotency_key: str | None = None,
) -> httpx.Response:
    headers = {"If-Match": f'"{on}"'} | (
        {"Idempotency-Key": idempotency_key} if idempotency_key else {}
    )
    return server.http.put(
        f"{rank.path}/control", json=CLIP_V if document is None else document, headers=headers
    )


def delivered(server: ServerInThread, **known: Any) -> Rank:
    """A rank that knows version 1 of its run's control."""
    rank = Rank(server, **known)
    put(server, rank, 0)
    assert rank.requested().version == 1
    return rank


def state(server: ServerInThread, rank: Rank, version: int) -> dict[str, Any]:
    items = server.http.get(f"{rank.path}/control/history").json()["items"]
    item: dict[str, Any] = next(item for item in items if item["version"] == version)
    return item


@pytest.mark.parametrize("guard", [None, "alert", "revert"])
def test_a_guard_takes_a_harmful_control_back(server: ServerInThread, guard: str | None) -> None:
    rank = Rank(server)
    put(server, rank, 0, {**CLIP_V, "guard": guard})
    harm = Alert(
        kind="overshoot",
        level=AlertLevel.ACT,
        message="Version 1 overshoots.",
        evidence={"version": 1.0},
        suggestion=Control(),
    )
    # A second report of it, and one about another version, change nothing.
    for step, version in ((5, 1), (6, 1), (7, 0)):
        alert = replace(harm, evidence={"version": float(version)})
        rank.send(
            replace(step_report(step, {"reward/mean": 0.1}), control_version=1, alerts=(alert,))
        )
    history = server.http.get(f"{rank.path}/control/history").json()["items"]
    items = [item for item in history if item["version"]]
    if guard != "revert":
        assert [item["version"] for item in items] == [1]
        return
    reverted, pushed = items
    assert (reverted["method"], reverted["author"]) == ("none", "guard")
    assert reverted["reason"] == "Guard: Version 1 overshoots."
    assert pushed["guard"] == "revert"
    entries = server.http.get("/api/v1/audit").json()["items"]
    subject = f"runs/{rank.run_id}/control/2"
    assert "guard" in {entry["actor"] for entry in entries if entry["subject"] == subject}


def test_version_zero_is_what_the_run_started_with(server: ServerInThread) -> None:
    initial = ControlSnapshot(
        version=0,
        control=Control(method=Method.CLIP_B, mu_low=2.5),
        author="config",
        requested_at=5.0,
    )
    rank = Rank(server, initial_control=initial)
    answer = server.http.get(f"{rank.path}/control")
    assert answer.headers["etag"] == '"0"'
    body = answer.json()
    assert (body["version"], body["state"], body["method"], body["mu_low"]) == (
        0,
        "APPLIED",
        "clip_b",
        2.5,
    )
    assert body["active"]["version"] == 0
    assert not rank.welcome.HasField("control")


def test_a_push_is_delivered_applied_and_acknowledged_with_its_step(
    server: ServerInThread, rank: Rank
) -> None:
    rank.report(4, x=1.0)
    watching = rank.watch()
    answer = put(server, rank, 0)
    assert answer.status_code == 202
    assert answer.headers["etag"] == '"1"'
    item = answer.json()
    assert (item["version"], item["state"], item["author"], item["requested_step"]) == (
        1,
        "PENDING",
        "owner",
        4,
    )
    snapshot = watching.next_control()
    wanted = snapshot.control.to_document()
    assert (snapshot.version, wanted["method"], wanted["mu_low"]) == (1, "clip_v", 1.0)
    assert wanted["reason"] == "entropy falls"
    assert snapshot.expires_at == pytest.approx(time.time() + 600, abs=5)
    assert state(server, rank, 1)["state"] == "DELIVERED"
    rank.answer(5, 1, "APPLIED", active=1)
    applied = server.http.get(f"{rank.path}/control").json()
    assert (applied["state"], applied["applied_step"], applied["active"]["version"]) == (
        "APPLIED",
        5,
        1,
    )
    assert applied["outcomes"][0]["state"] == "APPLIED"
    watching.close()


def test_a_change_must_name_the_version_it_builds_on(server: ServerInThread, rank: Rank) -> None:
    missing = server.http.put(f"{rank.path}/control", json=CLIP_V)
    assert (missing.status_code, missing.json()["error"]["code"]) == (428, "if_match_required")
    assert put(server, rank, 0).status_code == 202
    stale = put(server, rank, 0)
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "version_mismatch")
    assert stale.json()["error"]["details"] == {"version": 1}
    no_etag = server.http.put(f"{rank.path}/control", json=CLIP_V, headers={"If-Match": "what"})
    assert no_etag.status_code == 412
    assert put(server, rank, 1).json()["version"] == 2
    # Proxies that compress an answer change its ETag.
    for changed in ('W/"2"', '"3-gzip"'):
        answer = server.http.put(f"{rank.path}/control", json=CLIP_V, headers={"If-Match": changed})
        assert answer.status_code == 202, changed


def test_a_repeated_request_is_answered_with_what_became_of_the_first(
    server: ServerInThread, rank: Rank
) -> None:
    first = put(server, rank, 0, idempotency_key="once")
    again = put(server, rank, 0, idempotency_key="once")
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()
    other = put(server, rank, 1, {"method": "none"}, idempotency_key="once")
    assert other.status_code == 422
    assert server.http.get(f"{rank.path}/control").json()["version"] == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"method": "clip_v", "mu_low": NaN}',
        b'{"method": "clip_v", "mu_low": 1e999}',
        b'{"method": "kl_cov", "parameters": {"a": [{"b": Infinity}]}}',
        b'{"method": "kl_cov", "parameters": {"a": "\\ud800"}}',
        b'{"method": "none", "reason": "\\ud800"}',
        b'{"method": ',
        b"[]",
    ],
)
def test_json_that_is_none_is_refused(server: ServerInThread, rank: Rank, body: bytes) -> None:
    answer = server.http.put(
        f"{rank.path}/control",
        content=body,
        headers={"If-Match": '"0"', "Content-Type": "application/json"},
    )
    assert answer.status_code == 422, answer.text
    assert set(answer.json()["error"]) == {"code", "message", "details"}


def test_a_compressed_body_is_named(server: ServerInThread, rank: Rank) -> None:
    headers = {"If-Match": '"0"', "Content-Encoding": "gzip"}
    document = gzip.compress(b'{"method": "none"}')
    answer = server.http.put(f"{rank.path}/control", content=document, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert "compressed (gzip)" in answer.json()["error"]["message"]


def test_json_that_is_not_called_so_is_refused_with_the_header_it_needs(
    server: ServerInThread, rank: Rank
) -> None:
    answer = server.http.put(
        f"{rank.path}/control", content=b'{"method": "none"}', headers={"If-Match": '"0"'}
    )
    assert (answer.status_code, "Content-Type: application/json" in answer.text) == (422, True)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"mu_low": 1.0}, "method"),
        ({"method": "clip_v", "mu_low": "1"}, "mu_low"),
        ({"method": "clip_v", "mu_low": 10**400}, "mu_low"),
        ({"method": "clip_v", "mu_low": 1, "mu_hihg": 2}, "mu_hihg"),
        ({"method": "clip_v", "mu_low": 1, "expires_in_seconds": 0}, "expires_in_seconds"),
        ({"method": "clip_v", "mu_low": 1, "expires_in_seconds": True}, "expires_in_seconds"),
        ({"method": "none", "hold": {"target_entropy": -1}}, "target_entropy"),
    ],
)
def test_a_document_with_a_field_missing_mistyped_or_without_effect_is_refused_by_name(
    server: ServerInThread, rank: Rank, document: dict[str, Any], field: str
) -> None:
    answer = put(server, rank, 0, document)
    assert answer.status_code == 422, answer.text
    assert field in answer.json()["error"]["message"]
    assert server.http.get(f"{rank.path}/control").json()["version"] == 0


def test_parameters_travel_to_the_probe_and_stand_in_the_history(server: ServerInThread) -> None:
    rank = Rank(server, capabilities=("method:none", "method:clip_cov"))
    wanted = {
        "method": "clip_cov",
        "parameters": {"ratio": 0.001, "seed": 7},
        "expires_in_seconds": 60,
    }
    answer = put(server, rank, 0, wanted)
    assert (answer.status_code, answer.json()["parameters"]) == (202, {"ratio": 0.001, "seed": 7})
    sent = rank.requested()
    assert sent.control == Control(method="clip_cov", parameters={"ratio": 0.001, "seed": 7})
    assert sent.expires_at == pytest.approx(time.time() + 60, abs=5)
    assert state(server, rank, 1)["parameters"] == {"ratio": 0.001, "seed": 7}


def test_preset_is_recorded_by_its_values(server: ServerInThread, rank: Rank) -> None:
    item = put(server, rank, 0, {"method": "clip_v", "parameters": {"preset": "trinity"}}).json()
    assert (item["mu_low"], item["scope"]) == (8.5, "negative")
    assert item["parameters"] == METHODS["clip_v"].presets["trinity"]["parameters"]


def test_what_the_probe_cannot_do_is_refused_at_the_door(server: ServerInThread) -> None:
    rank = Rank(server, capabilities=("method:none",))
    answer = put(server, rank, 0)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "capability_missing")
    assert answer.json()["error"]["details"]["capability"] == "method:clip_v"


def test_rejection_has_a_code_and_keeps_the_old_control(server: ServerInThread) -> None:
    rank = delivered(server)
    rank.answer(3, 1, "REJECTED", code="capability_missing")
    body = server.http.get(f"{rank.path}/control").json()
    assert (body["state"], body["code"], body["applied_step"]) == (
        "REJECTED",
        "capability_missing",
        None,
    )
    assert body["active"]["version"] == 0
    assert not rank.hello().HasField("control")


def test_ranks_that_stay_quiet_are_not_waited_for_for_ever(make_server: MakeServer) -> None:
    server = make_server(control_rank_grace_seconds=0.2, sweep_interval_seconds=0.05)
    zero = Rank(server)
    one = Rank(server, run_id=zero.run_id, rank=1)
    Rank(server, run_id=zero.run_id, rank=2)
    put(server, zero, 0)
    zero.hello()
    zero.answer(3, 1, "APPLIED", active=1)
    wait_for(lambda: state(server, zero, 1)["state"] == "PARTIAL")
    item = state(server, zero, 1)
    assert (item["code"], item["applied_step"]) == ("ranks_silent", 3)
    assert "2" in item["message"]
    one.answer(3, 1, "APPLIED", active=1)
    assert state(server, zero, 1)["code"] == "ranks_silent", "rank 2 is silent still"


@pytest.mark.parametrize(("late", "ended"), [("APPLIED", "APPLIED"), ("REJECTED", "PARTIAL")])
def test_a_slow_ranks_word_replaces_what_the_server_concluded_from_its_silence(
    make_server: MakeServer, late: str, ended: str
) -> None:
    server = make_server(control_rank_grace_seconds=0.2, sweep_interval_seconds=0.05)
    zero = Rank(server)
    one = Rank(server, run_id=zero.run_id, rank=1)
    put(server, zero, 0)
    zero.hello()
    zero.answer(3, 1, "APPLIED", active=1)
    wait_for(lambda: state(server, zero, 1)["state"] == "PARTIAL")
    one.answer(3, 1, late, code="" if late == "APPLIED" else "capability_missing", active=1)
    item = state(server, zero, 1)
    assert (item["state"], item["code"]) == (
        ended,
        "" if late == "APPLIED" else "capability_missing",
    )
    one.answer(4, 1, "REJECTED", code="again", active=1)
    assert state(server, zero, 1) == item, "the outcomes of all ranks are kept"


def let_expire(server: ServerInThread, rank: Rank) -> None:
    """As if the time of the run's newest version were over."""
    of_run = (
        controls.c.run_key
        == select(runs_table.c.key).where(runs_table.c.id == rank.run_id).scalar_subquery()
    )
    change = update(controls).where(of_run).values(expires_at=time.time() - 1)
    server.backend.writer.submit(
        lambda transaction: transaction.connection.execute(change).rowcount
    ).result(timeout=10)
    wait_for(lambda: state(server, rank, 1)["state"] == "EXPIRED")


def test_unfetched_version_expires(make_server: MakeServer) -> None:
    server = make_server(sweep_interval_seconds=0.05)
    rank = Rank(server)
    put(server, rank, 0)
    assert state(server, rank, 1)["state"] == "PENDING"
    let_expire(server, rank)
    assert state(server, rank, 1)["code"] == "never_delivered"
    assert not rank.hello().HasField("control")


def paced(server: ServerInThread, seconds_per_step: float) -> Rank:
    """A run that makes a step in this time, as its digest says."""
    rank = Rank(server)
    report_slowly(rank, seconds_per_step=seconds_per_step)
    asyncio.run(renew_digests(server.backend, rest=0))
    return rank


@pytest.mark.parametrize(
    ("seconds_per_step", "asked", "lives"),
    [(1.0, None, 600.0), (150.0, None, 600.0), (400.0, None, 1200.0), (400.0, 10, 10.0)],
)
def test_a_control_lives_three_steps_at_least(
    still_server: ServerInThread, seconds_per_step: float, asked: int | None, lives: float
) -> None:
    rank = paced(still_server, seconds_per_step)
    put(still_server, rank, 0, {**CLIP_V, "expires_in_seconds": asked})
    item = state(still_server, rank, 1)
    assert item["expires_at"] - item["requested_at"] == pytest.approx(lives)


@pytest.mark.parametrize(("expired_ago", "state_now"), [(89.0, "DELIVERED"), (91.0, "EXPIRED")])
def test_an_answer_may_take_two_steps(
    still_server: ServerInThread, expired_ago: float, state_now: str
) -> None:
    rank = paced(still_server, 45.0)
    put(still_server, rank, 0, {**CLIP_V, "expires_in_seconds": 10})
    rank.hello()
    later = state(still_server, rank, 1)["expires_at"] + expired_ago
    still_server.backend.writer.submit(
        partial(expire_overdue, now=later, answer_seconds=30.0, rank_seconds=10.0)
    ).result(timeout=10)
    item = state(still_server, rank, 1)
    assert item["state"] == state_now
    assert ("A step of this run takes 45 s" in item["message"]) == (state_now == "EXPIRED")


def test_the_probes_expiry_names_the_steps_length(still_server: ServerInThread) -> None:
    rank = paced(still_server, 45.0)
    put(still_server, rank, 0)
    rank.hello()
    rank.answer(4, 1, "EXPIRED", code="time_to_live_over")
    assert "A step of this run takes 45 s" in state(still_server, rank, 1)["message"]


def test_a_guessed_expiry_yields_to_the_probes_word(make_server: MakeServer) -> None:
    server = make_server(sweep_interval_seconds=0.05, control_answer_grace_seconds=0.1)
    rank = Rank(server)
    put(server, rank, 0)
    assert rank.requested().version == 1
    let_expire(server, rank)
    assert state(server, rank, 1)["code"] == "unanswered"
    rank.answer(3, 1, "APPLIED", active=1)
    assert (state(server, rank, 1)["state"], state(server, rank, 1)["code"]) == ("APPLIED", "")


def test_an_ended_run_takes_no_control(server: ServerInThread, rank: Rank) -> None:
    rank.report(1, x=1.0)
    rank.send(RunFinished(status="finished", finished_at=time.time(), step=1))
    refused = put(server, rank, 0)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")


def test_resumed_run_gets_the_active_control(server: ServerInThread) -> None:
    first = delivered(server, started_at=1000.0)
    first.answer(3, 1, "APPLIED", active=1)
    second = Rank(server, run_id=first.run_id, incarnation="second", started_at=2000.0)
    welcome = decode_control(second.welcome.control)
    assert (welcome.version, welcome.expires_at) == (1, None)


def test_a_run_that_brings_a_later_version_goes_on_counting_from_it(server: ServerInThread) -> None:
    brought = ControlSnapshot(
        version=7,
        control=Control(method=Method.CLIP_V, mu_low=1.0),
        author="alice",
        requested_at=5.0,
    )
    rank = Rank(server, initial_control=brought)
    assert put(server, rank, 7).json()["version"] == 8


def test_heartbeats_come_however_many_reports_come_in(rank: Rank) -> None:
    watching = rank.watch()
    step, beats = 0, 0
    for _ in range(2):
        with ThreadPoolExecutor(1) as waiting:
            heard = waiting.submit(watching.next_kind)
            while not heard.done():
                step += 1
                rank.report(step)
        beats += heard.result() == "heartbeat"
    assert beats == 2
    watching.close()


def test_every_change_is_in_the_audit_trail(make_server: MakeServer) -> None:
    server = make_server()
    rank = delivered(server)
    rank.answer(3, 1, "APPLIED", active=1)

    def trail() -> list[tuple[str, str]]:
        with server.backend.database.reading() as connection:
            rows = connection.execute(audit_table.select().order_by(audit_table.c.key)).all()
        return [(row.actor, row.action) for row in rows if row.subject.endswith("control/1")]

    assert trail() == [
        ("owner", "control.requested"),
        ("server", "control.delivered"),
        ("rank 0", "control.applied"),
    ]


def test_change_is_refused_if_the_run_finishes_before_its_turn(
    server: ServerInThread, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.report(1, x=1.0)
    go_on, queued = threading.Event(), list[str]()
    submit = server.backend.writer.submit

    def noted(work: Any, **how: Any) -> Any:
        future = submit(work, **how)
        queued.append(getattr(work, "func", work).__qualname__)
        return future

    monkeypatch.setattr(server.backend.writer, "submit", noted)
    submit(lambda transaction: go_on.wait(30))
    finish = RunFinished(status="finished", finished_at=time.time(), step=1)
    with ThreadPoolExecutor(2) as people:
        people.submit(rank.send, finish)
        wait_for(lambda: any(name.startswith("TelemetryServicer._store") for name in queued))
        answer = people.submit(put, server, rank, 0)
        wait_for(lambda: any(name.startswith("put_control") for name in queued))
        go_on.set()
        assert (answer.result().status_code, answer.result().json()["error"]["code"]) == (
            409,
            "conflict",
        )
    assert server.http.get(f"{rank.path}/control").json()["version"] == 0
