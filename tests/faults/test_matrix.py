"""The matrix itself: its bugs fit the sources, and it leaves nothing behind when it is ended."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.__main__ import mounts_below, processes_below
from tests.faults.catalogue import BY_NAME
from tests.faults.disk_faults import may_mount
from tests.faults.planted import BUGS, REPOSITORY, Bug, copy_of_the_sources


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_fits_sources_and_fault(bug: Bug) -> None:
    package, _, file = bug.file.partition("/")
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    source = (Path(found.origin).parent / file).read_text(encoding="utf-8")
    planted = bug.planted_in(source)
    assert planted != source
    compile(planted, bug.file, "exec")
    assert bug.fault in BY_NAME


def test_matrix_runs_from_the_copy(tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_ended_matrix_leaves_nothing(tmp_path: Path) -> None:
    fault = "spool_disk_full" if may_mount() else "shipper_frozen"
    matrix = subprocess.Popen(
        [sys.executable, "-m", "tests.faults", fault],
        cwd=REPOSITORY,
        env=dict(os.environ) | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 120.0
        # A server, a training process and its shipper.
        while len(list(processes_below(tmp_path))) < 3 or (may_mount() and not mounts_below(tmp_path)):
            assert matrix.poll() is None
            assert time.monotonic() < end, "the fault did not begin"
            time.sleep(0.05)
        matrix.terminate()
        assert matrix.wait(timeout=60.0) == 128 + signal.SIGTERM
        assert list(processes_below(tmp_path)) == []
        assert mounts_below(tmp_path) == []
        assert list(tmp_path.iterdir()) == []
    finally:
        matrix.kill()
        matrix.wait()
