"""Every command and snippet of the front pages works as it stands there, on a real server with a
live run."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from torch import nn
from trl import GRPOConfig

import isentrope
from isentrope.transport.spool_folder import find_spool_folders
from isentrope_wire.reports import StepReport
from tests.probe.integrations import tiny_trl
from tests.probe.transport.fake_telemetry import on_disk
from tests.system.running_server import RunningServer, clean_environment, free_port, wait_for

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/server.md")
LINES = [
    line.split("  #")[0].strip()
    for page in PAGES
    for block in re.findall(
        r"```sh\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL
    )
    for line in block.splitlines()
]
SNIPPETS = re.findall(
    r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL
)
SHORTER = {
    "make demo": ["--headless", "--steps", "2"],
    "isentrope train --steps 200": ["--steps", "1"],
    "isentrope demo --replay": ["--headless", "--speed", "500"],
}
"""The same command, with options that end it sooner and open no browser."""
SET_UP = {
    "git clone <this repository> isentrope && cd isentrope",
    "python3 -m venv ~/isentrope-venv && . ~/isentrope-venv/bin/activate",
}
"""What makes the folder and the environment that these tests run in."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("readme") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def run_id(server: RunningServer) -> Iterator[str]:
    """A run that goes on until the tests end, and is 20 steps old."""
    command = [sys.executable, "-m", "tests.system.observed_loop", "100000", "0.1"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=server.environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    known = process.stdout.readline().strip()
    client = isentrope.Client(server.url, server.token)
    wait_for(
        lambda: any(run.id == known and (run.step or 0) >= 20 for run in client.runs()),
        60,
        "the run has 20 steps",
    )
    yield known
    process.kill()
    process.wait()


def called(command: list[str], environment: dict[str, str], folder: Path = ROOT) -> None:
    done = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"


def of_isentrope(line: str) -> bool:
    return (
        line.startswith("isentrope ") and line != "isentrope up"
    )  # which the server of these tests was started with


@pytest.mark.slow
@pytest.mark.parametrize("line", sorted({line for line in LINES if of_isentrope(line)}))
def test_command_line_works(line: str, server: RunningServer, run_id: str, tmp_path: Path) -> None:
    words = [run_id if word == "RUN" else word for word in shlex.split(line)[1:]]
    called(
        [sys.executable, "-m", "isentrope", *words, *SHORTER.get(line, [])],
        server.environment,
        tmp_path,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [line for line in LINES if "demo" in line and line != "make demo"]
)  # shorter, it has ARGS
def test_demo_works(line: str, tmp_path: Path) -> None:
    ports = ["--http-port", str(free_port()), "--grpc-port", str(free_port())]
    environment = clean_environment() | {"ISENTROPE_HOME": str(tmp_path)}
    words = shlex.split(line)
    if words[0] == "make":
        given = [*shlex.split("".join(words[2:]).removeprefix("ARGS=")), *SHORTER["make demo"]]
        # What is set up already is not set up again: `make` compares times, which a checkout does
        # not keep.
        words = ["make", "-o", ".venv/.demo", "demo", f"ARGS={shlex.join(given + ports)}"]
    else:
        words = [str(Path(sys.executable).with_name(words[0])), *words[1:], *SHORTER[line], *ports]
    called(words, environment)


@pytest.mark.slow
def test_a_server_for_a_cluster_takes_reports_over_tls(tmp_path: Path) -> None:
    """The lines of its section, with this machine's name and free ports."""
    page = (ROOT / "docs/server.md").read_text(encoding="utf-8")
    section = page.split("## A server for a cluster")[1].split("\n### ")[0]
    (block,) = re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)
    certificate, up, create, export, doctor = [
        line.split("  #")[0]
        for line in block.replace("head-node", "localhost").splitlines()
        if line[:1] not in ("#", "")
    ]
    http, ingest = free_port(), free_port()
    environment = clean_environment() | {"ISENTROPE_HOME": str(tmp_path / "server")}

    def of(line: str) -> list[str]:
        return [sys.executable, "-m", *shlex.split(line)]

    def answer(line: str, environment: dict[str, str]) -> str | None:
        done = subprocess.run(
            of(line), env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else None

    called(shlex.split(certificate), environment, tmp_path)
    ports = ["--http-port", str(http), "--grpc-port", str(ingest)]
    process = subprocess.Popen([*of(up), *ports], cwd=tmp_path, env=environment)
    try:
        # A token made before the server has its folder would take the folder from it.
        wait_for(
            lambda: socket.socket().connect_ex(("localhost", ingest)) == 0, 60, "the server listens"
        )
        made = wait_for(
            lambda: answer(f"{create} --json", environment), 60, "the server makes a token"
        )
        known = {
            "7070": str(http),
            "7071": str(ingest),
            "/path/to/server.pem": str(tmp_path / "server.pem"),
        }
        known["ise_..."] = json.loads(made)["token"]
        for old, new in known.items():
            export = export.replace(old, new)
        node = clean_environment() | {"ISENTROPE_HOME": str(tmp_path / "node")}
        node |= dict(variable.split("=", 1) for variable in shlex.split(export)[1:])
        wait_for(lambda: answer(doctor, node), 60, "nothing is wrong on the node")
    finally:
        process.kill()
        process.wait()


def test_every_line_is_tried() -> None:
    installing = [line for line in LINES if line.startswith("pip install ")]
    tried = [line for line in LINES if of_isentrope(line) or "demo" in line]
    assert set(LINES) == {*tried, *installing, *SET_UP, "isentrope up"}
    extras = {
        extra
        for line in installing
        for match in re.finditer(r"\[([a-z,]+)\]", line)
        for extra in match[1].split(",")
    }
    assert extras <= set(importlib.metadata.metadata("isentrope").get_all("Provides-Extra") or [])


@pytest.mark.slow
def test_trl_quick_start_reports_every_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {"HOME": str(tmp_path), "MODE": "offline", "KERNELS": "reference"}.items():
        monkeypatch.setenv(f"ISENTROPE_{name}", value)
    args = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        report_to="none",
        max_steps=2,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=8,
        save_strategy="no",
        bf16=False,
        use_cpu=True,
    )
    names = {
        "model": tiny_trl.model(),
        "reward": tiny_trl.reward,
        "args": args,
        "prompts": Dataset.from_list(tiny_trl.PROMPTS),
        "tokenizer": tiny_trl.tokenizer(),
    }
    exec(SNIPPETS[0], names)  # noqa: S102
    (spool,) = find_spool_folders(tmp_path)
    reports = [message for message in on_disk(spool.path) if isinstance(message, StepReport)]
    assert [report.step for report in reports] == [1, 2]
    assert all("entropy/mean" in report.scalars for report in reports)


def test_loop_reports_every_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"HOME": str(tmp_path), "MODE": "offline", "KERNELS": "reference"}.items():
        monkeypatch.setenv(f"ISENTROPE_{name}", value)
    torch.manual_seed(0)
    embedding = nn.Embedding(24, 24)

    class Model(nn.Module):
        def forward(self, ids: torch.Tensor) -> object:
            return type("Output", (), {"logits": embedding(ids)})

    def batch() -> tuple[torch.Tensor, ...]:
        mask = torch.ones(8, 5, dtype=torch.bool)
        mask[:, 4] = False
        advantages = torch.randn(8, 1).expand(8, 5)
        return torch.randint(24, (8, 6)), mask, advantages, torch.ones(8)

    batches = [batch() for _ in range(4)]
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.5)
    names = {"batches": batches, "model": Model(), "optimizer": optimizer}
    exec(SNIPPETS[1], names)  # noqa: S102
    (spool,) = find_spool_folders(tmp_path)
    reports = [message for message in on_disk(spool.path) if isinstance(message, StepReport)]
    assert [report.step for report in reports] == [1, 2, 3, 4]
    assert [report.scalars["token/count"] for report in reports] == [32] * 4
    assert all("entropy/observed_change" in report.scalars for report in reports)
    assert [report.scalars["reward/mean"] for report in reports] == [1] * 4


def test_team_server_is_that_of_its_guide() -> None:
    """The guide's lines are tried above."""
    guide = (ROOT / "docs/server.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert block in guide


def test_front_page_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


@pytest.mark.slow
def test_client_pushes(server: RunningServer, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    exec(SNIPPETS[2], {"isentrope": isentrope, "run_id": run_id})  # noqa: S102
    requested = isentrope.Client().control(run_id)
    assert requested.reason == "collapse"
