"""The trainer's container ends when its reports are delivered, with the exit status of the
training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.docker.dockerfile import stages
from tests.system.running_server import wait_for

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docker" / "train_then_sync.sh"

ISENTROPE = """#!/bin/sh
echo "$@" >> "$ISENTROPE_HOME/commands"
[ "$1" = sync ] && exit 3
[ "$2" = long ] || exit "${2:-0}"
trap 'echo ended by TERM >> "$ISENTROPE_HOME/commands"; kill $!; exit 7' TERM
sleep 20 &
wait
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With an `isentrope` in it that writes down its arguments, and whose sync fails."""
    command = tmp_path / "bin" / "isentrope"
    command.parent.mkdir()
    command.write_text(ISENTROPE)
    command.chmod(0o755)
    return tmp_path


def started(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    variables = {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "ISENTROPE_HOME": str(home)}
    return subprocess.Popen([SCRIPT, *arguments], env=variables, stderr=subprocess.DEVNULL)


def commands(home: Path) -> list[str]:
    written = home / "commands"
    return written.read_text().splitlines() if written.exists() else []


@pytest.mark.parametrize(
    ("command", "status", "has_spool", "delivers"),
    [
        ("train", 0, True, True),
        ("train", 5, True, True),
        ("train", 0, False, False),
        ("doctor", 4, True, False),
    ],
)
def test_training_is_followed_by_delivery(
    home: Path, command: str, status: int, has_spool: bool, delivers: bool
) -> None:
    if has_spool:
        (home / "spool").mkdir()
    assert started(home, command, str(status)).wait(10) == status
    assert commands(home) == [
        f"{command} {status}",
        *([f"sync {home / 'spool'}"] if delivers else []),
    ]


def test_stopped_container_ends_and_delivers(home: Path) -> None:
    (home / "spool").mkdir()
    container = started(home, "train", "long")
    wait_for(lambda: commands(home))
    time.sleep(0.2)  # until both shells have set their traps
    container.send_signal(signal.SIGTERM)
    assert container.wait(10) == 7
    assert commands(home) == ["train long", "ended by TERM", f"sync {home / 'spool'}"]


def test_image_begins_with_the_script() -> None:
    last = stages(ROOT / "docker" / "trainer.Dockerfile")[-1]
    copied = next(step for step in last if step.word == "COPY" and step.copied)
    assert copied.copied == [str(SCRIPT.relative_to(ROOT))]
    entrypoint = json.loads(next(step.rest for step in last if step.word == "ENTRYPOINT"))
    assert entrypoint == [Path(copied.rest.split()[-1]).name]
    assert SCRIPT.stat().st_mode & 0o111
