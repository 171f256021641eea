"""`isentrope demo --replay`, from a process that can't import torch to a real server."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner

import isentrope
from isentrope.cli.frame import main
from isentrope.client import calls
from isentrope_trainer.recording import SHIPPED, Recording, read_recording, write_recording
from isentrope_trainer.server_process import _free_port, choose_server
from isentrope_wire.control import Control
from isentrope_wire.control_answers import State
from isentrope_wire.errors import install_command
from tests.system.running_server import RunningServer, clean_environment, wait_for
from tests.trainer.running_demo import ISENTROPE, running_demo

NO_TRAINER = (
    "import sys\nfor name in ('torch', 'transformers', 'reasoning_gym', 'tqdm'): sys.modules[name]"
    " = None\n"
)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return read_recording(SHIPPED)


@pytest.fixture
def without_trainer(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started from here find the packages of the extra `trainer` missing, and no
    screen."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "sitecustomize.py").write_text(NO_TRAINER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)


def wait_for_status(client: isentrope.Client, run_id: str, status: str) -> None:
    wait_for(
        lambda: any(run.id == run_id and run.status == status for run in client.runs()),
        60,
        f"{run_id} is {status}",
    )


@pytest.mark.slow
def test_a_replay_needs_no_torch_and_obeys_nobody(
    without_trainer: None, recording: Recording
) -> None:
    (cure,) = recording.pushed
    (applied,) = [outcome for report in recording.reports for outcome in report.outcomes]
    with (
        running_demo("--replay", "--speed", "8", headless=False) as (process, url, login, run_id),
        isentrope.Client(url) as client,
    ):
        assert login == url
        wait_for_status(client, run_id, "running")
        wait_for(
            lambda: client.control(run_id).applied_step == applied.step,
            60,
            "the recorded control is applied again",
        )
        pushed = client.set_control(run_id, method="clip_b", mu_low=2.0, reason="mine", wait=True)
        assert (pushed.state, pushed.code) == ("REJECTED", "recording")

        wait_for_status(client, run_id, "finished")
        run = client.run(run_id)
        assert "recording" in run.name
        assert "recording" in run.tags
        columns = client.metrics(run_id, ["entropy/mean", "reward/mean"])
        assert columns["step"] == [report.step for report in recording.reports]
        for name in ("entropy/mean", "reward/mean"):
            assert columns[name] == pytest.approx(
                [report.scalars[name] for report in recording.reports]
            )
        assert (
            len(client.ask(calls.tokens(run_id, step=1)).items)
            == len(recording.reports[0].tokens)
            > 0
        )
        clipped = client.ask(calls.preview(run_id, Control(method="clip_v", mu_low=1.0)))
        assert clipped.clip_fraction is not None
        assert clipped.clip_fraction > 0
        assert len(list(client.items(calls.alerts(run_id)))) == sum(
            len(report.alerts) for report in recording.reports
        )

        history = {item.reason: item for item in client.control_history(run_id)}
        assert history["mine"].state == "REJECTED"
        again = history[cure.control.reason]
        assert (again.state, again.applied_step) == (State.APPLIED, applied.step)
        assert client.step(run_id, recording.reports[-1].step).control_version == again.version

        # The server has the end of the run before the demo knows it.
        assert process.stderr is not None
        assert any(line.startswith("The run is over") for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_replay_goes_to_the_server_that_runs(tmp_path: Path) -> None:
    demo = [*ISENTROPE, "demo", "--replay", "--exit-when-done", "--speed", "500"]
    with RunningServer(tmp_path / "home") as server:
        environment = clean_environment() | {"ISENTROPE_HOME": str(server.home)}
        done = subprocess.run(demo, env=environment, capture_output=True, text=True, check=True)
        address, run = done.stdout.split("\n", 1)
        client = isentrope.Client(server.url, server.token)
        assert (address, client.run(run.split()[1]).status) == (server.url, "finished")
        assert f"reports to {server.url}" in done.stderr


def test_a_taken_port_is_not_chosen(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = listening.getsockname()[1]
        port = _free_port("127.0.0.1", taken)
        assert port != taken
        assert f"Port {taken} is taken: the demo's server uses {port}." in capsys.readouterr().err
    assert _free_port("127.0.0.1", taken) == taken
    server = choose_server("127.0.0.1", 7, 8)
    assert (server.url, server.grpc, server.is_own) == ("http://127.0.0.1:7", "127.0.0.1:8", True)


def test_a_recording_can_be_written_and_read(recording: Recording, tmp_path: Path) -> None:
    short = replace(recording, reports=recording.reports[:2])
    write_recording(short, tmp_path / "again")
    assert read_recording(tmp_path / "again") == short


def test_the_shipped_recording_shows_collapse_and_cure(recording: Recording) -> None:
    entropies = [report.scalars["entropy/mean"] for report in recording.reports]
    (applied,) = [outcome.step for report in recording.reports for outcome in report.outcomes]
    assert applied is not None
    before, under = entropies[: applied - 1], entropies[applied - 1 :]
    assert fmean(before[-3:]) < 0.4 * before[0]
    assert fmean(under) > 0.7 * fmean(before[-3:])
    for report in recording.reports:
        assert all(rollout.prompt and rollout.rewards for rollout in report.rollouts)
        assert report.rollouts or report.scalars["advantage/zero_group_fraction"] == 1
        assert {"entropy/observed_change", "reward/mean"} <= report.scalars.keys()
        assert report.histograms
        assert report.tokens
        assert report.what_if is not None
    assert SHIPPED.stat().st_size <= 1_500_000


@pytest.mark.parametrize(
    "arguments",
    [
        "--method top_entropy --replay",
        "--steps 3 --replay",
        "--seed 0 --replay",
        "--name mine --replay",
        "--speed 3",
    ],
)
def test_replay_takes_no_training_options_and_speed_belongs_to_it(arguments: str) -> None:
    result = CliRunner().invoke(main, ["demo", *arguments.split()])
    assert result.exit_code == 2
    assert arguments.split()[0] in result.stderr


def test_training_without_torch_names_extra_and_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(main, ["demo", "--headless"])
    assert result.exit_code == 1
    assert install_command("trainer") in result.stderr
    assert "--replay" in result.stderr
