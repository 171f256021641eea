import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from isentrope.cli import main

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
