"""The side process against a fake ingest on a real socket: nothing lost, nothing doubled, nothing
dropped on refusal."""

from __future__ import annotations

import errno
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from isentrope.transport import connection
from isentrope.transport.files import Tally
from isentrope.transport.segments import SegmentWriter, encode_frame, list_segments
from isentrope.transport.shipper import (
    EXIT_DELIVERED,
    EXIT_NO_SPOOL,
    EXIT_OTHER_SHIPPER,
    ShipperSettings,
    ship,
)
from isentrope.transport.spool_folder import ControlFile, ShipperState, SpoolError, SpoolFolder
from isentrope.transport.spool_reader import DAMAGED, KILLED
from isentrope_wire.codec import encode_payload
from isentrope_wire.control import Control, Method
from isentrope_wire.reports import ControlSnapshot, Gap, Payload, StepReport
from tests.probe.transport.fake_telemetry import QUICK, RUN, FakeTelemetry, lock_held
from tests.system.running_server import clean_environment, free_port, wait_for


def report(seq: int) -> StepReport:
    return StepReport(step=seq, recorded_at=1.0, scalars={"entropy/mean": 0.5})


def messages(last_seq: int) -> list[Payload]:
    return [RUN, *(report(seq) for seq in range(2, last_seq + 1))]


def write_segment(folder: SpoolFolder, first_seq: int, last_seq: int) -> None:
    writer = SegmentWriter(folder.path, first_seq)
    writer.append(
        encode_frame(seq, encode_payload(messages(seq)[-1]))
        for seq in range(first_seq, last_seq + 1)
    )
    writer.close()


@pytest.fixture
def folder(tmp_path: Path, server: FakeTelemetry) -> SpoolFolder:
    """A spool whose trainer is gone: 120 records in three segments."""
    a_folder = SpoolFolder.create(tmp_path, RUN, server.target)
    for first, last in ((1, 50), (51, 100), (101, 120)):
        write_segment(a_folder, first, last)
    return a_folder


@contextmanager
def started_shipper(folder: SpoolFolder) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "isentrope.transport.shipper", str(folder.path)]
    environment = clean_environment() | {"ISENTROPE_HOME": str(folder.path / "home")}
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_spool_left_behind_is_delivered_once_and_in_order_and_gone_with_the_folders_that_held_it(
    folder: SpoolFolder, server: FakeTelemetry, tmp_path: Path
) -> None:
    status = ship(folder, QUICK)
    assert status is not None
    assert (status.state, status.acked_through) == (ShipperState.DRAINED, 120)
    assert server.payloads == messages(120)
    assert server.duplicates == 0
    assert not folder.exists
    assert list((tmp_path / "spool").iterdir()) == []
    with pytest.raises(SpoolError):
        ship(folder, QUICK)


def test_a_damaged_segment_outlives_the_delivery(
    folder: SpoolFolder, server: FakeTelemetry
) -> None:
    segment = list_segments(folder.path)[1]
    content = bytearray(segment.read_bytes())
    content[-5] ^= 0xFF
    segment.write_bytes(content)
    ship(folder, QUICK)
    assert server.payloads[99] == Gap(first_seq=100, last_seq=100, reason=DAMAGED)
    assert {path.name for path in folder.path.iterdir()} == {
        f"{51:020d}.damaged",
        "run.payload",
        "target",
    }
    assert ship(folder, QUICK) is not None, "and delivering again does no harm"


@pytest.mark.parametrize("handed_over", [120, 124])
def test_what_a_killed_trainer_handed_over_is_a_gap(
    folder: SpoolFolder, server: FakeTelemetry, handed_over: int
) -> None:
    tally = Tally()
    tally.set(handed_over)
    server.push_fails_with = grpc.StatusCode.UNAVAILABLE
    hasty = ShipperSettings(poll_seconds=0.01, drain_seconds=0.3, longest_pause_seconds=0.05)
    ship(folder, replace(hasty, tally=tally.descriptor))
    server.push_fails_with = None
    status = ship(folder, replace(QUICK, tally=tally.descriptor))
    tally.close()
    missing = [Gap(first_seq=121, last_seq=124, reason=KILLED)] if handed_over > 120 else []
    assert server.payloads == [*messages(120), *missing]
    assert status is not None
    assert (status.state, status.acked_through) == (ShipperState.DRAINED, handed_over)


def test_a_lost_reply_doubles_nothing(folder: SpoolFolder, server: FakeTelemetry) -> None:
    server.lose_replies = 2
    ship(folder, QUICK)
    assert server.payloads == messages(120)
    assert server.duplicates == 0, "Hello comes before a repetition"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED])
def test_a_refusal_never_drops_a_record(
    folder: SpoolFolder, server: FakeTelemetry, code: grpc.StatusCode
) -> None:
    server.push_fails_with = code
    hasty = ShipperSettings(poll_seconds=0.01, drain_seconds=0.3, longest_pause_seconds=0.05)
    status = ship(folder, hasty)
    assert status is not None
    assert (status.state, status.acked_through) == (ShipperState.GAVE_UP, 0)
    assert code.name in status.error
    assert len(list_segments(folder.path)) == 3
    server.push_fails_with = None
    ship(folder, QUICK)
    assert server.payloads == messages(120)


def test_an_acknowledgement_short_of_what_was_sent_is_not_taken_for_all(
    folder: SpoolFolder, server: FakeTelemetry
) -> None:
    server.acked_through_instead = 0
    # Less than the first pause: a second Hello would learn what is stored.
    hasty = ShipperSettings(poll_seconds=0.01, drain_seconds=0.2, longest_pause_seconds=0.05)
    status = ship(folder, hasty)
    assert status is not None
    assert status.state is ShipperState.GAVE_UP
    assert "up to 0 only" in status.error
    assert (folder.path / f"{101:020d}.seg").exists()


def test_while_the_trainer_lives_the_shipper_stays_and_brings_the_control(
    folder: SpoolFolder, server: FakeTelemetry
) -> None:
    with lock_held(folder.trainer_lock) as trainer, started_shipper(folder) as shipper:
        wait_for(lambda: len(server.records) == 120)
        reader = ControlFile(folder.control)
        for version in (1, 2):
            wish = ControlSnapshot(
                version=version,
                control=Control(method=Method.CLIP_V, mu_low=1.0),
                author="ada",
                requested_at=1.0,
                expires_at=1.5,  # long ago: the trainer judges that, not the shipper
            )
            server.control = wish
            wait_for(
                lambda wish=wish: (  # type: ignore[misc]
                    (read := reader.read()) is not None and read.version == wish.version
                )
            )
            read = reader.read()
            assert read is not None
            assert read.expires_at == pytest.approx(1.5, abs=5.0), (
                "in this machine's time, which is the server's here"
            )
            assert replace(read, expires_at=1.5) == wish
        write_segment(folder, 121, 130)
        wait_for(lambda: len(server.records) == 130)
        wait_for(lambda: [int(path.stem) for path in list_segments(folder.path)] == [121])
        time.sleep(0.2)
        assert len(list_segments(folder.path)) == 1, "the segment being written stays"
        assert shipper.poll() is None
        trainer.kill()
        assert shipper.wait(timeout=30) == EXIT_DELIVERED
        assert list_segments(folder.path) == []


def test_the_newest_answer_is_the_control_and_a_full_disk_is_tried_again(
    folder: SpoolFolder, server: FakeTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.control = ControlSnapshot(version=5, control=Control(), author="ada", requested_at=1.0)
    refused: list[int] = []
    write = ControlFile.write

    def without_room(file: ControlFile, snapshot: ControlSnapshot) -> None:
        refused.append(snapshot.version)
        if len(refused) == 1:
            # As after its database was restored: it counts from an earlier version.
            server.control = replace(snapshot, version=3)
        if len(refused) < 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, snapshot)

    monkeypatch.setattr(ControlFile, "write", without_room)
    with lock_held(folder.trainer_lock):
        shipping = threading.Thread(target=ship, args=(folder, QUICK))
        shipping.start()
        reader = ControlFile(folder.control)
        wait_for(lambda: (read := reader.read()) is not None and read == server.control)
    shipping.join()
    assert refused[0] == 5


@pytest.mark.slow
def test_one_folder_has_one_shipper(folder: SpoolFolder, server: FakeTelemetry) -> None:
    with lock_held(folder.trainer_lock), started_shipper(folder) as first:
        wait_for(lambda: len(server.records) == 120)
        with started_shipper(folder) as second:
            assert second.wait(timeout=10) == EXIT_OTHER_SHIPPER
        assert first.poll() is None


def test_a_folder_that_is_no_spool_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "isentrope.transport.shipper", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == EXIT_NO_SPOOL
    assert str(tmp_path) in result.stderr
    assert result.stderr.count("\n") == 1


def test_reports_to_this_machine_pass_by_a_proxy(
    server: FakeTelemetry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    folder = SpoolFolder.create(tmp_path, RUN, server.target)
    write_segment(folder, 1, 3)
    status = ship(folder, QUICK)
    assert status is not None
    assert (status.state, status.acked_through) == (ShipperState.DRAINED, 3)


@pytest.mark.slow
def test_a_batch_that_does_not_arrive_in_time_is_sent_in_smaller_ones_that_grow_again(
    folder: SpoolFolder, server: FakeTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CALL_SECONDS", 0.3)
    monkeypatch.setattr(connection, "SLOWEST_BYTES_PER_SECOND", 1e9)
    server.seconds_per_record = 0.006
    status = ship(folder, QUICK)
    assert status is not None
    assert (status.state, status.acked_through) == (ShipperState.DRAINED, 120)
    sizes = [len(batch) for batch in server.pushes]
    assert sum(sizes) == 120
    assert max(sizes) < 50
    assert any(later > earlier for earlier, later in itertools.pairwise(sizes))


def test_a_call_is_given_the_time_its_message_takes_over_a_slow_link(
    server: FakeTelemetry, tmp_path: Path
) -> None:
    folder = SpoolFolder.create(tmp_path, RUN, server.target)
    large = StepReport(step=0, recorded_at=1.0, labels={"text": "x" * 400_000})
    sent: list[Payload] = [RUN, large]
    writer = SegmentWriter(folder.path, 1)
    writer.append(
        encode_frame(seq, encode_payload(message)) for seq, message in enumerate(sent, start=1)
    )
    writer.close()
    ship(folder, QUICK)
    assert server.payloads == sent
    (seconds,) = server.deadlines
    assert 22.0 < seconds < 26.0
