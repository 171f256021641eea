"""Every example runs as it stands, and reports what it says it does."""

from __future__ import annotations

import ast
import importlib
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isentrope.transport.shipper import ShipperSettings, ship
from isentrope.transport.spool_folder import find_spool_folders
from isentrope_wire.reports import StepReport
from tests.probe.transport.fake_telemetry import on_disk
from tests.system.running_server import RunningServer
from tests.system.spool_of_a_run import leave_spool

EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = 150

Run = Callable[..., None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs an example in this process, offline, in a folder of its own."""
    for name, value in {"HOME": str(tmp_path), "MODE": "offline", "KERNELS": "reference"}.items():
        monkeypatch.setenv(f"ISENTROPE_{name}", value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run_example(name: str, *arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return run_example


def reports_of(home: Path) -> list[list[StepReport]]:
    """The reports of each run on disk, by run."""
    folders = sorted(find_spool_folders(home), key=lambda folder: folder.path.stat().st_ctime)
    messages = [on_disk(folder.path) for folder in folders]
    return [[one for one in of_run if isinstance(one, StepReport)] for of_run in messages]


def test_examples_stay_short() -> None:
    lines = {path.name: path.read_text().count("\n") for path in EXAMPLES.glob("*.py")}
    assert {name for name, count in lines.items() if count > MOST_LINES} == set()
    listed = (EXAMPLES / "README.md").read_text()
    names = [path.name for path in EXAMPLES.iterdir() if path.is_file()]
    assert [name for name in names if f"({name})" not in listed] == ["README.md"]


def test_own_loop_reports_every_step(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("own_grpo_loop.py", "--steps", "4")
    (reports,) = reports_of(tmp_path)
    assert [report.step for report in reports] == [1, 2, 3, 4]
    assert all("entropy/observed_change" in report.scalars for report in reports)
    assert "Entropy" in capsys.readouterr().out


@pytest.mark.slow
def test_hold_follows_its_schedule(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("hold_with_schedule.py", "--steps", "20")
    free, held = reports_of(tmp_path)
    assert all("hold/target" not in report.scalars for report in free)
    early = held[0].scalars["entropy/mean"]
    shares = {report.step: report.scalars.get("hold/target", 0.0) / early for report in held}
    assert shares[6] == pytest.approx(0.8, abs=0.02)
    assert shares[13] == pytest.approx(0.675, abs=0.02)
    assert shares[20] == pytest.approx(0.55, abs=0.02)
    assert "left alone" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trl_grpo.py", "trl_lora.py"])
def test_trl_example_reports_every_step(name: str, run: Run, tmp_path: Path) -> None:
    run(name, "--steps", "2")
    (reports,) = reports_of(tmp_path)
    assert [report.step for report in reports] == [1, 2]
    assert all("entropy/mean" in report.scalars for report in reports)
    assert all("reward/mean" in report.scalars for report in reports)


def test_log_is_diagnosed(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run("diagnose_log.py", "--log", str(tmp_path / "log.jsonl"))
    assert "[zero_advantage: too_easy]" in capfd.readouterr().out


@pytest.mark.slow
def test_run_becomes_data_frame(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningServer(tmp_path / "home") as server:
        folder = leave_spool(tmp_path, "read-me", steps=10, grpc_target=server.grpc_target)
        ship(folder, ShipperSettings(drain_seconds=10.0), find_token=lambda: server.token)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        run("rest_and_pandas.py", "read-me")
    printed = capsys.readouterr().out
    assert "count" in printed
    # The entropies of that run are 1 / (step + 1), the newest by REST.
    assert f"9    {1 / 10:.6f}" in printed


@pytest.mark.slow
def test_notebook_draws_its_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = importlib.import_module("own_grpo_loop")
    train = loop.train
    monkeypatch.setattr(loop, "train", lambda steps, **more: train(4, **more))
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            *before, last = ast.parse("".join(cell["source"]).replace("[40]", "[4]")).body
            exec(compile(ast.Module(before, []), "notebook", "exec"), names)  # noqa: S102
            assert isinstance(last, ast.Expr)
            shown.append(eval(compile(ast.Expression(last.value), "notebook", "eval"), names))
    free, held, (entropy, _, line) = shown
    assert "<svg" in free._repr_html_()
    assert (entropy, line) == (held.entropies[4], str(held))
