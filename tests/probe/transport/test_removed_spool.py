"""Somebody removes files of a spool under the process that writes it: it goes on, and nothing is lost in silence."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isentrope.transport.files import ProcessLock
from isentrope.transport.segments import list_segments
from isentrope.transport.shipper import EXIT_DELIVERED
from isentrope.transport.spool import SpoolTransport, open_transport
from isentrope.transport.spool_reader import SpoolReader
from isentrope_wire.codec import decode_payload
from isentrope_wire.reports import Gap, RunStarted, StepReport
from tests.probe.transport.fake_telemetry import FakeTelemetry, free_port
from tests.system.spool_of_a_run import leave_spool

RUN = RunStarted(
    run_id="r", incarnation="i", rank=0, world_size=1, name="n", project="p", started_at=0.0, probe_version="0"
)
IS_HELD = (
    "import sys; from pathlib import Path; from isentrope.transport.files import is_held_by_another_process; "
    "sys.exit(is_held_by_another_process(Path(sys.argv[1])))"
)


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[SpoolTransport]:
    opened = open_transport(RUN, mode="offline", home=tmp_path, grpc_target="127.0.0.1:1", token=None)
    assert isinstance(opened, SpoolTransport)
    yield opened
    opened.close()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def report(transport: SpoolTransport, step: int) -> None:
    """Put one, and wait until it is written."""
    before = transport.statistics().spooled
    assert transport.put(lambda: StepReport(step=step, recorded_at=1.0))
    wait_until(lambda: transport.statistics().spooled > before)


def is_held(path: Path) -> bool:
    """Asked by another process: this one would give up a lock of its own by looking."""
    return subprocess.run([sys.executable, "-c", IS_HELD, str(path)], check=False, timeout=60).returncode == 1


def what_a_server_gets(transport: SpoolTransport) -> list[str]:
    """The steps, and `2..5` for a gap; the numbers without a hole."""
    reader = SpoolReader(transport.folder.path)
    records = reader.next_batch(10**6, 10**9)
    records += reader.missing_at_the_end(transport.folder.last_seq())
    told, expected = [], 1
    for record in records:
        message = decode_payload(record.payload)
        assert (message.first_seq if isinstance(message, Gap) else record.seq) == expected
        expected = record.seq + 1
        if isinstance(message, StepReport):
            told.append(str(message.step))
        elif isinstance(message, Gap):
            told.append(f"{message.first_seq}..{message.last_seq}")
    assert expected == 1 + (transport.folder.last_seq() or 0)
    return told


def test_a_writer_whose_folder_was_removed_makes_it_anew_and_goes_on(transport: SpoolTransport) -> None:
    report(transport, 0)
    folder = transport.folder
    shutil.rmtree(folder.path.parent.parent)
    wait_until(lambda: folder.exists and folder.trainer_lock.exists())
    assert is_held(folder.trainer_lock)
    assert (folder.run(), folder.grpc_target()) == (RUN, "127.0.0.1:1")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    report(transport, 1)
    report(transport, 2)
    transport.close()
    assert what_a_server_gets(transport) == ["1..2", "1", "2"]


def test_a_writer_whose_segment_was_removed_goes_on_in_another(transport: SpoolTransport) -> None:
    report(transport, 0)
    (segment,) = list_segments(transport.folder.path)
    segment.unlink()
    time.sleep(0.2)
    report(transport, 1)
    transport.close()
    assert what_a_server_gets(transport) == ["1..2", "1"]


def test_a_writer_whose_folder_was_removed_at_the_end_leaves_a_gap(transport: SpoolTransport) -> None:
    report(transport, 0)
    shutil.rmtree(transport.folder.path)
    transport.close()
    assert what_a_server_gets(transport) == ["1..2"]


def test_a_lock_that_was_removed_is_held_again(transport: SpoolTransport) -> None:
    transport.folder.trainer_lock.unlink()
    wait_until(transport.folder.trainer_lock.exists)
    assert is_held(transport.folder.trainer_lock)


def test_a_lock_knows_whether_its_file_is_there(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path / "a.lock")
    assert not lock.is_in_place
    lock.acquire()
    assert lock.is_in_place
    (tmp_path / "a.lock").rename(tmp_path / "b.lock")
    assert not lock.is_in_place
    lock.replace()
    assert lock.is_in_place
    (tmp_path / "a.lock").unlink()
    (tmp_path / "a.lock").touch()
    assert not lock.is_in_place
    lock.release()


@pytest.mark.slow
def test_a_shipper_whose_trainers_lock_was_removed_waits_for_the_process_that_started_it(tmp_path: Path) -> None:
    server = FakeTelemetry(free_port())
    server.start()
    folder = leave_spool(tmp_path, "left", steps=3, grpc_target=server.target)
    folder.trainer_lock.unlink()
    command = [sys.executable, "-m", "isentrope.transport.shipper", str(folder.path)]
    with subprocess.Popen(command) as shipper:
        try:
            wait_until(lambda: len(server.records) == 4)
            time.sleep(0.5)
            assert shipper.poll() is None
            assert len(list_segments(folder.path)) == 1
            folder.trainer_lock.touch()
            assert shipper.wait(timeout=30) == EXIT_DELIVERED
        finally:
            shipper.kill()
            server.stop()
    assert not folder.exists
