"""Reading a spool: in order, without holes, deleting only what is acknowledged."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from isentrope.transport import segments
from isentrope.transport.segments import (
    SENT,
    SegmentContent,
    SegmentWriter,
    encode_frame,
    list_segments,
    read_segment,
)
from isentrope.transport.spool_folder import SpoolEnd
from isentrope.transport.spool_reader import (
    DAMAGED,
    LOST_BY_THE_SERVER,
    NEVER_WRITTEN,
    REMOVED,
    TORN,
    SpoolReader,
)
from isentrope_wire.codec import decode_payload, encode_payload, payload_hash
from isentrope_wire.reports import Gap, Record, StepReport


def payload(seq: int) -> bytes:
    return encode_payload(StepReport(step=seq, recorded_at=1.0))


def write(folder: Path, first_seq: int, last_seq: int) -> Path:
    """One closed segment."""
    writer = SegmentWriter(folder, first_seq)
    writer.append(encode_frame(seq, payload(seq)) for seq in range(first_seq, last_seq + 1))
    writer.close()
    return writer.path


def names(folder: Path) -> list[int]:
    return [int(path.stem) for path in list_segments(folder)]


def everything(reader: SpoolReader) -> list[Record]:
    return reader.next_batch(10_000, 10**9)


def as_text(records: list[Record]) -> list[str]:
    """`5` for the step report 5, `6..8` for a gap."""
    texts = []
    for record in records:
        assert record.payload_hash == payload_hash(record.payload)
        message = decode_payload(record.payload)
        if isinstance(message, Gap):
            assert record.seq == message.last_seq
            texts.append(f"{message.first_seq}..{message.last_seq}")
        else:
            texts.append(str(record.seq))
    return texts


def damage(segment: Path, seq: int) -> None:
    """Spoil the record `seq` on disk."""
    content = bytearray(segment.read_bytes())
    frame = next(frame for frame in read_segment(segment).frames if frame.seq == seq)
    content[frame.end_offset - 1] ^= 0xFF
    segment.write_bytes(content)


def test_what_is_written_later_is_read_later(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 1)
    reader = SpoolReader(tmp_path)
    assert everything(reader) == []
    writer.append([encode_frame(1, payload(1))])
    assert as_text(everything(reader)) == ["1"]
    assert everything(reader) == []
    writer.append([encode_frame(2, payload(2))])
    write(tmp_path, 3, 3)
    assert as_text(everything(reader)) == ["2", "3"]
    writer.close()


def test_a_frame_half_written_is_waited_for(tmp_path: Path) -> None:
    segment = write(tmp_path, 1, 2)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-5])
    reader = SpoolReader(tmp_path)
    assert as_text(everything(reader)) == ["1"]
    segment.write_bytes(whole)
    assert as_text(everything(reader)) == ["2"]


def test_batches_end_at_their_limits_but_hold_one_record_at_least(tmp_path: Path) -> None:
    write(tmp_path, 1, 7)
    reader = SpoolReader(tmp_path)
    size_bytes = len(payload(1))
    assert as_text(reader.next_batch(3, 10**9)) == ["1", "2", "3"]
    assert as_text(reader.next_batch(50, 2 * size_bytes)) == ["4", "5"]
    assert as_text(reader.next_batch(50, 1)) == ["6"]


def test_reading_resumes_behind_what_the_server_has(tmp_path: Path) -> None:
    write(tmp_path, 1, 3)
    write(tmp_path, 4, 9)
    reader = SpoolReader(tmp_path)
    reader.resume_after(5)
    assert as_text(everything(reader)) == ["6", "7", "8", "9"]
    reader.resume_after(2)
    assert as_text(everything(reader)) == ["3", "4", "5", "6", "7", "8", "9"]


def test_a_segment_is_deleted_when_every_record_in_it_is_acknowledged(tmp_path: Path) -> None:
    for first, last in ((1, 3), (4, 6), (7, 9)):
        write(tmp_path, first, last)
    reader = SpoolReader(tmp_path)
    everything(reader)
    remaining = []
    for acked in (2, 3, 5, 6, 9):
        reader.acknowledge(acked)
        remaining.append(names(tmp_path))
    assert remaining == [[1, 4, 7], [4, 7], [4, 7], [7], [7]]
    reader.discard_last_segment()
    assert names(tmp_path) == []


def test_reading_goes_on_when_the_segment_it_is_at_ends_and_is_acknowledged_before_the_next_is_seen(
    tmp_path: Path,
) -> None:
    reader = SpoolReader(tmp_path)
    write(tmp_path, 1, 3)
    assert as_text(everything(reader)) == ["1", "2", "3"]
    write(tmp_path, 4, 5)
    reader.acknowledge(3)
    assert names(tmp_path) == [4]
    assert as_text(everything(reader)) == ["4", "5"]


def test_a_damaged_middle_becomes_a_gap_and_the_segment_is_kept_aside(tmp_path: Path) -> None:
    segment = write(tmp_path, 1, 6)
    write(tmp_path, 7, 8)
    damage(segment, 3)
    damage(segment, 4)
    reader = SpoolReader(tmp_path)
    records = everything(reader)
    assert as_text(records) == ["1", "2", "3..4", "5", "6", "7", "8"]
    gap = decode_payload(records[2].payload)
    assert isinstance(gap, Gap)
    assert gap.reason == DAMAGED
    reader.acknowledge(8)
    assert names(tmp_path) == [7]
    assert segment.with_suffix(".damaged").exists()


def test_a_tail_torn_before_the_next_segment_becomes_a_gap(tmp_path: Path) -> None:
    segment = write(tmp_path, 1, 4)
    write(tmp_path, 5, 6)
    damage(segment, 4)
    assert as_text(everything(SpoolReader(tmp_path))) == ["1", "2", "3", "4..4", "5", "6"]


def test_the_writers_own_gaps_are_no_second_gap(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 1)
    own_gap = encode_payload(Gap(first_seq=2, last_seq=5, reason="the queue of reports was full"))
    writer.append(
        [encode_frame(1, payload(1)), encode_frame(5, own_gap), encode_frame(6, payload(6))]
    )
    writer.close()
    records = everything(SpoolReader(tmp_path))
    assert as_text(records) == ["1", "2..5", "6"]
    assert records[1].payload == own_gap


def test_a_server_that_lost_data_is_named_loudly_and_gets_what_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1, 5)
    write(tmp_path, 6, 8)
    reader = SpoolReader(tmp_path)
    everything(reader)
    reader.acknowledge(8)
    with caplog.at_level(logging.ERROR):
        reader.resume_after(2)
    assert "lost data" in caplog.text
    records = everything(reader)
    assert as_text(records) == ["3..5", "6", "7", "8"]
    gap = decode_payload(records[0].payload)
    assert isinstance(gap, Gap)
    assert gap.reason == LOST_BY_THE_SERVER


def test_a_server_that_has_more_than_was_sent_since_it_was_asked_gets_the_rest_and_no_gap(
    tmp_path: Path,
) -> None:
    for first, last in ((1, 5), (6, 10), (11, 13)):
        write(tmp_path, first, last)
    reader = SpoolReader(tmp_path)
    assert as_text(reader.next_batch(3, 10**9)) == ["1", "2", "3"]
    reader.acknowledge(12)
    assert names(tmp_path) == [11]
    assert as_text(everything(reader)) == ["13"]


def test_a_segment_that_vanishes_between_listing_and_reading_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing = write(tmp_path, 1, 5)
    write(tmp_path, 6, 8)

    def vanish_first(path: Path, offset: int = 0) -> SegmentContent:
        vanishing.unlink(missing_ok=True)
        return read_segment(path, offset)

    monkeypatch.setattr("isentrope.transport.spool_reader.read_segment", vanish_first)
    assert as_text(everything(SpoolReader(tmp_path))) == ["1..5", "6", "7", "8"]


def test_an_earlier_readers_acknowledgement_tells_a_server_that_lost_data_from_removed_files(
    tmp_path: Path,
) -> None:
    write(tmp_path, 6, 8)
    for acknowledged, reason in ((5, LOST_BY_THE_SERVER), (0, REMOVED)):
        reader = SpoolReader(tmp_path, acknowledged)
        reader.resume_after(0)
        gap, *_ = everything(reader)
        assert decode_payload(gap.payload) == Gap(first_seq=1, last_seq=5, reason=reason)


def test_the_same_damage_gives_the_same_record_again(tmp_path: Path) -> None:
    damage(write(tmp_path, 1, 5), 3)
    first, second = everything(SpoolReader(tmp_path)), everything(SpoolReader(tmp_path))
    assert first == second


def test_what_the_end_lacks_is_one_gap(tmp_path: Path) -> None:
    segment = write(tmp_path, 1, 4)
    reader = SpoolReader(tmp_path)
    everything(reader)
    (gap,) = reader.missing_at_the_end(SpoolEnd(7))
    assert decode_payload(gap.payload) == Gap(first_seq=5, last_seq=7, reason=NEVER_WRITTEN)
    for lost_bytes in (1, 25):
        segment.write_bytes(segment.read_bytes()[:-lost_bytes])
        reader = SpoolReader(tmp_path)
        everything(reader)
        (gap,) = reader.missing_at_the_end(None)
        assert decode_payload(gap.payload) == Gap(first_seq=4, last_seq=4, reason=TORN)
        assert reader.missing_at_the_end(None) == [], "one gap, and no further one behind it"


def test_sent_segments_are_kept_within_a_size_and_sent_again_where_the_server_lost_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(1, 50, 10):
        size = write(tmp_path, first, first + 9).stat().st_size
    monkeypatch.setattr(segments, "SENT_BYTES", 3 * size + 100)
    reader = SpoolReader(tmp_path, keep_seconds=60.0)
    everything(reader)
    reader.acknowledge(50)
    assert (names(tmp_path), names(tmp_path / SENT)) == ([41], [11, 21, 31])
    reader.resume_after(34)
    assert as_text(everything(reader)) == [str(seq) for seq in range(35, 51)]
    reader.acknowledge(50)
    reader.resume_after(5)
    assert as_text(everything(reader))[:2] == ["6..10", "11"]
