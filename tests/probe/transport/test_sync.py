"""Delivering what training processes left behind, beside whoever else may be at it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from isentrope.transport import sync
from isentrope.transport.process_lock import is_held_by_another_process, pid_of_holder
from isentrope.transport.shipper_status import ShipperState, ShipperStatus
from isentrope.transport.spool_folder import SpoolFolder
from isentrope.transport.sync import SyncOutcome, sync_spool
from tests.probe.transport.fake_telemetry import FakeTelemetry, free_port
from tests.system.spool_of_a_run import leave_spool

HOLD_THE_LOCK = (
    "import sys, time; from pathlib import Path; from isentrope.transport.process_lock import ProcessLock; "
    "assert ProcessLock(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(60)"
)

DO_SOMETHING_ELSE = "import time; print('here', flush=True); time.sleep(60)"


@pytest.fixture
def server() -> Iterator[FakeTelemetry]:
    fake = FakeTelemetry(free_port())
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def folder(tmp_path: Path, server: FakeTelemetry) -> SpoolFolder:
    return leave_spool(tmp_path, "left", steps=3, grpc_target=server.target)


@contextmanager
def process(program: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """One that has said its first word."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            started.stdout.readline()
            yield started
        finally:
            started.kill()


def test_the_system_says_who_holds_a_lock(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    assert pid_of_holder(lock) is None
    with process(HOLD_THE_LOCK, lock) as holder:
        assert pid_of_holder(lock) == holder.pid
    assert pid_of_holder(lock) is None


def test_a_sync_ends_the_shipper_that_holds_the_spool_and_not_the_process_its_status_names(
    folder: SpoolFolder, server: FakeTelemetry
) -> None:
    with process(DO_SOMETHING_ELSE) as innocent, process(HOLD_THE_LOCK, folder.shipper_lock) as shipper:
        ShipperStatus(state=ShipperState.HOLDING, pid=innocent.pid).write(folder.status)
        result = sync_spool(folder, target=None, give_up_after_seconds=5.0)
        assert innocent.poll() is None
        assert shipper.wait(timeout=30) != 0
    assert result.outcome is SyncOutcome.DELIVERED
    assert sorted(server.records) == [1, 2, 3, 4]


def test_a_shipper_that_has_no_number_here_is_left_alone(
    folder: SpoolFolder, server: FakeTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "pid_of_holder", lambda _: None)
    with process(HOLD_THE_LOCK, folder.shipper_lock) as shipper:
        ShipperStatus(state=ShipperState.HOLDING, pid=shipper.pid).write(folder.status)
        result = sync_spool(folder, target=None, give_up_after_seconds=5.0)
        assert result.outcome is SyncOutcome.BUSY
        assert is_held_by_another_process(folder.shipper_lock)
        assert server.records == {}
