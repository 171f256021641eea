"""The entropy-performance fit of a run, over HTTP."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from isentrope_wire.reports import RunFinished
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

A, B = 0.15, 1.1


def entropy_at(step: float) -> float:
    return 0.3 + 1.7 * math.exp(-4 * step / 200)


def train(rank: Rank, steps: int, *, first: int = 0, evaluated: str = "") -> None:
    """Steps whose entropy falls from 2 to 0.3 nats over 200 of them, and whose reward follows the
    curve with noise."""
    noise = np.random.default_rng(1).normal(size=200) * 0.01
    reports = []
    for step in range(first, first + steps):
        entropy = entropy_at(step)
        reward = B - A * math.exp(entropy) + float(noise[step])
        evaluation = {evaluated: reward + 0.2} if evaluated and step % 5 == 0 else {}
        reports.append(
            step_report(step, {"entropy/mean": entropy, "reward/mean": reward, **evaluation})
        )
    rank.send(*reports)


def test_fit_with_ceiling_and_forecast(server: ServerInThread, rank: Rank) -> None:
    train(rank, 200)
    rank.send(RunFinished(status="finished", finished_at=time.time(), step=199))
    law = server.http.get(f"{rank.path}/law").json()
    assert (law["steps"], law["confidence"], law["reason"]) == (200, 0.9, None)
    assert (law["reward"], [check["code"] for check in law["fit"]["checks"]]) == (
        "reward/mean",
        ["slope", "shape", "halves", "reach"],
    )
    assert law["fit"]["a"]["value"] == pytest.approx(A, abs=0.003)
    assert law["fit"]["ceiling"]["low"] < B - A < law["fit"]["ceiling"]["high"]
    assert law["fit"]["conclusive"] is True
    assert law["curve"]["entropy"][0] == 0
    assert law["curve"]["entropy"][-1] == pytest.approx(2.0)
    assert law["curve"]["reward"][0] == pytest.approx(law["fit"]["ceiling"]["value"])
    assert law["curve"]["low"][40] < law["curve"]["reward"][40] < law["curve"]["high"][40]
    forecast = law["forecast"]
    assert (forecast["through_step"], forecast["final_steps"], forecast["run_over"]) == (
        29,
        10,
        True,
    )
    assert forecast["error"] == pytest.approx(forecast["reward"]["value"] - forecast["actual"])
    assert abs(forecast["error"]) < 0.03
    assert (law["points"]["step"][0], law["points"]["step"][-1], len(law["points"]["entropy"])) == (
        0,
        199,
        200,
    )


def test_reward_of_an_evaluation_is_preferred(server: ServerInThread, rank: Rank) -> None:
    train(rank, 90, evaluated="eval/avg_at_k")
    law = server.http.get(f"{rank.path}/law").json()
    assert (law["reward"], law["steps"]) == ("reward/mean", 90)
    assert "eval/avg_at_k has 18 values" in law["reward_reason"]
    train(rank, 60, first=90, evaluated="eval/avg_at_k")
    law = server.http.get(f"{rank.path}/law?points=2000").json()
    assert (law["reward"], law["steps"]) == ("eval/avg_at_k", 30)
    # Beside each evaluation the entropy of the steps about it: those of 10 are 8 to 12.
    assert (law["points"]["step"][2], law["points"]["entropy"][2]) == (
        10,
        pytest.approx(entropy_at(10), abs=0.01),
    )
    assert law["fit"]["b"]["value"] == pytest.approx(B + 0.2, abs=0.02)


def test_wanted_reward_is_fitted(server: ServerInThread, rank: Rank) -> None:
    train(rank, 150, evaluated="val/accuracy")
    assert server.http.get(f"{rank.path}/law").json()["reward"] == "reward/mean"
    law = server.http.get(f"{rank.path}/law?reward=val/accuracy").json()
    assert (law["reward"], law["steps"]) == ("val/accuracy", 30)
    nothing = server.http.get(f"{rank.path}/law?reward=val/nothing").json()
    assert (nothing["steps"], nothing["reason"]["code"]) == (0, "too_few_steps")


def test_many_steps_are_shown_as_means(server: ServerInThread, rank: Rank) -> None:
    train(rank, 100)
    points = server.http.get(f"{rank.path}/law?points=10").json()["points"]
    assert points["step"] == [9, 19, 29, 39, 49, 59, 69, 79, 89, 99]
    assert points["entropy"][0] == pytest.approx(entropy_at(4.5), abs=0.01)


def test_running_run_is_measured_by_plan_or_steps_so_far(
    server: ServerInThread, rank: Rank
) -> None:
    train(rank, 150)
    so_far = server.http.get(f"{rank.path}/law").json()["forecast"]
    assert (so_far["run_over"], so_far["through_step"]) == (False, 22)
    rank.started = replace(
        rank.started, incarnation="planned", started_at=time.time() + 1, planned_steps=160
    )
    rank.hello()
    assert server.http.get(f"{rank.path}/law").json()["forecast"]["through_step"] == 23
    rank.started = replace(
        rank.started, incarnation="longer", started_at=time.time() + 2, planned_steps=2000
    )
    rank.hello()
    law = server.http.get(f"{rank.path}/law").json()
    assert (law["forecast"], law["forecast_reason"]["code"]) == (None, "too_early")


def test_young_run_gets_reason(server: ServerInThread, rank: Rank) -> None:
    nothing = server.http.get(f"{rank.path}/law").json()
    assert (nothing["steps"], nothing["fit"], nothing["curve"], nothing["forecast"]) == (
        0,
        None,
        None,
        None,
    )
    assert nothing["reason"]["code"] == "too_few_steps"
    assert nothing["points"] == {"step": [], "entropy": [], "reward": []}
    train(rank, 19)
    assert server.http.get(f"{rank.path}/law").json()["reason"]["code"] == "too_few_steps"
    train(rank, 20, first=19)
    law = server.http.get(f"{rank.path}/law").json()
    assert law["fit"] is not None
    assert law["forecast_reason"]["code"] == "too_few_steps"


def test_only_steps_with_both_numbers_count(server: ServerInThread, rank: Rank) -> None:
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
