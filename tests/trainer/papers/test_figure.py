from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from isentrope.methods.targets import entrocraft_band
from isentrope_papers import drawing, evidence
from isentrope_papers.beyond.controllers import (
    FIRST_SEED,
    Controllers,
    deviation_of_means,
    mean_deviation,
    targets_of,
)
from isentrope_papers.beyond.pay import law_of
from isentrope_papers.figure import Check, Figure, Results, all_figures
from isentrope_papers.report import Judged, Outcome, judge, reproduction
from isentrope_papers.runs import Run, RunFolder, make_run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import TASKS
from isentrope_trainer.tasks.base import make_task

TinyRun = Callable[[int], RunSettings]


class OneArm(Figure):
    name, number = "beyond-99", "a test"
    title, claim, label = "one arm", "The entropy is above 0 | always.", ""

    def __init__(self, arm: RunSettings) -> None:
        self._arm = arm

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {"only": self._arm}

    def draw(self, results: Results) -> drawing.Picture:
        picture, (axes,) = drawing.panels()
        drawing.course(axes, results.runs(self._arm), "entropy/mean", label="only", index=0)
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {"entropy": run.end("entropy/mean")}

    def checks(self, results: Results) -> list[Check]:
        return [
            evidence.check_at_least(
                "above 0", [run.end("entropy/mean") for run in results.runs(self._arm)], 0.0
            )
        ]


def test_a_figure_has_picture_table_and_verdict(tiny_run: TinyRun, tmp_path: Path) -> None:
    figure, plan, folder = OneArm(tiny_run(0)), Plan(seeds=(0, 1)), RunFolder(tmp_path / "runs")
    runs = {
        settings.key: folder.keep(settings, make_run(settings)) for settings in figure.runs(plan)
    }
    results = Results(plan, runs, {"0123": "a run (0123): out of memory"})
    judged = judge(figure, results, tmp_path)
    assert judged.outcome is Outcome.HOLDS
    table = (tmp_path / "reproduction" / "beyond-99.csv").read_text().splitlines()
    assert table[0] == "seed,entropy"
    assert len(table) == 3
    first = {
        suffix: (tmp_path / "reproduction" / f"beyond-99.{suffix}").read_bytes()
        for suffix in ("png", "svg")
    }
    judge(figure, results, tmp_path)
    assert first == {
        suffix: (tmp_path / "reproduction" / f"beyond-99.{suffix}").read_bytes() for suffix in first
    }
    text = reproduction([judged], results)
    assert "**holds**" in text
    assert r"above 0 \| always" in text
    assert "out of memory" in text


def test_a_figure_without_runs_is_not_measured(tiny_run: TinyRun, tmp_path: Path) -> None:
    arm = tiny_run(0)
    judged = judge(OneArm(arm), Results(Plan(seeds=(0,)), {}, {arm.key: "out of memory"}), tmp_path)
    assert judged.outcome is Outcome.NOT_MEASURED
    assert judged.reason == "out of memory"


@pytest.mark.parametrize(
    ("holding", "outcome"),
    [((True, True), Outcome.HOLDS), ((True, False), Outcome.PARTLY), ((False,), Outcome.NOT_HERE)],
)
def test_a_verdict_counts_its_checks(holding: tuple[bool, ...], outcome: Outcome) -> None:
    checks = [
        Check(statement="", holds=holds, number="", test="", reason="noise") for holds in holding
    ]
    judged = Judged(OneArm(Plan(seeds=(0,)).run()), checks)
    assert judged.outcome is outcome
    assert judged.reason == ("" if outcome is Outcome.HOLDS else "noise")


def test_higher_is_paired_over_seeds() -> None:
    left, right = [0.50, 0.72, 0.91], [0.40, 0.60, 0.80]
    assert evidence.higher("", left, right).word == "yes"
    assert evidence.higher("", right, left).word == "the opposite"
    assert evidence.higher("", left, [0.72, 0.91, 0.50]).word == "not shown"
    assert "no test" in evidence.higher("", [1.0], [0.5]).test
    assert evidence.higher("", [0.5], [1.0]).word == "no"


def test_a_trend_needs_the_same_order_in_every_seed() -> None:
    rising = [[1.0, 2.0, 3.0, 4.0], [2.0, 2.5, 2.7, 3.0], [0.0, 0.1, 0.4, 0.9]]
    assert evidence.trend("", [1, 2, 3, 4], rising, rising=True).holds
    assert evidence.trend("", [1, 2, 3, 4], rising, rising=False).word == "the opposite"
    assert evidence.trend("", [4, 3, 2, 1], rising, rising=False).holds


def test_of_many_tests_some_are_significant_by_chance() -> None:
    """By hand: of four the largest p with p <= 0.05 rank / 4 is the second, 0.02."""
    checks = [
        Check(statement="", holds=True, number="", test="", p=p)
        for p in (0.04, 0.001, None, 0.02, 0.9)
    ]
    assert evidence.correct_for_many_tests(checks) == (4, 3, 2)


def test_a_correlation_is_compared_with_its_bound() -> None:
    x = np.arange(20.0)
    pairs = [(x, x + np.random.default_rng(seed).normal(0, 2, 20)) for seed in range(3)]
    assert evidence.correlated("", pairs, bound=0.7).holds
    assert not evidence.correlated("", [(x, -y) for x, y in pairs]).holds


def test_every_figure_plans_its_runs_and_names_its_claim() -> None:
    for plan in (Plan(seeds=(0, 1, 2)), Plan(seeds=(0,), quick=True)):
        for name, figure in all_figures().items():
            assert name.split("-")[0] in ("dynamics", "mechanism", "beyond")
            assert figure.claim.endswith(".")
            assert len(figure.runs(plan)) == len(plan.seeds) * len(figure.arms(plan))


def test_every_task_has_as_many_held_out_problems_as_are_planned() -> None:
    runs = [
        run.training for figure in all_figures().values() for run in figure.runs(Plan(seeds=(0,)))
    ]
    wanted = {(run.task, run.evaluation.problems) for run in runs if run.evaluation is not None}
    assert {task.name for task, _ in wanted} == set(TASKS)
    for task, problems in wanted:
        assert make_task(0, task, hold_out=True).problem(problems - 1, "held_out").prompt


def test_controllers_have_targets_and_seeds_of_their_own() -> None:
    plan = Plan(seeds=(0, 1))
    arms = Controllers().arms(plan)
    assert {run.seed for run in plan.repeat_over_seeds(*arms.values())} == {
        FIRST_SEED,
        FIRST_SEED + 1,
    }
    steps = arms["hold, 75 %"].training.steps
    assert targets_of("hold, 75 %", steps) == pytest.approx([0.45] * steps)
    annealed = arms["hold, anneal"].control.held
    assert annealed is not None
    targets = targets_of("hold, anneal", steps)
    for step in (1, steps // 2, steps):
        assert annealed.target_at(step, None) == pytest.approx(targets[step - 1])
    band = arms["Entrocraft, anneal"].control
    low, high = entrocraft_band(band, steps // 2)
    assert (low + high) / 2 == pytest.approx(targets[steps // 2 - 1])
    assert (high - low) / (high + low) == pytest.approx(0.03)


def test_means_of_steps_leave_out_scatter(tiny_run: TinyRun, tmp_path: Path) -> None:
    scatter, wander = np.tile([0.2, -0.2], 50), np.repeat([0.1, -0.1], 50)
    for course, expected in ((scatter, (0.2, 0.0)), (wander, (0.1, 0.1))):
        np.savez(
            tmp_path / "series.npz", names=["entropy/mean"], scalars=0.45 * (1 + course[:, None])
        )
        run = Run(tiny_run(0), tmp_path)
        deviations = (mean_deviation("hold, 75 %")(run), deviation_of_means("hold, 75 %")(run))
        assert deviations == pytest.approx(expected)


def test_law_is_fitted_to_the_whole_run(tiny_run: TinyRun, tmp_path: Path) -> None:
    entropies = np.repeat(np.linspace(0.6, 0.2, 18), 20)
    rewards = 0.7 - 0.3 * np.exp(entropies) + np.tile([0.1, -0.1], 180)
    np.savez(
        tmp_path / "series.npz",
        names=["entropy/mean", "reward/mean"],
        scalars=np.stack([entropies, rewards], axis=1),
    )
    law = law_of(Run(tiny_run(0), tmp_path))
    assert (law.a, law.b, law.r_squared) == pytest.approx((0.3, 0.7, 1.0))
