"""The top contributing tokens, and alerts: stored with their step, and answered as they were sent."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest

from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope_wire.control import Control
from isentrope_wire.reports import Alert, AlertCause, AlertLevel, DrivingToken, StepReport
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

HOSTILE = "<img src=x onerror=alert(1)>\x00\u202e{{7*7}}"


def token(contribution: float = -0.5, **known: object) -> DrivingToken:
    fields: dict[str, object] = {
        "rank": 0,
        "sequence": 3,
        "position": 7,
        "token_id": 42,
        "text": HOSTILE,
        "logprob": -0.25,
        "entropy": 1.5,
        "vocab_centered_score": 0.5,
        "advantage": 1.0,
        "contribution": contribution,
        "kept": True,
    }
    return DrivingToken(**(fields | known))  # type: ignore[arg-type]


def send(rank: Rank, step: int, *tokens: DrivingToken, alerts: tuple[Alert, ...] = ()) -> None:
    rank.send(StepReport(step=step, recorded_at=1.5, scalars={"entropy/mean": 1.0}, tokens=tokens, alerts=alerts))


def alert(kind: str = "collapse", **evidence: float) -> Alert:
    return Alert(kind=kind, level=AlertLevel.WATCH, message=f"{kind} \x00 because", evidence=evidence)


def test_the_tokens_of_a_step_come_back_as_they_were_sent(server: ServerInThread) -> None:
    rank = Rank(server)
    send(rank, 1, token(-0.5), token(0.25, sequence=None, token_id=None, text=None, kept=False, logprob=-math.inf))
    send(rank, 2, token(0.125))
    with Client(server.url, server.owner_token) as client:
        tokens = client.tokens(rank.run_id, step=1)
        first, second = tokens.items
        assert tokens.step == 1
        assert asdict(first) == {
            "rank": 0, "sequence": 3, "position": 7, "token_id": 42, "text": HOSTILE, "logprob": -0.25,
            "entropy": 1.5, "vocab_centered_score": 0.5, "advantage": 1.0, "contribution": -0.5, "kept": True,
        }  # fmt: skip
        assert (second.sequence, second.token_id, second.text, second.kept) == (None, None, None, False)
        assert second.logprob == -math.inf
        assert [one.contribution for one in client.tokens(rank.run_id).items] == [0.125]
        with pytest.raises(ApiError, match="9") as missing:
            client.tokens(rank.run_id, step=9)
        assert (missing.value.status, missing.value.code) == (404, "not_found")


def test_a_step_that_names_no_token_answers_with_none(server: ServerInThread) -> None:
    rank = Rank(server)
    assert server.http.get(f"{rank.path}/tokens").json() == {"step": None, "items": [], "next_cursor": None}
    send(rank, 1)
    assert server.http.get(f"{rank.path}/tokens?step=1").json()["items"] == []


def test_a_resumed_run_speaks_of_tokens_and_alerts_from_its_first_step_on(server: ServerInThread) -> None:
    first = Rank(server, started_at=1.0)
    for step in range(5):
        send(first, step, token(float(step + 1)), alerts=(alert(f"first_{step}"),))
    second = Rank(server, run_id=first.run_id, incarnation="second", started_at=2.0)
    send(second, 3, token(-8.0), alerts=(alert("second_3"),))
    assert server.http.get(f"{first.path}/tokens").json()["items"][0]["contribution"] == -8.0
    assert server.http.get(f"{first.path}/tokens?step=2").json()["items"][0]["contribution"] == 3.0
    kinds = [item["kind"] for item in server.http.get(f"{first.path}/alerts").json()["items"]]
    assert kinds == ["second_3", "first_2", "first_1", "first_0"]


def test_alerts_come_newest_first_with_message_and_numbers_page_by_page(server: ServerInThread) -> None:
    rank = Rank(server)
    send(rank, 1, alerts=(alert("dead_knob"), alert("collapse", rate=-0.5, r2=math.nan)))
    send(rank, 2)
    send(rank, 3, alerts=(alert("prediction"),))
    found = server.http.get(f"{rank.path}/alerts?limit=2").json()
    assert [(item["step"], item["kind"]) for item in found["items"]] == [(3, "prediction"), (1, "collapse")]
    assert found["items"][1]["evidence"] == {"rate": -0.5, "r2": None}
    assert (found["items"][1]["message"], found["items"][1]["recorded_at"]) == ("collapse \ufffd because", 1.5)
    rest = server.http.get(f"{rank.path}/alerts", params={"cursor": found["next_cursor"]}).json()
    assert ([item["kind"] for item in rest["items"]], rest["next_cursor"]) == (["dead_knob"], None)
    with Client(server.url, server.owner_token) as client:
        assert [item.step for item in client.alerts(rank.run_id)] == [3, 1, 1]
    assert server.http.get(f"{rank.path}/alerts?cursor=x").status_code == 400


def test_an_alert_has_level_cause_and_a_suggestion_that_can_be_pushed(server: ServerInThread) -> None:
    rank = Rank(server)
    changes = {"change/negative_low": -0.5, "change/by_kl_penalty": math.inf}
    cause = AlertCause(quadrant="change/negative_low", mechanism=None, changes=changes, message="unlikely \x00 tokens")
    suggestion = Control(method="clip_v", mu_low=3.0, mu_high=3.0, scope="decreasing", reason="stop \x00 it")
    send(rank, 1, alerts=(alert(), replace(alert(), level=AlertLevel.ACT, cause=cause, suggestion=suggestion)))
    second, first = server.http.get(f"{rank.path}/alerts").json()["items"]
    assert (first["level"], first["cause"], first["suggestion"]) == ("watch", None, None)
    assert second["level"] == "act"
    assert second["cause"] == {
        "quadrant": "change/negative_low", "mechanism": None, "message": "unlikely \x00 tokens",
        "changes": {"change/negative_low": -0.5, "change/by_kl_penalty": None},
    }  # fmt: skip
    assert second["suggestion"] == suggestion.to_document()
    put = server.http.put(f"{rank.path}/control", json=second["suggestion"], headers={"If-Match": '"0"'})
    assert put.status_code == 202
    with Client(server.url, server.owner_token) as client:
        (newest, _) = client.alerts(rank.run_id)
        assert newest.level is AlertLevel.ACT
        assert newest.cause is not None
        assert newest.cause.quadrant == "change/negative_low"
