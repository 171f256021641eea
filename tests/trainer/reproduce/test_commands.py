import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from isentrope.cli import main
from isentrope_trainer.reproduce.figure import all_figures

pytestmark = pytest.mark.usefixtures("home", "process_as_before")


@pytest.fixture
def process_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The command sets both for its own process, which here is the tests'."""
    for name in ("TQDM_DISABLE", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def test_a_plan_counts_shared_runs_once() -> None:
    both = CliRunner().invoke(main, ["reproduce", "--plan", "--seeds", "2", "dynamics-1", "dynamics-3"])
    assert both.exit_code == 0
    # Five arms, and one more: GRPO is in both.
    assert "12 runs with 2 seeds" in both.stdout


@pytest.mark.parametrize("arguments", [["dynamics-99", "--out", "x"], ["dynamics-1"], ["--seeds", "0", "--out", "x"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["reproduce", *arguments]).exit_code == 2


def test_a_figure_without_runs_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["reproduce", "dynamics-theorems", "--quick", "--json", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert '"verdict": "holds"' in result.stdout
    assert (tmp_path / "REPRODUCTION.md").read_text(encoding="utf-8").count("reproduction/dynamics-theorems.png") == 1
    assert (tmp_path / "reproduction" / "dynamics-theorems.svg").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_quick_pass_writes_every_figure(tmp_path: Path) -> None:
    done = _run("--quick", "--json", "--out", tmp_path)
    verdicts = {figure["name"]: figure["verdict"] for figure in json.loads(done)["figures"]}
    assert set(verdicts) == set(all_figures())
    assert "not measured" not in verdicts.values()
    text = (tmp_path / "REPRODUCTION.md").read_text(encoding="utf-8")
    for name in verdicts:
        assert f"(reproduction/{name}.png)" in text
        assert {path.suffix for path in (tmp_path / "reproduction").glob(f"{name}.*")} == {".png", ".svg", ".csv"}


def _run(*arguments: object) -> str:
    command = [sys.executable, "-m", "isentrope", "reproduce", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
