"""The matrix itself: its bugs can be planted, and it leaves nothing behind when it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from tests.faults.__main__ import mounts_below, processes_below
from tests.faults.catalogue import BY_NAME
from tests.faults.disk_faults import may_mount
from tests.faults.planted import BUGS, REPOSITORY, Bug, environment_with
from tests.system import running_server

PLANTED = """
import importlib, operator, sys
module, function = sys.argv[1:]
print(operator.attrgetter(function)(importlib.import_module(module)).__code__.co_filename)
"""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_wraps_what_is_there(bug: Bug) -> None:
    assert bug.fault in BY_NAME
    assert callable(attrgetter(bug.function)(import_module(bug.module)))


def test_process_has_planted_bug() -> None:
    bug = BUGS[2]
    found = subprocess.run(
        [sys.executable, "-P", "-c", PLANTED, bug.module, bug.function],
        env=environment_with(bug),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.strip().endswith("planted.py")


def test_server_that_is_never_ready_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_server, "READY_SECONDS", 0.1)
    server = running_server.RunningServer(tmp_path / "home")
    server.command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(AssertionError, match="not ready"):
        server.start()
    assert not server.alive


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
        while len(list(processes_below(tmp_path))) < 3 or (
            may_mount() and not mounts_below(tmp_path)
        ):
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
