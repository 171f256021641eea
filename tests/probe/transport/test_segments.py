"""The spool's file format: whatever happened to the file, every good frame is read and nothing
raises."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isentrope.transport import segments

PAYLOADS = [b"first", b"", b"third" * 100, segments.FRAME_MARK + b"looks like a frame", b"fifth"]


def written(folder: Path, payloads: list[bytes] = PAYLOADS) -> Path:
    """A segment with these payloads from seq 1 on."""
    writer = segments.SegmentWriter(folder, 1)
    writer.append(
        segments.encode_frame(seq, payload) for seq, payload in enumerate(payloads, start=1)
    )
    writer.sync()
    writer.close()
    return writer.path


def read(path: Path) -> list[tuple[int, bytes]]:
    return [(frame.seq, frame.payload) for frame in segments.read_segment(path).frames]


ALL = list(enumerate(PAYLOADS, start=1))


def test_what_was_appended_is_read_in_order(tmp_path: Path) -> None:
    content = segments.read_segment(written(tmp_path))
    assert [(frame.seq, frame.payload) for frame in content.frames] == ALL
    assert (content.damaged, content.tail_bytes) == (False, 0)


def test_reading_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = written(tmp_path)
    third = segments.read_segment(path).frames[2]
    assert [frame.seq for frame in segments.read_segment(path, third.end_offset).frames] == [4, 5]


def test_a_torn_tail_ends_the_reading_at_the_last_good_frame(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for size_bytes in range(len(whole)):
        path.write_bytes(whole[:size_bytes])
        frames = read(path)
        assert frames == ALL[: len(frames)]
        assert not segments.read_segment(path).damaged


def test_every_single_flipped_bit_costs_at_most_the_frame_it_hits(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        frames = read(path)
        assert set(frames) <= set(ALL)
        assert len(frames) >= len(ALL) - 1


def test_a_lost_header_costs_no_frame(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(b"\0" * segments.HEADER_BYTES + path.read_bytes()[segments.HEADER_BYTES :])
    assert read(path) == ALL
    assert segments.read_segment(path).damaged


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=300))
def test_opening_never_fails_because_of_content(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.seg"
    path.write_bytes(content)
    assert segments.read_segment(path).frames == ()
    path.write_bytes(content + segments.encode_frame(9, b"good"))
    assert read(path)[-1] == (9, b"good")


def test_a_failed_write_leaves_the_segment_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = segments.SegmentWriter(tmp_path, 1)
    writer.append([segments.encode_frame(1, b"before")])
    real_write = os.write

    def write_half_then_fail(descriptor: int, data: memoryview) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, data[: len(data) - 10])

    monkeypatch.setattr(os, "write", write_half_then_fail)
    with pytest.raises(OSError, match="No space"):
        writer.append([segments.encode_frame(2, b"does not fit")])
    monkeypatch.undo()
    assert segments.read_segment(writer.path).tail_bytes == 0
    writer.append([segments.encode_frame(2, b"fits now")])
    writer.close()
    assert read(writer.path) == [(1, b"before"), (2, b"fits now")]


def test_a_segment_is_never_written_twice(tmp_path: Path) -> None:
    segments.SegmentWriter(tmp_path, 1).close()
    with pytest.raises(FileExistsError):
        segments.SegmentWriter(tmp_path, 1)


def test_a_record_beyond_the_limit_is_refused_when_it_is_written() -> None:
    with pytest.raises(ValueError, match=str(segments.MAX_PAYLOAD_BYTES)):
        segments.encode_frame(1, b"x" * (segments.MAX_PAYLOAD_BYTES + 1))


def test_segments_are_listed_in_the_order_of_their_records(tmp_path: Path) -> None:
    for first_seq in (1000, 9, 1, 20):
        segments.SegmentWriter(tmp_path, first_seq).close()
    (tmp_path / "control.json").write_text("{}")
    (tmp_path / "note.seg").write_text("not ours")
    assert [path.name for path in segments.list_segments(tmp_path)] == [
        segments.segment_name(seq) for seq in (1, 9, 20, 1000)
    ]


def test_only_the_owner_can_read_a_segment(tmp_path: Path) -> None:
    assert written(tmp_path).stat().st_mode & 0o777 == 0o600
