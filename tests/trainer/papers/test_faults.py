"""What is made wrong in a run on purpose is wrong in it alone: held-out problems are judged as
usual."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from isentrope_papers.beyond.checks import Checks, ChecksUnderTrl, judged
from isentrope_papers.faults import FAULTS, Fault, rewarded
from isentrope_papers.runs import RunFolder, make_run
from isentrope_papers.settings import Plan
from isentrope_papers.trl_faults import TRL_FAULTS
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


def test_a_finding_names_a_failure_by_kind_or_cause() -> None:
    fault = Fault(kinds=frozenset({"truncation", "zero_advantage/cut"}))
    assert fault.is_named_by("truncation", "")
    assert fault.is_named_by("zero_advantage", "cut")
    assert not fault.is_named_by("zero_advantage", "too_easy")


@pytest.mark.slow
def test_a_failure_under_trl_is_found_in_its_own_log(tmp_path: Path) -> None:
    arm = ChecksUnderTrl().arms(Plan(seeds=(0,)))["problems too hard"]
    arm = replace(arm, training=replace(arm.training, steps=26))
    run = RunFolder(tmp_path).keep(arm, make_run(arm))
    assert run.log[0]["frac_reward_zero_std"] == 1.0
    assert "step_time" not in run.log[0]
    found = judged(run)
    assert found.found_at == found.found_by_scalars == 24
    assert (found.first, found.others) == ("zero_advantage", "")


def test_rows_under_trl_are_failures_and_healthy_runs() -> None:
    healthy = {name for name, fault in TRL_FAULTS.items() if not fault.kinds}
    assert healthy == {name for name in TRL_FAULTS if name.startswith("healthy: ")}
    assert len(healthy) == 4


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_names_kinds_and_changes_something(fault: str) -> None:
    row = FAULTS[fault]
    assert row.kinds
    assert row.training or row.max_tokens or row.prepare
