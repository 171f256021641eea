"""What-if sums are stored with their step and answer for thresholds it did not have."""

from __future__ import annotations

from statistics import stdev

import pytest

from isentrope_wire.reports import StepReport
from isentrope_wire.what_if import EDGES, SIDES, BinSums, TokenGroup, WhatIfSums
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank


def sums(tokens: int = 10, *, change_sum: float = -4.0) -> WhatIfSums:
    """Two tokens 1 to 1.05 sigma below the centre that lower entropy, one 2 to 2.05 above it that
    raises it."""
    low = (TokenGroup.NEGATIVE_DECREASING * SIDES + 0) * len(EDGES) + EDGES.index(1.0)
    high = (TokenGroup.NEGATIVE_INCREASING * SIDES + 1) * len(EDGES) + EDGES.index(2.0)
    return WhatIfSums(
        tokens=tokens,
        change_sum=change_sum,
        by_method={"clip_v": BinSums((low, high), (2, 1), (-3.0, 0.5))},
    )


def send(
    rank: Rank,
    step: int,
    what_if: WhatIfSums | None,
    *,
    gain: float | None = None,
    method: str = "clip_v",
) -> None:
    rank.send(
        StepReport(
            step=step,
            recorded_at=1.0,
            scalars={"entropy/mean": 1.0} | ({} if gain is None else {"entropy/gain": gain}),
            labels={"control/method": method},
            what_if=what_if,
        )
    )


def test_newest_step_is_the_default(server: ServerInThread, rank: Rank) -> None:
    send(rank, 1, sums(change_sum=-8.0))
    send(rank, 2, sums())
    newest = server.http.get(
        f"{rank.path}/what-if", params={"mu_low": 1.0, "scope": "negative"}
    ).json()
    assert (newest["step"], newest["tokens"], newest["method"], newest["scope"]) == (
        2,
        10,
        "clip_v",
        "negative",
    )
    assert (newest["clip_fraction"], newest["unit_predicted_change"]) == (0.2, pytest.approx(-0.1))
    assert (newest["unclipped_unit_predicted_change"], newest["curve"]) == (-0.4, None)
    older = server.http.get(f"{rank.path}/what-if", params={"mu_low": 1.0, "step": 1}).json()
    assert (older["step"], older["unit_predicted_change"]) == (1, pytest.approx(-0.5))


def test_a_step_whose_sums_count_no_token_answers_like_one_without_and_hides_no_other(
    server: ServerInThread,
) -> None:
    rank = Rank(server)
    send(rank, 1, sums())
    send(rank, 2, WhatIfSums(tokens=0, change_sum=0.0))
    path = f"{rank.path}/what-if?mu_low=1"
    assert server.http.get(path).json()["step"] == 1
    answer = server.http.get(f"{path}&step=2")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "what_if_missing")


def test_the_calibrated_change_is_missing_until_the_gain_is_known(
    server: ServerInThread, rank: Rank
) -> None:
    send(rank, 1, sums())
    send(rank, 2, sums(), gain=0.5)
    send(rank, 3, sums(), gain=float("nan"))
    found = [
        server.http.get(f"{rank.path}/what-if?step={step}&mu_low=1&curve=true").json()
        for step in (1, 2, 3)
    ]
    assert [one["predicted_change"] for one in found] == [None, pytest.approx(-0.05), None]
    assert [one["gain"] for one in found] == [None, 0.5, None]
    assert found[0]["curve"]["low"]["predicted_change"] is None
    assert found[1]["curve"]["low"]["predicted_change"][0] == pytest.approx(-0.05)


def test_without_thresholds_it_is_the_whole_curve_of_each_side(
    server: ServerInThread, rank: Rank
) -> None:
    send(rank, 1, sums())
    found = server.http.get(f"{rank.path}/what-if").json()
    assert (found["clip_fraction"], found["unit_predicted_change"]) == (0, -0.4)
    low, high = found["curve"]["low"], found["curve"]["high"]
    assert low["mu"] == high["mu"] == list(EDGES)
    at = EDGES.index
    assert [low["clip_fraction"][at(mu)] for mu in (0.0, 1.0, 1.05, 2.0)] == [0.2, 0.2, 0, 0]
    assert [high["clip_fraction"][at(mu)] for mu in (0.0, 2.0, 2.05)] == [0.1, 0.1, 0]
    assert low["unit_predicted_change"][at(1.0)] == pytest.approx(-0.1)


def test_a_curve_holds_the_other_side_at_what_was_asked(server: ServerInThread, rank: Rank) -> None:
    send(rank, 1, sums())
    found = server.http.get(f"{rank.path}/what-if?mu_high=2&curve=true").json()
    assert found["curve"]["low"]["clip_fraction"][0] == pytest.approx(0.3)
    assert found["curve"]["low"]["clip_fraction"][-1] == pytest.approx(0.1)
    assert found["curve"]["high"]["clip_fraction"][0] == pytest.approx(0.1)


def test_bound_is_given_between_edges(server: ServerInThread, rank: Rank) -> None:
    send(rank, 1, sums())
    found = server.http.get(f"{rank.path}/what-if?mu_low=1.0125").json()
    assert (found["clip_fraction"], found["clip_fraction_bound"]) == (
        pytest.approx(0.15),
        pytest.approx(0.15),
    )
    assert found["unit_predicted_change_bound"] == pytest.approx(0.75 * 0.3)


def test_the_method_is_the_steps_own_unless_asked_for(server: ServerInThread, rank: Rank) -> None:
    for step, method in enumerate(("clip_b", "none", "clip_cov")):
        send(rank, step, sums(), method=method)
    assert [
        server.http.get(f"{rank.path}/what-if?step={s}").json()["method"] for s in range(3)
    ] == [
        "clip_b",
        "clip_v",
        "clip_v",
    ]
    assert (
        server.http.get(f"{rank.path}/what-if?step=0&method=clip_v&mu_low=1").json()[
            "clip_fraction"
        ]
        == 0.2
    )


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 404, "what_if_missing"),
        ("?step=1", 404, "what_if_missing"),
        ("?step=9", 404, "not_found"),
        ("?mu_low=-1", 422, "invalid_request"),
        ("?mu_high=inf", 422, "invalid_request"),
        ("?scope=some", 422, "invalid_request"),
        ("?method=clip_cov", 422, "invalid_request"),
    ],
)
def test_unanswerable_question_gets_its_reason(
    server: ServerInThread, query: str, status: int, code: str
) -> None:
    rank = Rank(server)
    send(rank, 1, None)
    answer = server.http.get(f"{rank.path}/what-if{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_several_steps_are_answered_by_their_mean_and_spread(
    server: ServerInThread, rank: Rank
) -> None:
    for step, tokens, change_sum in ((1, 10, -4.0), (2, 10, -9.0), (4, 30, -4.0)):
        send(rank, step, sums(tokens, change_sum=change_sum), gain=0.5)
    send(rank, 3, None)
    asked = {"mu_low": 1.0, "steps": 3, "curve": True}
    found = server.http.get(f"{rank.path}/what-if", params=asked).json()
    assert (found["step"], found["steps"], found["tokens"]) == (4, 3, 50)
    assert found["clip_fraction"] == pytest.approx(6 / 50)
    assert found["clip_fraction_std"] == pytest.approx(stdev([0.2, 0.2, 2 / 30]))
    assert found["predicted_change"] == pytest.approx(0.5 * (-1.0 - 6.0 - 1.0) / 50)
    assert found["predicted_change_std"] == pytest.approx(0.5 * stdev([-0.1, -0.6, -1 / 30]))
    at_one = EDGES.index(1.0)
    assert found["curve"]["low"]["clip_fraction_std"][at_one] == pytest.approx(
        found["clip_fraction_std"]
    )
    assert found["curve"]["low"]["predicted_change"][at_one] == pytest.approx(
        found["predicted_change"]
    )
    alone = server.http.get(
        f"{rank.path}/what-if", params={"mu_low": 1.0, "step": 2, "curve": True}
    ).json()
    assert (
        alone["steps"],
        alone["clip_fraction_std"],
        alone["curve"]["low"]["predicted_change_std"],
    ) == (
        1,
        None,
        None,
    )
