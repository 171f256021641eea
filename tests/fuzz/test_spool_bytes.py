"""Whatever happens to a spool's bytes, its reader neither raises nor invents a record, and reports every gap."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from isentrope.transport.segments import SegmentWriter, encode_frame, segment_name
from isentrope.transport.spool_reader import SpoolReader
from isentrope_wire.codec import decode_payload, encode_payload, payload_hash
from isentrope_wire.reports import Gap, Record, StepReport
from tests.fuzz.examples import few_and_many

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
    """The segment after one kind of damage."""
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


@few_and_many(100, 4_000)
def test_damaged_spool_gives_records_or_gaps(examples: settings) -> None:
    @examples
    @given(changes=_changes, segment=st.sampled_from([1, 5, 9]))
    def check(changes: list[_Change], segment: int) -> None:
        content = functools.reduce(changed, changes, _SEGMENTS[segment])
        check_true_and_complete(read(_SEGMENTS | {segment: content}))

    check()


@few_and_many(40, 2_000)
def test_noise_costs_only_its_segment(examples: settings) -> None:
    @examples
    @given(noise=st.binary(max_size=2_000))
    def check(noise: bytes) -> None:
        check_true_and_complete(read(_SEGMENTS | {5: noise}))

    check()
