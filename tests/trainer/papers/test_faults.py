"""What is made wrong in a run on purpose is wrong in it alone: held-out problems are judged as
usual."""

from __future__ import annotations

from typing import cast

import pytest

from isentrope_papers.beyond.checks import Checks
from isentrope_papers.faults import FAULTS, rewarded
from isentrope_papers.settings import Plan
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.settings import TaskConfig
from isentrope_trainer.tasks.base import make_task
from tests.probe.tiny_loop import probe_and_transport


def test_another_reward_spares_held_out_problems() -> None:
    task = make_task(0, TaskConfig(), hold_out=True)
    probe, _ = probe_and_transport()
    prepare = rewarded(lambda verdict, problem, text: {"right": verdict, "length": 0.5})
    paid = prepare(cast("Policy", None), task, probe, 2)
    assert paid.max_tokens == task.max_tokens
    assert paid.reward(paid.problem(0), "no answer") == 0.5
    assert paid.reward(paid.problem(0, "held_out"), "no answer") == 0.0
    assert paid.reward(paid.problem(1), None) == 0.5
    probe.step(0)
    assert probe.latest.scalars["rewards/length/mean"] == 0.5
    assert probe.latest.scalars["rewards/right/mean"] == 0.0


def test_judged_seeds_are_none_that_rules_saw() -> None:
    figure, plan = Checks(), Plan(seeds=(0, 1))
    runs = figure.runs(plan)
    assert {run.seed for run in runs} == {1, 2}
    assert {run.fault for run in runs} == {"", *FAULTS}
    assert len({run.key for run in runs}) == len(runs)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_names_kinds_and_changes_something(fault: str) -> None:
    row = FAULTS[fault]
    assert row.kinds
    assert row.training or row.max_tokens or row.prepare
