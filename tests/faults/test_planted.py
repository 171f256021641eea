"""The bugs to be planted fit the sources; `make faults ARGS="--planted"` plants them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.catalogue import BY_NAME
from tests.faults.planted import BUGS, Bug, copy_of_the_sources


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted_and_its_fault_exists(bug: Bug) -> None:
    package, _, file = bug.file.partition("/")
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    source = (Path(found.origin).parent / file).read_text(encoding="utf-8")
    planted = bug.planted_in(source)
    assert planted != source
    compile(planted, bug.file, "exec")
    assert bug.fault in BY_NAME


def test_the_matrix_runs_from_the_copy_that_bugs_are_planted_in(tmp_path: Path) -> None:
    copy = copy_of_the_sources(tmp_path)
    listed = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--list"],
        cwd=copy,
        env=dict(os.environ) | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    assert all(name in listed.stdout for name in BY_NAME)
