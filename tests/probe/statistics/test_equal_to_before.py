"""The declared sums give the very numbers that the vector counted by hand gave; this test goes with the next commit."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[3]
BEFORE = "6e222f1"


def printed(packages: Path) -> str:
    """What the random steps are reported as by the packages of this folder."""
    environment = os.environ | {"PYTHONPATH": str(packages)}
    command = [sys.executable, str(Path(__file__).with_name("random_steps.py"))]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_random_steps_are_reported_to_the_bit_as_before(tmp_path: Path) -> None:
    archive = subprocess.run(["git", "archive", BEFORE, "probe"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as packages:
        packages.extractall(tmp_path, filter="data")
    before, now = printed(tmp_path / "probe"), printed(ROOT / "probe")
    assert len(before) > 500_000
    assert before == now
