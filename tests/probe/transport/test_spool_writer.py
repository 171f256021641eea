"""The writer: every accepted report lies on disk, or a gap says why not."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from isentrope.transport.segments import MAX_PAYLOAD_BYTES, SegmentWriter, list_segments
from isentrope.transport.spool_disk import SpoolLimits
from isentrope.transport.spool_writer import NOT_BUILT, TOO_LARGE, MessageQueue, SpoolWriter
from isentrope.transport.transport import MakeMessage, Message
from isentrope_wire.reports import Gap, StepReport
from tests.probe.transport.fake_telemetry import RUN, on_disk


def making(step: int, label: str = "") -> MakeMessage:
    def make() -> Message:
        return StepReport(step=step, recorded_at=1.0, labels={"label": label} if label else {})

    return make


def fails() -> Message:
    raise ZeroDivisionError("the report divides by zero")


@pytest.fixture
def queue() -> MessageQueue:
    return MessageQueue(max_messages=4, max_bytes=10**9)


@pytest.fixture
def writer(tmp_path: Path, queue: MessageQueue) -> SpoolWriter:
    return SpoolWriter(tmp_path, RUN, queue, SpoolLimits())


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every append fails until `undo`."""

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SegmentWriter, "append", no_space)
    return monkeypatch


def test_a_report_that_cannot_be_built_is_counted_logged_once_and_shown_as_a_gap(
    tmp_path: Path, writer: SpoolWriter, queue: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write_queued()
    for make in (making(1), fails, fails, making(2)):
        queue.put(make)
    with caplog.at_level(logging.WARNING):
        writer.write_queued()
    *before, last = on_disk(tmp_path)[1:]
    assert before == [
        making(1)(),
        Gap(first_seq=3, last_seq=3, reason=NOT_BUILT),
        Gap(first_seq=4, last_seq=4, reason=NOT_BUILT),
    ]
    assert isinstance(last, StepReport)
    assert last.step == 2
    assert [alert.kind for alert in last.alerts] == ["left_out"]
    assert writer.lost == 2
    assert len(caplog.records) == 1
    assert "divides by zero" in caplog.text


def test_numbers_stay_where_even_a_gap_finds_no_memory(
    tmp_path: Path, writer: SpoolWriter, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write_queued()

    def no_memory(*_: object) -> bytes:
        raise MemoryError

    queue.put(making(1))
    with monkeypatch.context() as full:
        full.setattr("isentrope.transport.spool_writer.encode_frame", no_memory)
        with pytest.raises(MemoryError):
            writer.write_queued()
    queue.put(making(2))
    writer.write_queued()
    assert writer.idle
    gap, last = on_disk(tmp_path)[1:]
    assert gap == Gap(first_seq=2, last_seq=2, reason=NOT_BUILT)
    assert isinstance(last, StepReport)
    assert last.step == 2


def test_a_full_queue_is_told_once(
    tmp_path: Path, writer: SpoolWriter, queue: MessageQueue, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write_queued()
    with caplog.at_level(logging.WARNING):
        for first in (0, 10):
            taken = [queue.put(making(first + step)) for step in range(7)]
            assert taken == [True] * 4 + [False] * 3
            writer.write_queued()
            queue.put(making(first + 7))
            queue.put(making(first + 8))
            writer.write_queued()
    reports = {one.step: one for one in on_disk(tmp_path) if isinstance(one, StepReport)}
    told = {step: alert for step, report in reports.items() for alert in report.alerts}
    assert list(told) == [7]
    assert (told[7].kind, told[7].evidence) == ("left_out", {"lost": 3.0})
    assert "3 reports before step 7 were lost: the queue of reports was full" in told[7].message
    assert len(caplog.records) == 1
    assert "the queue of reports was full" in caplog.text


def test_a_report_too_large_for_a_record_becomes_a_gap(
    tmp_path: Path, writer: SpoolWriter, queue: MessageQueue
) -> None:
    writer.write_queued()
    queue.put(making(1, label="x" * MAX_PAYLOAD_BYTES))
    writer.write_queued()
    assert on_disk(tmp_path)[1:] == [Gap(first_seq=2, last_seq=2, reason=TOO_LARGE)]
    assert writer.lost == 1


def test_a_disk_that_stays_full_for_longer_than_a_segment_may_grow_old_is_written_to_again(
    tmp_path: Path, queue: MessageQueue, full_disk: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(tmp_path, RUN, queue, SpoolLimits(segment_seconds=0.0))
    for _ in range(3):
        assert not writer.write_queued()
        writer.sync()
    full_disk.undo()
    queue.put(making(0))
    while not writer.idle:
        assert writer.write_queued()
    assert on_disk(tmp_path) == [RUN, making(0)()]


def test_a_spool_at_its_limit_behaves_like_a_full_disk(tmp_path: Path, queue: MessageQueue) -> None:
    writer = SpoolWriter(
        tmp_path, RUN, queue, SpoolLimits(max_spool_bytes=2000, segment_bytes=1000)
    )
    written = []
    for step in range(8):
        queue.put(making(step, label="x" * 600))
        written.append(writer.write_queued())
        writer.sync()
    assert written == [True] * 3 + [False] * 5 or written == [True] * 4 + [False] * 4
    for segment in list_segments(tmp_path):
        segment.unlink()
    assert writer.write_queued()


def test_segments_close_at_their_size(tmp_path: Path, queue: MessageQueue) -> None:
    writer = SpoolWriter(tmp_path, RUN, queue, SpoolLimits(segment_bytes=500))
    for step in range(6):
        queue.put(making(step, label="x" * 200))
        writer.write_queued()
        writer.sync()
    *closed, _ = list_segments(tmp_path)
    assert len(closed) >= 2
    assert all(500 <= segment.stat().st_size < 800 for segment in closed)
