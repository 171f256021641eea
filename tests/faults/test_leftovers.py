"""A matrix that is ended cleans up behind itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.disk_faults import may_mount
from tests.faults.leftovers import mounts_below, processes_below

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_matrix_that_is_ended_leaves_no_process_no_disk_and_no_folder(tmp_path: Path) -> None:
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
