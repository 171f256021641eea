import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from isentrope.cli import main
from isentrope_papers.commands import LANGUAGE_MODEL
from isentrope_papers.figure import all_figures
from isentrope_papers.settings import Plan
from isentrope_trainer.settings import EvaluationConfig

pytestmark = pytest.mark.usefixtures("home", "process_as_before")


@pytest.fixture
def process_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command sets them for its own process, which here is the tests'."""
    for name in (
        "TQDM_DISABLE",
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "HF_HUB_OFFLINE",
        "TRL_EXPERIMENTAL_SILENCE",
    ):
        monkeypatch.setenv(name, "1")
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def test_a_plan_counts_shared_runs_once() -> None:
    both = CliRunner().invoke(
        main, ["reproduce", "--plan", "--seeds", "2", "dynamics-1", "dynamics-3"]
    )
    assert both.exit_code == 0
    # Five arms, and one more: GRPO is in both.
    assert "12 runs with 2 seeds" in both.stdout


@pytest.mark.parametrize("arguments", [("--llm",), ("--llm", "beyond-llm-forks"), (), ("beyond",)])
def test_the_chapter_on_a_language_model_is_planned_where_it_is_asked_for(
    arguments: tuple[str, ...],
) -> None:
    planned = CliRunner().invoke(main, ["reproduce", *arguments, "--plan"])
    assert planned.exit_code == 0, planned.output
    figures = [line.split()[0] for line in planned.stdout.splitlines()[:-1]]
    assert {name.startswith(LANGUAGE_MODEL) for name in figures} == {"--llm" in arguments}


@pytest.mark.parametrize(
    "arguments", [["dynamics-99", "--out", "x"], ["dynamics-1"], ["--seeds", "0", "--out", "x"]]
)
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["reproduce", *arguments]).exit_code == 2


def test_a_figure_without_runs_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(
        main, ["reproduce", "dynamics-theorems", "--quick", "--json", "--out", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert '"verdict": "holds"' in result.stdout
    assert (tmp_path / "REPRODUCTION.md").read_text(encoding="utf-8").count(
        "reproduction/dynamics-theorems.png"
    ) == 1
    assert (tmp_path / "reproduction" / "dynamics-theorems.svg").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_quick_pass_writes_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, off_policy = (
        Plan(seeds=(0,), quick=True).base,
        Plan(seeds=(0,), quick=True).several_updates,
    )
    evaluation = EvaluationConfig(every=5, problems=4, samples=2, k=2)
    monkeypatch.setattr(Plan, "base", replace(base, steps=10, prompts=4, evaluation=evaluation))
    monkeypatch.setattr(Plan, "several_updates", {**off_policy, "prompts": 8, "steps": 12})
    done = CliRunner().invoke(main, ["reproduce", "--quick", "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    verdicts = {figure["name"]: figure["verdict"] for figure in json.loads(done.stdout)["figures"]}
    assert set(verdicts) == {name for name in all_figures() if not name.startswith(LANGUAGE_MODEL)}
    assert "not measured" not in verdicts.values()
    text = (tmp_path / "REPRODUCTION.md").read_text(encoding="utf-8")
    for name in verdicts:
        assert f"(reproduction/{name}.png)" in text
        assert {path.suffix for path in (tmp_path / "reproduction").glob(f"{name}.*")} == {
            ".png",
            ".svg",
            ".csv",
        }
