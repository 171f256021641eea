"""What the experiment says of its runs is what they reported, and a run that is finished is not trained again."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

import isentrope
from isentrope.transport.transport import InMemoryTransport
from isentrope_trainer.figures import hold_target, recorded_runs
from isentrope_trainer.figures.hold_target import (
    ENDS,
    FIXED_THRESHOLDS,
    SETTLED_FROM,
    SHARES,
    HoldFigures,
    TableRow,
    best_fixed_reward,
    hold_figures,
    markdown_table,
    missed,
    planned_runs,
)
from isentrope_trainer.figures.recorded_runs import Recipe, RecordedRun, RecordedStep, record, recorded
from isentrope_trainer.settings import TrainingConfig
from isentrope_wire.reports import StepReport

STEPS = 100


def scalars(step: int) -> dict[str, float]:
    """Falls from 1 to the target of 0.5 within 50 steps, then lies 0.02 above it and 0.01 below by turns."""
    entropy = 1 - 0.01 * step if step < SETTLED_FROM else 0.5 + (0.02 if step % 2 else -0.01)
    return {"entropy/mean": entropy, "reward/mean": step / 100, "clip/fraction": 0.1 * (step % 2)}


def labels(step: int) -> dict[str, str]:
    return {"hold/state": "fallback" if step < 8 else "holding"}


def test_the_deviation_counts_from_the_step_on_from_which_the_entropy_should_be_there() -> None:
    steps = tuple(RecordedStep(step, scalars(step), labels(step)) for step in range(1, STEPS + 1))
    figures = hold_figures(RecordedRun({"config": {"seed": 4}}, steps), target=0.5)
    assert figures.deviation == pytest.approx((25 * 0.02 + 26 * 0.01) / 51 / 0.5)
    assert figures.offset == pytest.approx((25 * 0.02 - 26 * 0.01) / 51 / 0.5)
    assert figures.furthest == pytest.approx(0.016, abs=0.01)
    assert figures.reward_end == pytest.approx(sum(range(STEPS + 1 - ENDS, STEPS + 1)) / ENDS / 100)
    assert figures.clip_fraction == pytest.approx(0.05)
    assert (figures.seed, figures.states) == (4, {"fallback": 7, "holding": 93})


def row(name: str, rule: str, rewards: list[float], deviation: float | None = None, planned: int = 2) -> TableRow:
    figures = HoldFigures(
        seed=0,
        steps=STEPS,
        reached=None if deviation is None else 40,
        deviation=deviation,
        offset=None if deviation is None else -0.01,
        furthest=deviation,
        entropy_end=0.3,
        reward_end=0.0,
        clip_fraction=0.04,
        states={},
    )
    return TableRow(
        name=name, rule=rule, planned=planned, figures=tuple(replace(figures, reward_end=r) for r in rewards)
    )


def test_held_runs_are_judged_by_their_deviation_and_by_the_reward_of_the_best_fixed_thresholds() -> None:
    fixed = [row("mu 1", "fixed", [0.3, 0.5]), row("mu 2", "fixed", [0.5, 0.3001])]
    good, far, poor = (
        row("good", "hold", [0.39, 0.39], 0.05),
        row("far", "hold", [0.5, 0.5], 0.061),
        row("poor", "hold", [0.37, 0.37], 0.05),
    )
    assert best_fixed_reward([*fixed, good]) == pytest.approx(0.40005)
    assert best_fixed_reward([fixed[0], row("mu 2", "fixed", []), good]) == pytest.approx(0.4)
    assert best_fixed_reward([good]) is None
    sentences = missed([*fixed, good, far, poor])
    assert [sentence.split(",")[0].split(":")[0] for sentence in sentences] == ["far", "far", "poor"]
    assert missed([*fixed, good]) == []


def test_the_table_shows_what_is_missing_as_missing() -> None:
    lines = markdown_table([row("held", "hold", [0.4, 0.4], 0.05), row("adaptive", "adaptive", [])]).splitlines()
    cells = [cell.strip() for cell in lines[2].split("|")[1:-1]]
    assert cells == ["held", "2 of 2", "40, 40", "5.0 % (5.0, 5.0)", "-1.0 %", "5.0 %", "4.0 %", "0.300", "0.400", ""]
    assert [cell.strip() for cell in lines[3].split("|")[1:4]] == ["adaptive", "0 of 2", "missing"]
    assert len({line.count("|") for line in lines}) == 1


def _same(report: StepReport) -> StepReport:
    return report


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is trained, without training it: method or bonus, and seed."""
    runs: list[tuple[str, int]] = []

    def train(
        config: TrainingConfig,
        control: isentrope.Control,
        *,
        transport: InMemoryTransport,
        threads: int,
    ) -> None:
        rule = "hold" if control.hold else "adaptive" if config.adaptive_entropy else str(control.method)
        runs.append((rule, config.seed))
        for step in range(1, config.steps + 1):
            report = StepReport(step=step, recorded_at=0.0, scalars=scalars(step), labels=labels(step))
            transport.put(partial(_same, report))

    monkeypatch.setattr(recorded_runs, "train_reference_policy", train)
    return runs


def test_a_finished_run_is_read_and_not_trained_again(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    recipe = Recipe(name="vanilla", config=TrainingConfig(steps=3))
    assert recorded(recipe, tmp_path) is None
    first = record(recipe, tmp_path)
    assert first == record(recipe, tmp_path) == recorded(recipe, tmp_path)
    assert trained == [("none", 0)]
    assert first is not None
    assert first.column("entropy/mean") == [scalars(step)["entropy/mean"] for step in (1, 2, 3)]
    assert first.steps[2].labels == labels(3)
    document = json.loads(recipe.path(tmp_path).read_text(encoding="utf-8"))
    assert (document["recipe"]["config"]["learning_rate"], document["recipe"]["control"]["method"]) == (1.5e-4, "none")
    record(replace(recipe, config=TrainingConfig(steps=4)), tmp_path)
    assert len(trained) == 2


def test_a_run_that_another_process_is_busy_with_is_left_to_it(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    recipe = Recipe(name="vanilla", config=TrainingConfig(steps=3))
    with recorded_runs._claimed(recipe.path(tmp_path)) as claimed:
        assert claimed
        assert record(recipe, tmp_path) is None
    assert trained == []
    assert record(recipe, tmp_path) is not None


def test_targets_are_shares_of_the_early_level_and_wait_for_it(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    before = planned_runs(tmp_path, steps=STEPS, seeds=(0, 1))
    assert {run.rule for run in before} == {"vanilla", "fixed"}
    record(before[0].recipe, tmp_path)
    plan = planned_runs(tmp_path, steps=STEPS, seeds=(0, 1))
    held = [run for run in plan if run.rule == "hold"]
    assert [run.target_entropy for run in held] == pytest.approx([share * 0.98 for share in SHARES])
    assert {run.recipe.config.seed for run in held} == {0}
    for run in plan:
        bonus, hold = run.recipe.config.adaptive_entropy, run.recipe.control.held
        assert (bonus is not None) == (run.rule == "adaptive")
        assert (hold is not None) == (run.rule == "hold")
        if bonus is not None:
            assert bonus.target_entropy == run.target_entropy
        if hold is not None:
            assert hold.target_share == run.share


def test_the_command_goes_on_where_it_was_killed(tmp_path: Path, trained: list[tuple[str, int]]) -> None:
    def ran(*arguments: str) -> tuple[str, int]:
        result = CliRunner().invoke(hold_target.main, ["--out", str(tmp_path), "--steps", str(STEPS), *arguments])
        return result.output, result.exit_code

    output, status = ran("--seeds", "2", "--only", "vanilla")
    assert trained == [("none", 0), ("none", 1)]
    assert ("Runs are missing." in output, status) == (True, 1)
    output, _ = ran("--seeds", "2")
    assert len(trained) == 2 * (1 + len(FIXED_THRESHOLDS) + 2 * len(SHARES))
    assert "Runs are missing." not in output
    count, picture = len(trained), (tmp_path / "hold_target.svg").read_text(encoding="utf-8")
    ran("--seeds", "2")
    assert len(trained) == count
    assert (tmp_path / "hold_target.svg").read_text(encoding="utf-8") == picture
    assert all(words in picture for words in ("<svg", "target 75%", "adaptive entropy bonus", "left to itself"))
    assert "| hold-75% | 2 of 2 |" in (tmp_path / "hold_target.md").read_text(encoding="utf-8")
