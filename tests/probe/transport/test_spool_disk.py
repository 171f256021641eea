"""The disk under a spool: it fails in every way it can, and what was accepted is still there."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isentrope.transport import spool_disk
from isentrope.transport.segments import SegmentWriter, encode_frame, list_segments
from isentrope.transport.spool_disk import NumberedFrame, SpoolDisk, SpoolLimits
from isentrope.transport.spool_reader import SpoolReader
from isentrope.transport.spool_writer import MessageQueue, SpoolWriter
from isentrope_wire.reports import DROPPED_PARTS, DrivingToken, ScoreHistogram, StepReport
from tests.probe.transport.fake_telemetry import RUN, on_disk

TOKEN = DrivingToken(
    rank=0,
    sequence=0,
    position=0,
    token_id=1,
    text="t",
    logprob=-1.0,
    entropy=0.5,
    vocab_centered_score=0.25,
    advantage=1.0,
    contribution=0.5,
    kept=True,
)
LEFT_OUT = "tokens, histograms"
HISTOGRAM = ScoreHistogram(name="h", low=0.0, high=1.0, counts=(1, 2, 3))


def frame(seq: int) -> NumberedFrame:
    return NumberedFrame(
        first_seq=seq, last_seq=seq, content=encode_frame(seq, b"payload %d" % seq)
    )


def full_report(step: int) -> StepReport:
    return StepReport(
        step=step,
        recorded_at=1.0,
        scalars={"entropy/mean": 0.5},
        histograms=(HISTOGRAM,),
        tokens=(TOKEN,),
        labels={"control/method": "none"},
    )


def disk(folder: Path, **limits: Any) -> SpoolDisk:
    return SpoolDisk(folder, SpoolLimits(**limits))


def seqs(folder: Path) -> list[int]:
    return [record.seq for record in SpoolReader(folder).next_batch(10_000, 10**9)]


class Failing:
    """A call of `os` as a full or broken disk does it: it fails `left` times, then does what it is
    to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, error: int) -> None:
        self.left = 0
        self._real, self._error = getattr(os, call), error
        monkeypatch.setattr(os, call, self._called)

    def _called(self, *arguments: Any) -> Any:
        if self.left:
            self.left -= 1
            raise OSError(self._error, os.strerror(self._error))
        return self._real(*arguments)


def failing_syncs(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch, "fdatasync", errno.EIO)


def test_a_new_segments_name_is_made_to_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    SegmentWriter(tmp_path, 1).close()
    assert synced == [str(tmp_path)]


def test_what_a_failed_sync_leaves_unsure_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = failing_syncs(monkeypatch)
    a_disk = disk(tmp_path)
    a_disk.append([frame(1), frame(2)])
    assert a_disk.sync() == []
    a_disk.append([frame(3)])
    a_disk.append([frame(4)])
    syncs.left = 1
    doubtful = a_disk.sync()
    assert [one.first_seq for one in doubtful] == [3, 4]
    a_disk.append([*doubtful, frame(5)])
    assert a_disk.sync() == []
    assert [int(path.stem) for path in list_segments(tmp_path)] == [1, 3]
    assert seqs(tmp_path) == [1, 2, 3, 4, 5]


def test_the_reserve_is_real_room_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_disk, "RESERVE_PAUSE_SECONDS", 0.0)
    a_disk = disk(tmp_path)
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= spool_disk.RESERVE_BYTES
    assert a_disk.give_up_reserve()
    assert not (tmp_path / "reserve").exists()
    assert not a_disk.give_up_reserve()
    assert a_disk.restore_reserve()
    a_disk.close()
    assert not (tmp_path / "reserve").exists()


class FullDisk:
    """Takes frames up to a size; with the reserve given up, larger ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, takes_up_to: int) -> None:
        self.takes_up_to = takes_up_to
        real = SegmentWriter.append

        def append(segment: SegmentWriter, frames: list[bytes]) -> None:
            written = list(frames)
            if any(len(one) > self.takes_up_to for one in written):
                raise OSError(errno.ENOSPC, "No space left on device")
            real(segment, written)

        monkeypatch.setattr(SegmentWriter, "append", append)


def heavy_report(step: int) -> StepReport:
    """One whose tokens weigh more than the alert about their loss."""
    return replace(
        full_report(step), tokens=tuple(replace(TOKEN, text="x" * 2000) for _ in range(2))
    )


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SpoolWriter:
    # The reserve is not to come back behind the test's back.
    monkeypatch.setattr(spool_disk, "RESERVE_PAUSE_SECONDS", 1e9)
    return SpoolWriter(tmp_path, RUN, MessageQueue(max_messages=4, max_bytes=10**9), SpoolLimits())


def put(writer: SpoolWriter, *reports: StepReport) -> bool:
    for report in reports:
        assert writer._queue.put(lambda report=report: report)  # type: ignore[misc]
    return writer.write_queued()


def test_a_full_disk_costs_tokens_and_histograms_and_says_so(
    tmp_path: Path, writer: SpoolWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write_queued()
    FullDisk(monkeypatch, takes_up_to=1500)
    assert put(writer, heavy_report(1), full_report(2))
    _, first, second = on_disk(tmp_path)
    assert isinstance(first, StepReport)
    assert (first.tokens, first.histograms, first.scalars) == ((), (), full_report(1).scalars)
    assert first.labels[DROPPED_PARTS] == LEFT_OUT
    assert [alert.kind for alert in first.alerts] == ["left_out"]
    assert isinstance(second, StepReport)
    assert (second.tokens, second.alerts) == ((), ())
    assert second.labels == {"control/method": "none", DROPPED_PARTS: LEFT_OUT}
    assert writer.left_out == 2


def test_with_room_again_reports_are_whole_again_and_the_next_time_is_told_too(
    tmp_path: Path, writer: SpoolWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write_queued()
    full = FullDisk(monkeypatch, takes_up_to=1500)
    assert put(writer, heavy_report(1))
    full.takes_up_to = 10**6
    writer._disk._next_reserve_at = 0.0
    assert put(writer, heavy_report(2))
    assert on_disk(tmp_path)[-1] == heavy_report(2)
    full.takes_up_to = 1500
    assert put(writer, heavy_report(3))
    last = on_disk(tmp_path)[-1]
    assert isinstance(last, StepReport)
    assert "From step 3 on" in last.alerts[0].message


def test_a_spool_near_its_limit_leaves_out_what_costs_most(tmp_path: Path) -> None:
    limits = SpoolLimits(max_spool_bytes=20_000, segment_bytes=500)
    writer = SpoolWriter(tmp_path, RUN, MessageQueue(max_messages=1000, max_bytes=10**9), limits)
    for step in range(200):
        writer._queue.put(lambda step=step: full_report(step))  # type: ignore[misc]
        writer.write_queued()
        writer.sync()
    stored = [message for message in on_disk(tmp_path) if isinstance(message, StepReport)]
    left_out = [report.labels.get(DROPPED_PARTS, "") for report in stored]
    assert left_out == sorted(left_out)
    assert set(left_out) == {"", LEFT_OUT}
    assert sum(path.stat().st_size for path in list_segments(tmp_path)) < 21_000


@pytest.mark.parametrize("faults", [1, 2])
def test_a_write_and_the_sync_of_what_was_before_it_that_fail_together_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: int
) -> None:
    writer = SpoolWriter(
        tmp_path, RUN, MessageQueue(max_messages=1000, max_bytes=10**9), SpoolLimits()
    )
    writes, syncs = Failing(monkeypatch, "write", errno.ENOSPC), failing_syncs(monkeypatch)
    assert put(writer, *(full_report(step) for step in range(100)))
    writes.left, syncs.left = faults, faults
    for _ in range(4):
        written = writer.write_queued()
        while written and not writer.idle:
            written = writer.write_queued()
        writer.sync()
    writer.close()
    assert seqs(tmp_path) == list(range(1, 102))
    reports = [message for message in on_disk(tmp_path) if isinstance(message, StepReport)]
    assert [report.step for report in reports] == list(range(100))
    assert (writer.spooled_through, writer.lost) == (101, 0)


def test_a_report_that_may_be_on_disk_already_is_written_again_as_it_was(
    tmp_path: Path, writer: SpoolWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write_queued()
    assert put(writer, full_report(1))
    writes, syncs = Failing(monkeypatch, "write", errno.ENOSPC), failing_syncs(monkeypatch)
    writes.left, syncs.left = 1, 1
    assert not put(writer, full_report(2))
    assert writer.spooled_through == 0
    writes.left = 1
    assert writer.write_queued()
    _, first, second = on_disk(tmp_path)
    assert first == full_report(1)
    assert isinstance(second, StepReport)
    assert second.labels[DROPPED_PARTS] == LEFT_OUT
    assert writer.left_out == 1
