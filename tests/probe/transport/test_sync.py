"""Delivering what training processes left behind, beside whoever else may be at it."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from isentrope.transport.connection import ServerRefuses
from isentrope.transport.files import write_document
from isentrope.transport.segments import list_segments
from isentrope.transport.spool_folder import (
    ShipperState,
    ShipperStatus,
    SpoolEnd,
    SpoolFolder,
    find_spool_folders,
)
from isentrope.transport.spool_reader import DAMAGED
from isentrope.transport.sync import SyncOutcome, refill_server, sync_spool, sync_spools
from isentrope_wire import environment
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import Gap, StepReport
from tests.probe.transport.fake_telemetry import FakeTelemetry, lock_held
from tests.system.spool_of_a_run import leave_spool


@pytest.fixture
def folder(tmp_path: Path, server: FakeTelemetry) -> SpoolFolder:
    return leave_spool(tmp_path, "left", steps=3, grpc_target=server.target)


def test_a_sync_waits_for_the_process_that_delivers_the_spool(
    folder: SpoolFolder, server: FakeTelemetry
) -> None:
    with lock_held(folder.shipper_lock, 1.0):
        result = sync_spool(folder, target=None, give_up_after_seconds=30.0)
    assert result.outcome is SyncOutcome.DELIVERED
    assert sorted(server.records) == [1, 2, 3, 4]


def test_a_sync_leaves_a_spool_alone_whose_process_gets_nothing_stored(
    folder: SpoolFolder, server: FakeTelemetry
) -> None:
    with lock_held(folder.shipper_lock) as shipper:
        write_document(
            folder.status,
            ShipperStatus(state=ShipperState.HOLDING, error="The token is wrong.", pid=shipper.pid),
        )
        result = sync_spool(folder, target=None, give_up_after_seconds=0.3)
        assert (result.outcome, "another process" in result.detail) == (SyncOutcome.LEFT, True)
        assert "The token is wrong" in result.detail
        assert shipper.poll() is None
    assert server.records == {}


def test_a_refusal_ends_a_sync_at_once_and_the_spool_stays(
    folder: SpoolFolder, server: FakeTelemetry
) -> None:
    server.push_fails_with = grpc.StatusCode.FAILED_PRECONDITION
    started_at = time.monotonic()
    with pytest.raises(ServerRefuses, match="FAILED_PRECONDITION"):
        sync_spool(folder, target=None, give_up_after_seconds=60.0)
    assert time.monotonic() - started_at < 30.0
    assert len(list_segments(folder.path)) == 1


def test_only_a_server_that_does_not_answer_is_not_asked_again(
    folder: SpoolFolder, server: FakeTelemetry, tmp_path: Path
) -> None:
    second = leave_spool(tmp_path, "second", steps=3, grpc_target=server.target)
    server.push_fails_with = grpc.StatusCode.INTERNAL
    answering = list(sync_spools([folder, second], target=None, give_up_after_seconds=0.2))
    server.stop()
    absent = list(sync_spools([folder, second], target=None, give_up_after_seconds=0.2))
    assert [result.outcome for result in (*answering, *absent)] == [SyncOutcome.LEFT] * 4
    assert [result.server_away for result in (*answering, *absent)] == [False, False, True, True]
    assert [
        result.detail.startswith(f"{server.target} does not answer: ")
        for result in (*answering, *absent)
    ] == [
        False,
        False,
        True,
        True,
    ]


def test_a_folder_nobody_can_deliver_keeps_none_behind_it(
    folder: SpoolFolder, server: FakeTelemetry, tmp_path: Path
) -> None:
    broken = leave_spool(tmp_path, "broken", steps=3, grpc_target=server.target)
    (broken.path / "target").unlink()
    left, delivered = sync_spools([broken, folder], target=None, give_up_after_seconds=5.0)
    assert (left.run, left.rank, left.outcome) == ("broken", 0, SyncOutcome.LEFT)
    assert "names no server" in left.detail
    assert delivered.outcome is SyncOutcome.DELIVERED


def test_a_damaged_description_of_the_run_is_read_from_the_first_record(
    folder: SpoolFolder, server: FakeTelemetry
) -> None:
    expected = folder.run()
    description = folder.path / "run.payload"
    content = bytearray(description.read_bytes())
    for at in (0, content.index(b"left")):
        broken = bytearray(content)
        broken[at] ^= 0x01
        description.write_bytes(broken)
        assert folder.run() == expected
    assert (
        sync_spool(folder, target=None, give_up_after_seconds=5.0).outcome is SyncOutcome.DELIVERED
    )


def test_a_segment_the_disk_does_not_give_back_arrives_as_a_gap(
    folder: SpoolFolder, server: FakeTelemetry
) -> None:
    (segment,) = list_segments(folder.path)
    unreadable = segment.with_name(f"{5:020d}.seg")
    unreadable.mkdir()
    write_document(folder.end, SpoolEnd(9))
    result = sync_spool(folder, target=None, give_up_after_seconds=5.0)
    assert result.outcome is SyncOutcome.DELIVERED
    assert [type(payload) for payload in server.payloads[1:-1]] == [StepReport] * 3
    assert server.payloads[-1] == Gap(first_seq=5, last_seq=9, reason=DAMAGED)
    assert unreadable.with_suffix(".damaged").exists()


def test_a_server_that_lost_records_gets_them_from_a_delivered_spool_while_it_is_kept(
    folder: SpoolFolder, server: FakeTelemetry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_spool(folder, target=None, give_up_after_seconds=5.0)
    assert not folder.exists
    (kept,) = find_spool_folders(tmp_path / "delivered")
    assert list(refill_server([kept], target=None, give_up_after_seconds=5.0)) == []
    for seq in (3, 4):
        del server.records[seq]
    (result,) = refill_server([kept], target=None, give_up_after_seconds=5.0)
    assert (result.outcome, result.detail.split(" are ")[0]) == (SyncOutcome.DELIVERED, "2 records")
    assert sorted(server.records) == [1, 2, 3, 4]
    server.stop()
    assert list(refill_server([kept], target=None, give_up_after_seconds=0.1)) == []
    monkeypatch.setenv("ISENTROPE_KEEP_DELIVERED", "0")
    list(refill_server([kept], target=None, give_up_after_seconds=0.1))
    assert find_spool_folders(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 86_400), ("0", 0), ("1.5h", 5_400), ("d", None), ("-1", None), ("nan", None)],
)
def test_the_time_delivered_reports_are_kept(
    monkeypatch: pytest.MonkeyPatch, text: str, seconds: float | None
) -> None:
    monkeypatch.setenv("ISENTROPE_KEEP_DELIVERED", text)
    if seconds is None:
        with pytest.raises(ConfigurationError, match="ISENTROPE_KEEP_DELIVERED"):
            environment.keep_delivered_seconds()
    else:
        assert environment.keep_delivered_seconds() == seconds
