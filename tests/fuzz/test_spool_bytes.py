"""Whatever happens to a spool's bytes, its reader doesn't raise, invents nothing and leaves no number out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isentrope.transport.segments import SegmentWriter, encode_frame, segment_name
from isentrope.transport.spool_reader import SpoolReader
from isentrope_wire.codec import decode_payload, encode_payload, payload_hash
from isentrope_wire.reports import Gap, Record, StepReport
from tests.fuzz.budget import long, short

_RECORDS = 12
_PAYLOADS = {
    seq: encode_payload(StepReport(step=seq, recorded_at=1.0, scalars={"x": float(seq)}))
    for seq in range(1, _RECORDS + 1)
}


def _segment(first: int) -> bytes:
    """Four records as the spool's writer leaves them on disk."""
    with tempfile.TemporaryDirectory() as name:
        writer = SegmentWriter(Path(name), first)
        writer.append(encode_frame(seq, _PAYLOADS[seq]) for seq in range(first, first + 4))
        writer.close()
        return writer.path.read_bytes()


_SEGMENTS = {first: _segment(first) for first in (1, 5, 9)}

_Change = tuple[str, float, float, bytes]
_changes = st.lists(
    st.tuples(
        st.sampled_from(["overwrite", "insert", "cut", "truncate", "repeat", "swap", "move"]),
        st.floats(0, 1, exclude_max=True),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=24),
    ),
    max_size=5,
)


def changed(content: bytes, change: _Change) -> bytes:
    """The segment after one mishap."""
    kind, place, length, noise = change
    start = int(place * len(content))
    end = min(len(content), start + 1 + int(length * 80))
    piece = content[start:end]
    match kind:
        case "overwrite":
            return content[:start] + noise + content[start + len(noise) :]
        case "insert":
            return content[:start] + noise + content[start:]
        case "cut":
            return content[:start] + content[end:]
        case "truncate":
            return content[:start]
        case "repeat":
            return content[:end] + piece + content[end:]
        case "swap":
            return content[:start] + piece[::-1] + content[end:]
        case _:
            return content[:start] + content[end:] + piece


def read(segments: dict[int, bytes]) -> list[Record]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for first, content in segments.items():
            (folder / segment_name(first)).write_bytes(content)
        reader = SpoolReader(folder)
        records = []
        while batch := reader.next_batch(5, 1_000):
            records.extend(batch)
        records.extend(reader.missing_at_the_end(_RECORDS))
        reader.acknowledge(records[-1].seq if records else 0)
        return records


def check_true_and_complete(records: list[Record]) -> None:
    following = 1
    for record in records:
        assert record.payload_hash == payload_hash(record.payload)
        message = decode_payload(record.payload)
        if isinstance(message, Gap):
            assert (message.first_seq, message.last_seq) == (following, record.seq)
        else:
            assert record.seq == following
            assert record.payload == _PAYLOADS[record.seq], "it was never written"
        following = record.seq + 1
    assert following == _RECORDS + 1


def check_changed(changes: list[_Change], segment: int) -> None:
    segments = dict(_SEGMENTS)
    for change in changes:
        segments[segment] = changed(segments[segment], change)
    check_true_and_complete(read(segments))


def check_noise(noise: bytes) -> None:
    """Chance bytes in the place of the middle segment: its records are missing, nothing else."""
    check_true_and_complete(read(_SEGMENTS | {5: noise}))


@given(changes=_changes, segment=st.sampled_from([1, 5, 9]))
@short(100)
def test_a_spool_that_was_damaged_gives_what_was_written_or_says_what_is_missing(
    changes: list[_Change], segment: int
) -> None:
    check_changed(changes, segment)


@given(noise=st.binary(max_size=600))
@short(40)
def test_noise_in_a_segment_s_place_costs_that_segment_alone(noise: bytes) -> None:
    check_noise(noise)


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(changes=_changes, segment=st.sampled_from([1, 5, 9]))
@long(4_000)
def test_many_spools_that_were_damaged_give_what_was_written_or_say_what_is_missing(
    changes: list[_Change], segment: int
) -> None:
    check_changed(changes, segment)


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(noise=st.binary(max_size=5_000))
@long(2_000)
def test_much_noise_in_a_segment_s_place_costs_that_segment_alone(noise: bytes) -> None:
    check_noise(noise)
