import json
import os
import re
import signal
import socket
import subprocess
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

import isentrope
from isentrope.cli.frame import main
from isentrope_trainer.loop import StepResult
from isentrope_trainer.settings import SIZES, EvaluationConfig, LossConfig, TrainingConfig
from isentrope_trainer.training_state import Checkpoints
from tests.system.running_server import free_port, wait_for
from tests.trainer.running_demo import ISENTROPE, running_demo

BONUS = ("--set", "adaptive_entropy.target_entropy=0.5")
SMALL = ("--prompts", "2", "--group-size", "4")


def isentrope_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ISENTROPE, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize("command", ["train", "demo"])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--method", "clip_v"), "clip_v .*mu_low.*mu_high"),
        (("--method", "clip_v", "--mu-low", "-1"), r"mu_low .*-1\.0\."),
        (("--method", "entropy_magic"), "'entropy_magic'.*'none', 'clip_b', 'clip_v'"),
        (("--method", "top_entropy", "-p", "fraction=2"), r"parameters\.fraction .*\b1\b.*\b2\.$"),
        (("--method", "top_entropy", "-p", "fraction"), "NAME=VALUE"),
        (("--hold-target", "0"), r"hold\.target_entropy .*\b0\.0\.$"),
        (("--method", "kl_cov", "--hold-target", "1"), "hold .*clip_b.*clip_v"),
        (("--mu-high", "1"), "clip_b, clip_v, .*none"),
        (("--steps", "0"), r"steps .*\b0\.$"),
        (("--group-size", "1"), r"group_size .*\b1\.$"),
        (("--lr", "nan"), r"learning_rate .*\bnan\.$"),
        (("--http-port", "70000"), "70000"),
    ],
)
def test_options_that_cannot_work_end_with_one_sentence(
    command: str, arguments: tuple[str, ...], named: str
) -> None:
    result = invoke(command, *arguments)
    assert result.exit_code == 2
    assert re.search(named, result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--algorithm", "magic"), "'magic'.*'grpo'"),
        (("--prompts", "12", "--updates-per-batch", "8"), r"prompts .*\b8\b.*\b12\.$"),
        (("--set", "loss.clip_low"), "--set .*'loss.clip_low'"),
        (("--set", "loss.clip_lo=1"), "no setting loss.clip_lo.*loss.clip_low,"),
        (("--set", "loss.clip_low=narrow"), "loss.clip_low: .*'narrow'"),
        (("--set", "loss.clip_low=-1"), r"clip_low .*-1\.0\.$"),
        (("--set", "evaluation.k=99"), r"evaluation\.k .*\b16, got 99\.$"),
        (
            ("--set", "adaptive_entropy.change_per_step=1"),
            "adaptive_entropy.target_entropy: .*required",
        ),
        (
            ("--set", "adaptive_entropy.target_entropy=0"),
            r"adaptive_entropy\.target_entropy .*\b0\.0\.$",
        ),
        (
            (*BONUS, "--set", "adaptive_entropy.change_per_step=-0.1"),
            r"adaptive_entropy\.change_per_step .*-0\.1\.$",
        ),
        (
            (*BONUS, "--set", "adaptive_entropy.initial_coefficient=2"),
            r"initial_coefficient .*\b2\.0\.$",
        ),
        (("--coupling-samples", "64", "--set", "unseen=0"), r"coupling_samples .*\b0\.$"),
        (("--set", "temperature=0"), r"temperature .*\b0\.0\.$"),
        (("--prompts", "4", "--updates-per-batch", "2", "--steps", "3"), r"steps .*\b2\b.*\b3\.$"),
        (("--resume", "{folder}"), "no checkpoint .*{folder}"),
        (("--resume", "{folder}", "--lr", "1"), "--lr"),
    ],
)
def test_settings_of_an_algorithm_that_cannot_work_end_with_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    result = invoke("train", *(argument.format(folder=tmp_path) for argument in arguments))
    assert result.exit_code == 2
    assert re.search(named.format(folder=tmp_path), result.stderr)
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command asks the trainer for; nothing is trained."""
    asked: dict[str, Any] = {}

    def train(config: TrainingConfig, control: isentrope.Control, **more: Any) -> None:
        asked.update(more, config=config)
        more["announce"]("01RUN")
        nothing = SimpleNamespace(early_level=None, entropy=None)
        probe = SimpleNamespace(
            latest=SimpleNamespace(step=1, scalars={"eval/avg_at_k": 0.5}),
            run_id="01RUN",
            show=lambda: SimpleNamespace(diagnosis=nothing, rewards={}),
        )
        more["follow"](probe, StepResult(step=2, reward_mean=0.25, step_seconds=1.0))
        more["saved"](3, Path("there"))

    monkeypatch.setattr("isentrope_trainer.reference_run.train_reference_policy", train)
    return asked


def test_options_of_the_algorithm_become_settings(made: dict[str, Any], tmp_path: Path) -> None:
    algorithm = ("--algorithm", "dapo", "--updates-per-batch", "8")
    settings = ("loss.clip_high=none", "loss.kl_coefficient=0.1", "temperature=0.9")
    model = (
        "--eval-every",
        "5",
        "--task",
        "chain_sum",
        "--model-size",
        "0.2M",
        "--checkpoint",
        str(tmp_path),
    )
    result = invoke(
        "train",
        "--steps",
        "16",
        *algorithm,
        *model,
        *(part for text in settings for part in ("--set", text)),
    )
    assert result.exit_code == 0, result.output
    config = made["config"]
    assert (config.algorithm, config.updates_per_batch, config.task.name) == (
        "dapo",
        8,
        "chain_sum",
    )
    assert config.loss == LossConfig(clip_low=0.2, clip_high=None, kl_coefficient=0.1)
    assert config.temperature == 0.9
    assert made["policy_config"] == SIZES["0.2M"]
    assert made["checkpoints"] == Checkpoints(tmp_path)
    assert config.evaluation == EvaluationConfig(every=5)
    assert not made["resume"]


def test_without_options_the_algorithms_own_loss_is_used(made: dict[str, Any]) -> None:
    invoke("train", "--algorithm", "dapo")
    assert made["config"].loss is None
    assert made["config"].effective_loss().clip_high == 0.28


def test_a_run_resumes_with_the_settings_it_was_started_with(
    made: dict[str, Any], tmp_path: Path
) -> None:
    config = TrainingConfig(
        steps=8,
        prompts=16,
        algorithm="ppo",
        loss=LossConfig(clip_low=None),
        evaluation=EvaluationConfig(every=3),
    )
    shape = asdict(SIZES["0.6M"])
    Checkpoints(tmp_path).describe(
        "01RUN", config, {"name": "mine", "project": "p", "policy": shape}
    )
    result = invoke("train", "--resume", str(tmp_path), "--steps", "20")
    assert result.exit_code == 0, result.output
    assert made["config"] == replace(config, steps=20)
    assert (made["name"], made["policy_config"], made["resume"]) == ("mine", SIZES["0.6M"], True)


def test_events_are_json_lines(made: dict[str, Any]) -> None:
    events = [
        json.loads(line) for line in invoke("train", "--json", "--steps", "2").stdout.splitlines()
    ]
    assert [event["event"] for event in events] == ["run", "step", "eval", "checkpoint", "end"]
    assert events[0]["run_id"] == "01RUN"
    assert events[0]["config"]["steps"] == 2
    assert (events[1]["step"], events[1]["reward_mean"], events[1]["metrics_step"]) == (2, 0.25, 1)
    assert events[2] == {"event": "eval", "step": 1, "eval/avg_at_k": 0.5}
    assert events[3] == {"event": "checkpoint", "step": 3, "path": "there"}
    assert (events[4]["status"], events[4]["steps"]) == ("finished", 1)


@pytest.mark.slow
def test_a_port_in_use_ends_the_demo_with_one_sentence(home: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = isentrope_command(
            "demo", "--headless", "--http-port", str(port), "--grpc-port", str(free_port())
        )
    assert result.returncode == 2
    assert str(port) in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_training_goes_on_without_a_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else the shipper would look for the server long after the test.
    monkeypatch.setenv("ISENTROPE_DRAIN_SECONDS", "0.5")
    arguments = (
        "--http-port",
        str(free_port()),
        "--grpc-port",
        str(free_port()),
        "--steps",
        "2",
        *SMALL,
    )
    result = isentrope_command("train", *arguments)
    assert result.returncode == 0, result.stderr
    run_id = re.search(r"^run: (\S+)$", result.stdout, re.MULTILINE)
    assert run_id is not None
    assert (home / "spool" / run_id[1]).is_dir()
    assert "records are not delivered yet" in result.stderr
    assert "`isentrope sync " in result.stderr


def nothing_listens(url: str) -> bool:
    try:
        httpx.get(f"{url}/healthz", timeout=5)
    except httpx.ConnectError:
        return True
    return False


@pytest.mark.slow
def test_a_headless_demo_reports_every_step_and_leaves_nothing_running(home: Path) -> None:
    with running_demo("--steps", "4", *SMALL) as (process, url, login, run_id):
        assert login == url, "no token goes into a pipe"
        assert process.wait(100) == 0
        assert nothing_listens(url)
    # Delivered reports are deleted from the spool.
    wait_for(lambda: not list((home / "spool").rglob("*.seg")), 20, f"{run_id} is delivered")


@pytest.mark.slow
def test_sigterm_stops_the_demo_and_its_server(home: Path) -> None:
    with running_demo("--steps", "100000", *SMALL) as (process, url, _, run_id):
        with isentrope.Client(url) as client:
            wait_for(
                lambda: any(run.id == run_id and run.status == "running" for run in client.runs()),
                30,
                "it runs",
            )
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 130
        assert nothing_listens(url)
