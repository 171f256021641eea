"""Top contributing tokens, rollouts and alerts: stored with their step, and answered as they were
sent."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from isentrope.cli.commands import top_tokens
from isentrope.client import calls
from isentrope.client.client import Client
from isentrope.client.connection import ApiError
from isentrope_wire.control import Control
from isentrope_wire.reports import Alert, AlertCause, AlertLevel, DrivingToken, Rollout, StepReport
from isentrope_wire.what_if import BinSums, WhatIfSums
from tests.server.conftest import MakeServer
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


def send(rank: Rank, step: int, *tokens: DrivingToken, std: float = 0.25, **attached: Any) -> None:
    scalars = {"entropy/mean": 1.0, "score/vocab_centered_std": std}
    rank.send(StepReport(step=step, recorded_at=1.5, scalars=scalars, tokens=tokens, **attached))


def sums(lowering: float, raising: float) -> WhatIfSums:
    """Of two tokens."""
    bins = BinSums(cells=(0, 1), counts=(1, 1), change_sums=(lowering, raising))
    return WhatIfSums(tokens=2, change_sum=lowering + raising, by_method={"clip_v": bins})


def rollout(**known: Any) -> Rollout:
    fields: dict[str, Any] = {
        "rank": 0,
        "sequence": 3,
        "first_position": 6,
        "cut_before": True,
        "cut_after": False,
        "advantage": -1.0,
        "reward": None,
        "absolute_contribution": 0.75,
        "texts": (HOSTILE, "", "字"),
        "logprobs": (-2.0, None, -1.0),
        "vocab_centered_scores": (0.25, None, -0.125),
        "contributions": (-0.5, None, 0.25),
        "kept": (False, None, True),
        "influences": (-0.5, None, 0.5),
    }
    return Rollout(**(fields | known))


def alert(kind: str = "collapse", **evidence: float) -> Alert:
    return Alert(
        kind=kind, level=AlertLevel.WATCH, message=f"{kind} \x00 because", evidence=evidence
    )


def test_the_tokens_of_a_step_come_back_as_they_were_sent(rank: Rank, client: Client) -> None:
    send(
        rank,
        1,
        token(-0.5),
        token(0.25, sequence=None, token_id=None, text=None, kept=False, logprob=-math.inf),
    )
    send(rank, 2, token(0.125))
    tokens = client.ask(calls.tokens(rank.run_id, step=1))
    first, second = tokens.items
    assert tokens.step == 1
    assert first == token(-0.5)
    assert (second.sequence, second.token_id, second.text, second.kept) == (None, None, None, False)
    assert second.logprob == -math.inf
    assert [one.contribution for one in client.ask(calls.tokens(rank.run_id)).items] == [0.125]
    with pytest.raises(ApiError, match="9") as missing:
        client.ask(calls.tokens(rank.run_id, step=9))
    assert (missing.value.status, missing.value.code) == (404, "not_found")


def test_rollouts_come_back_as_they_were_sent(rank: Rank, client: Client) -> None:
    asked = {"prompt": HOSTILE, "rewards": {"format": math.inf, "right": 0.5}, "answer": "42"}
    send(
        rank,
        1,
        rollouts=(rollout(**asked), rollout(sequence=None, reward=1.0)),
        what_if=sums(-3.0, 1.0),
    )
    send(rank, 2)
    found = client.ask(calls.rollouts(rank.run_id))
    assert (found.step, found.score_std, found.lowering, found.raising) == (1, 0.25, -3.0, 1.0)
    first, second = found.items
    rounded: dict[str, Any] = {
        "logprobs": (-2.0, None, pytest.approx(-1.0, rel=1e-3)),
        "vocab_centered_scores": (0.25, None, pytest.approx(-0.125, rel=1e-3)),
        "contributions": (-0.5, None, pytest.approx(0.25, rel=1e-3)),
    }
    assert first == rollout(**asked, **rounded)
    assert (second.sequence, second.reward, second.prompt, second.rewards) == (None, 1.0, None, {})
    assert client.ask(calls.rollouts(rank.run_id, step=2)).items == []
    with pytest.raises(ApiError) as missing:
        client.ask(calls.rollouts(rank.run_id, step=9))
    assert (missing.value.status, missing.value.code) == (404, "not_found")


def test_top_tokens_come_with_what_a_share_and_sigmas_need(rank: Rank, client: Client) -> None:
    send(rank, 1, token(), what_if=sums(-3.0, 1.0))
    send(rank, 2, token(), std=math.nan)
    known, unknown = (client.ask(calls.tokens(rank.run_id, step=step)) for step in (1, 2))
    assert (known.score_std, known.lowering, known.raising) == (0.25, -3.0, 1.0)
    assert (unknown.score_std, unknown.lowering, unknown.raising) == (None, None, None)


def test_recurring_tokens_are_the_top_tokens_of_several_steps_by_text(
    server: ServerInThread,
) -> None:
    rank = Rank(server)
    parts = [token(-0.125 * number, text="\ufffd", token_id=number) for number in (1, 2)]
    send(rank, 1, token(text="early"), *parts, what_if=sums(-1.0, 0.0))
    send(
        rank,
        2,
        token(-1.0, text="wait", logprob=math.log(0.5)),
        token(4.0, text="so"),
        what_if=sums(-6.0, 1.0),
    )
    send(rank, 3, what_if=sums(-6.0, 1.0))
    again = token(-1.0, text="wait", logprob=math.log(0.25), vocab_centered_score=-0.5, kept=False)
    send(
        rank, 4, again, again, token(-0.5, text=None, token_id=7), std=0.5, what_if=sums(-2.0, 1.0)
    )
    with Client(server.url, server.owner_token) as client:
        found = client.top_tokens(rank.run_id, steps=2)
        assert (found.steps, found.pull) == ([2, 4], 8.0)
        wait, unnamed, so = found.items  # the entropy falls, so what lowers it comes first
        assert (wait.text, wait.times, wait.steps, wait.contribution, wait.share) == (
            "wait",
            3,
            2,
            -3.0,
            -0.375,
        )
        assert wait.mean_probability == pytest.approx((0.5 + 0.25 + 0.25) / 3)
        assert wait.mean_score == pytest.approx((2.0 - 1.0 - 1.0) / 3)
        assert wait.kept_share == pytest.approx(1 / 3)
        assert (so.text, so.share) == ("so", 0.5)
        assert (unnamed.text, unnamed.token_id, unnamed.times) == (None, 7, 1)
        assert client.ask(calls.recurring_tokens(rank.run_id, steps=10, step=3)).steps == [1, 2]
        first = client.ask(calls.recurring_tokens(rank.run_id, steps=1, step=1)).items
        assert [(one.text, one.token_id) for one in first[-2:]] == [("\ufffd", 2), ("\ufffd", 1)]
        assert first[0].text == "early"
    assert server.http.get(f"{rank.path}/tokens/recurring?steps=101").status_code == 422


def test_terminal_lists_the_tokens_that_lower_entropy_first(server: ServerInThread) -> None:
    rank = Rank(server)
    empty = CliRunner().invoke(top_tokens, [rank.run_id], env=owner(server))
    assert empty.output == f"Run {rank.run_id} has reported no top tokens yet.\n"
    lowering = token(-3.0, text="wait\n", logprob=math.log(0.5))
    send(rank, 1, lowering, token(1.0, text=None, kept=False), what_if=sums(-6.0, 1.0))
    shown = CliRunner().invoke(top_tokens, [rank.run_id], env=owner(server))
    head, _, first, second = shown.output.splitlines()
    assert head == "Steps 1 to 1"
    assert first.split() == ['"wait\\n"', "lowers", "50", "%", "1", "0.500", "+2.0", "100", "%"]
    assert second.split()[:3] == ["id", "42", "raises"]
    one = CliRunner().invoke(top_tokens, [rank.run_id, "--limit", "1", "--json"], env=owner(server))
    assert [item["text"] for item in json.loads(one.output)["items"]] == ["wait\n"]


def owner(server: ServerInThread) -> dict[str, str | None]:
    return {"ISENTROPE_URL": server.url, "ISENTROPE_TOKEN": server.owner_token}


def test_a_step_that_names_no_token_answers_with_none(server: ServerInThread, rank: Rank) -> None:
    assert server.http.get(f"{rank.path}/tokens").json()["items"] == []
    assert server.http.get(f"{rank.path}/tokens").json()["step"] is None
    send(rank, 1)
    assert server.http.get(f"{rank.path}/tokens?step=1").json()["items"] == []
    recurring = server.http.get(f"{rank.path}/tokens/recurring").json()
    assert (recurring["steps"], recurring["pull"], recurring["items"]) == ([], None, [])


def test_tokens_and_alerts_of_a_resumed_run_are_the_newest_attempts(server: ServerInThread) -> None:
    first = Rank(server, started_at=1.0)
    for step in range(5):
        send(first, step, token(float(step + 1)), alerts=(alert(f"first_{step}"),))
    second = Rank(server, run_id=first.run_id, incarnation="second", started_at=2.0)
    send(second, 3, token(-8.0), alerts=(alert("second_3"),))
    assert server.http.get(f"{first.path}/tokens").json()["items"][0]["contribution"] == -8.0
    assert server.http.get(f"{first.path}/tokens?step=2").json()["items"][0]["contribution"] == 3.0
    recurring = server.http.get(f"{first.path}/tokens/recurring").json()
    assert (recurring["steps"], recurring["items"][0]["contribution"]) == (
        [0, 1, 2, 3],
        1.0 + 2.0 + 3.0 - 8.0,
    )
    kinds = [item["kind"] for item in server.http.get(f"{first.path}/alerts").json()["items"]]
    assert kinds == ["second_3", "first_2", "first_1", "first_0"]


def test_alerts_come_newest_first_with_message_and_numbers(
    server: ServerInThread, rank: Rank
) -> None:
    send(rank, 1, alerts=(alert("dead_knob"), alert("collapse", rate=-0.5, r2=math.nan)))
    send(rank, 3, alerts=(alert("prediction"),))
    found = server.http.get(f"{rank.path}/alerts").json()["items"]
    assert [(item["step"], item["kind"]) for item in found] == [
        (3, "prediction"),
        (1, "collapse"),
        (1, "dead_knob"),
    ]
    assert found[1]["evidence"] == {"rate": -0.5, "r2": None}
    assert (found[1]["message"], found[1]["recorded_at"]) == ("collapse \ufffd because", 1.5)


def test_an_alert_has_level_cause_and_a_suggestion_that_can_be_pushed(
    server: ServerInThread,
) -> None:
    rank = Rank(server)
    changes = {"change/negative_low": -0.5, "change/by_kl_penalty": math.inf}
    cause = AlertCause(
        quadrant="change/negative_low",
        mechanism=None,
        changes=changes,
        message="unlikely \x00 tokens",
    )
    suggestion = Control(
        method="clip_v", mu_low=3.0, mu_high=3.0, scope="decreasing", reason="stop \x00 it"
    )
    send(
        rank,
        1,
        alerts=(
            alert(),
            replace(alert(), level=AlertLevel.ACT, cause=cause, suggestion=suggestion),
        ),
    )
    second, first = server.http.get(f"{rank.path}/alerts").json()["items"]
    assert (first["level"], first["cause"], first["suggestion"]) == ("watch", None, None)
    assert second["level"] == "act"
    assert second["cause"] == {
        "quadrant": "change/negative_low",
        "mechanism": None,
        "message": "unlikely \ufffd tokens",
        "changes": {"change/negative_low": -0.5, "change/by_kl_penalty": None},
    }
    assert second["suggestion"] == suggestion.to_document() | {"reason": "stop \ufffd it"}
    put = server.http.put(
        f"{rank.path}/control", json=second["suggestion"], headers={"If-Match": '"0"'}
    )
    assert put.status_code == 202


def test_the_first_who_acknowledges_an_alert_is_kept_over_a_restart(
    make_server: MakeServer,
) -> None:
    server = make_server()
    rank = Rank(server)
    send(rank, 1, alerts=(alert("prediction"), alert("collapse")))
    with Client(server.url, server.issue("control", "ann")["token"]) as ann:
        collapse, _ = ann.items(calls.alerts(rank.run_id))
        assert (collapse.acknowledged_by, collapse.acknowledged_at) == (None, None)
        path = f"{rank.path}/alerts/{collapse.id}/acknowledgement"
        with server.client(server.token("read")) as reader:
            refused, of_push = (
                reader.put(path),
                reader.put(f"{rank.path}/control", json={"method": "none"}),
            )
            assert (refused.status_code, refused.json()["error"]) == (403, of_push.json()["error"])
        first = ann.acknowledge(rank.run_id, collapse.id)
        assert first.acknowledged_at == pytest.approx(time.time(), abs=30)
        assert first == replace(
            collapse, acknowledged_by="ann", acknowledged_at=first.acknowledged_at
        )
        assert server.http.put(path).json()["acknowledged_by"] == "ann"
        for unknown in ("0.0", "x", "\0"):
            with pytest.raises(ApiError, match="no alert") as missing:
                ann.acknowledge(rank.run_id, unknown)
            assert (missing.value.status, missing.value.code) == (404, "not_found")
    server.stop()
    server = make_server()
    with Client(server.url, server.owner_token) as client:
        assert [one.acknowledged_by for one in client.items(calls.alerts(rank.run_id))] == [
            "ann",
            None,
        ]
        assert client.diagnosis(rank.run_id).alert == first
        (entry,) = (
            one
            for one in client.items(calls.audit(rank.run_id))
            if one.action == "alert.acknowledged"
        )
        assert (entry.actor, entry.subject) == ("ann", f"runs/{rank.run_id}/alerts/{collapse.id}")
