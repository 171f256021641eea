"""The law of a run, over the line."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from isentrope.client.client import Client
from isentrope_wire.reports import RunFinished
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

A, B = 0.15, 1.1


def train(rank: Rank, steps: int, *, first: int = 0) -> None:
    """Steps whose entropy falls from 2 to 0.3 nats over 200 of them, and whose reward follows the law with noise."""
    noise = np.random.default_rng(1).normal(size=200) * 0.01
    reports = []
    for step in range(first, first + steps):
        entropy = 2.0 - 1.7 * step / 200
        reward = B - A * math.exp(entropy) + float(noise[step])
        reports.append(step_report(step, {"entropy/mean": entropy, "reward/mean": reward}))
    rank.send(*reports)


def test_a_run_tells_its_law_its_ceiling_and_how_well_its_beginning_foretold_its_end(server: ServerInThread) -> None:
    rank = Rank(server)
    train(rank, 200)
    rank.send(RunFinished(status="finished", finished_at=time.time(), step=199))
    law = server.http.get(f"{rank.path}/law").json()
    assert (law["steps"], law["confidence"], law["reason"]) == (200, 0.9, None)
    assert law["fit"]["a"]["value"] == pytest.approx(A, abs=0.003)
    assert law["fit"]["ceiling"]["low"] < B - A < law["fit"]["ceiling"]["high"]
    assert law["fit"]["conclusive"] is True
    assert law["curve"]["entropy"][0] == 0
    assert law["curve"]["entropy"][-1] == 2.0
    assert law["curve"]["reward"][0] == pytest.approx(law["fit"]["ceiling"]["value"])
    assert law["curve"]["low"][40] < law["curve"]["reward"][40] < law["curve"]["high"][40]
    forecast = law["forecast"]
    assert (forecast["through_step"], forecast["final_steps"], forecast["run_over"]) == (29, 10, True)
    assert forecast["error"] == pytest.approx(forecast["reward"]["value"] - forecast["actual"])
    assert abs(forecast["error"]) < 0.03
    assert (law["points"]["step"][0], law["points"]["step"][-1], len(law["points"]["entropy"])) == (0, 199, 200)


def test_many_steps_are_shown_as_means_of_neighbours(server: ServerInThread) -> None:
    rank = Rank(server)
    train(rank, 100)
    points = server.http.get(f"{rank.path}/law?points=10").json()["points"]
    assert points["step"] == [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]
    assert points["entropy"][0] == pytest.approx(2.0 - 1.7 * 4.5 / 200)


def test_a_run_that_is_still_going_is_measured_by_its_plan_or_by_its_steps_so_far(server: ServerInThread) -> None:
    rank = Rank(server)
    train(rank, 150)
    so_far = server.http.get(f"{rank.path}/law").json()["forecast"]
    assert (so_far["run_over"], so_far["through_step"]) == (False, 22)
    rank.started = replace(rank.started, incarnation="planned", started_at=time.time() + 1, planned_steps=160)
    rank.hello()
    assert server.http.get(f"{rank.path}/law").json()["forecast"]["through_step"] == 23
    rank.started = replace(rank.started, incarnation="longer", started_at=time.time() + 2, planned_steps=2000)
    rank.hello()
    law = server.http.get(f"{rank.path}/law").json()
    assert (law["forecast"], law["forecast_reason"]["code"]) == (None, "too_early")


def test_a_run_that_tells_nothing_yet_says_so(server: ServerInThread) -> None:
    rank = Rank(server)
    nothing = server.http.get(f"{rank.path}/law").json()
    assert (nothing["steps"], nothing["fit"], nothing["curve"], nothing["forecast"]) == (0, None, None, None)
    assert nothing["reason"]["code"] == "too_few_steps"
    assert nothing["points"] == {"step": [], "entropy": [], "reward": []}
    train(rank, 19)
    assert server.http.get(f"{rank.path}/law").json()["reason"]["code"] == "too_few_steps"
    train(rank, 20, first=19)
    law = server.http.get(f"{rank.path}/law").json()
    assert law["fit"] is not None
    assert law["forecast_reason"]["code"] == "too_few_steps"


def test_only_steps_with_both_numbers_count(server: ServerInThread) -> None:
    rank = Rank(server)
    train(rank, 60)
    rank.send(
        step_report(60, {"entropy/mean": 1.0}),
        step_report(61, {"entropy/mean": math.nan, "reward/mean": 0.5}),
        step_report(62, {"entropy/mean": 1.0, "reward/mean": math.inf}),
        step_report(63, {"entropy/mean": 1e9, "reward/mean": 0.5}),
        step_report(64, {"reward/mean": 0.5}),
        step_report(65, {"entropy/mean": 1.0, "reward/mean": 1e200}),
        step_report(66, {"entropy/mean": 1.0, "reward/mean": -1e308}),
    )
    assert server.http.get(f"{rank.path}/law").json()["steps"] == 60


@pytest.mark.parametrize("drift", [0.0, 1e-16, 1e-12, 1e-9, 2e-8])
def test_an_entropy_that_all_but_stands_still_tells_no_law(server: ServerInThread, drift: float) -> None:
    rank = Rank(server)
    rank.send(
        *(step_report(s, {"entropy/mean": drift * s, "reward/mean": 0.5 + 0.01 * math.sin(7 * s)}) for s in range(40))
    )
    answer = server.http.get(f"{rank.path}/law")
    assert answer.status_code == 200
    law = answer.json()
    assert (law["steps"], law["fit"], law["curve"]) == (40, None, None)
    assert law["reason"]["code"] == "entropy_not_moved"


def test_the_client_asks_for_the_law(server: ServerInThread) -> None:
    rank = Rank(server)
    train(rank, 60)
    with Client(server.url, server.owner_token) as client:
        law = client.law(rank.run_id, points=5)
    assert law.fit is not None
    assert law.fit.a.low < A < law.fit.a.high
    assert len(law.points.step) == 5
