import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import isentrope
from isentrope_trainer.figures import collapse_and_cure
from isentrope_trainer.figures.collapse_and_cure import (
    Criterion,
    RunFigures,
    criteria,
    exponential_average,
    main,
    run_figures,
    sign_agreement,
    table,
)
from isentrope_trainer.settings import TrainingConfig


def report(step: int) -> dict[str, float]:
    """A run of 40 steps: entropy falls from 1 to 0.22 in steps of 0.02, and the prediction is half of the change."""
    change = -0.02 - 0.001 * (step % 5)
    return {
        "reward/mean": 0.1 + 0.01 * step,
        "entropy/mean": 1 - 0.02 * step,
        "entropy/unit_predicted_change": change / 2,
        "entropy/observed_change": change,
        "score/discriminator_mean": 0.1 if step % 2 else -0.1,
        "score/vocab_centered_mean": 0.0005,
        "clip/fraction": 0.0,
        "time/step_seconds": 0.5,
        "probe/seconds": 0.005,
        "probe/rescore_seconds": 0.1,
    }


@pytest.fixture
def figures() -> RunFigures:
    return run_figures([report(step) for step in range(40)], momentum=0.9)


def test_figures_go_from_the_policy_before_any_update_to_the_average_of_the_last_steps(figures: RunFigures) -> None:
    assert figures.reward_start == pytest.approx(0.1)
    assert figures.reward_end == pytest.approx(0.445)
    assert figures.entropy_fall == pytest.approx(1 - (1 - 0.02 * 34.5))
    assert figures.raw_correlation == pytest.approx(1.0)
    assert figures.raw_sign_agreement == 1.0
    # The mean of S* is 0 over all steps; its size in each step is what counts.
    assert figures.centring_ratio == pytest.approx(200.0)
    assert figures.probe_share == pytest.approx(0.01)


def test_the_exponential_average_is_that_of_the_optimiser() -> None:
    # m1 = 0.1 * 1; m2 = 0.9 * m1 + 0.1 * 3, each over 1 - 0.9^t.
    assert exponential_average([1.0, 3.0], 0.9) == pytest.approx([1.0, 0.39 / 0.19])
    assert exponential_average([1.0, -3.0], 0.0) == [1.0, -3.0]


def test_signs_agree_where_both_are_on_one_side_of_zero() -> None:
    assert sign_agreement([1, -1, -1, 1], [2, -2, 1, -1]) == 0.5


def test_the_table_names_what_is_missed(figures: RunFigures) -> None:
    vanilla = replace(figures, momentum_aware_correlation=0.9)
    met = {criterion.name: criterion.met for criterion in criteria(vanilla, vanilla)}
    assert [name for name, is_met in met.items() if not is_met] == ["entropy at the end, Clip_V over vanilla"]
    assert table(vanilla, vanilla).count("MISSED") == 1
    cured = replace(vanilla, entropy_end=vanilla.entropy_end * 1.7)
    assert all(criterion.met for criterion in criteria(vanilla, cured))


def test_a_figure_that_is_not_a_number_is_not_met() -> None:
    assert not Criterion("anything", math.nan, 1.0).met
    assert not Criterion("anything", math.nan, 1.0, at_most=True).met


def test_the_command_writes_both_runs_and_ends_with_the_status_of_what_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def run(config: TrainingConfig, control: isentrope.Control) -> list[dict[str, float]]:
        seeds.append(config.seed)
        return [report(step) for step in range(config.steps)]

    monkeypatch.setattr(collapse_and_cure, "run_and_record", run)
    result = CliRunner().invoke(main, ["--steps", "40", "--seed", "7", "--out", str(tmp_path)])
    document = json.loads((tmp_path / "collapse_and_cure.json").read_text(encoding="utf-8"))
    missed = [criterion["name"] for criterion in document["criteria"] if not criterion["met"]]
    assert "entropy at the end, Clip_V over vanilla" in missed
    assert result.exit_code == 1
    assert result.output.count("MISSED") == len(missed)
    assert [len(run) for run in document["reports"].values()] == [40, 40]
    assert seeds == [7, 7]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_collapse_is_predicted_and_cured(home: Path) -> None:
    """The experiment in little: half its prompts at twice its learning rate, for as long as entropy needs to halve."""
    config = TrainingConfig(steps=60, prompts=48, learning_rate=3e-4)
    cure = isentrope.Control(method="clip_v", mu_low=1.0, mu_high=1.0)
    vanilla, cured = (
        run_figures(collapse_and_cure.run_and_record(config, control), config.betas[0])
        for control in (isentrope.Control(), cure)
    )
    assert vanilla.reward_end / vanilla.reward_start > 1.4
    assert vanilla.entropy_fall > 0.45
    assert vanilla.momentum_aware_correlation > 0.7
    assert vanilla.momentum_aware_sign_agreement > 0.8
    assert vanilla.centring_ratio > 50
    assert cured.entropy_end > 1.2 * vanilla.entropy_end
    assert cured.clip_fraction > 0.05
