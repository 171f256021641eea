"""Reads a spool in order, from one acknowledged record to the next, while it is still being
written."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import time
from collections import deque
from pathlib import Path

from isentrope.transport.segments import (
    SENT,
    Frame,
    SegmentContent,
    first_seq_of,
    keep_sent,
    list_segments,
    read_segment,
)
from isentrope.transport.spool_folder import SpoolEnd
from isentrope_wire.codec import decode_payload, payload_hash, record_of
from isentrope_wire.errors import CodecError
from isentrope_wire.reports import Gap, Record

logger = logging.getLogger(__name__)

DAMAGED = "the spool on disk was damaged"
TORN = "the training process ended while this was written"
KILLED = "the training process was killed before this was written"
NEVER_WRITTEN = "the end of the spool was never written, or is lost"
REMOVED = "files of the spool were removed before they were delivered"
LOST_BY_THE_SERVER = "the server had acknowledged these records and has them no longer"


READ_ATTEMPTS = 3
READ_PAUSE_SECONDS = 0.1
_LOST_ON_DISK = frozenset({errno.EIO, errno.EISDIR, errno.EBADMSG, errno.EUCLEAN})


class SpoolReader:
    """The records of one spool folder as an endless sequence without gaps in its numbers.

    What is missing between two records comes as a record that carries a `Gap`, under the last
    missing number."""

    def __init__(self, folder: Path, acked_through: int = 0, *, keep_seconds: float = 0.0) -> None:
        """`acked_through` is what the server had acknowledged to an earlier reader; `keep_seconds`,
        how long acknowledged segments are kept."""
        self._keep_seconds = keep_seconds
        self._folder = folder
        self.acked_through = acked_through
        """Every record up to this one is stored by the server."""
        self._server_lost_through = 0
        self.lost_by_the_server = 0
        """Records that the server had acknowledged and did not have when it was asked again."""
        self.misses_files = False
        """Whether files with records that were not acknowledged are gone."""
        self._next_seq = 1
        self._segment: Path | None = None
        self._offset = 0
        self._damaged_segments: set[Path] = set()
        self._waiting: deque[Record] = deque()

    def resume_after(self, acked_through: int) -> None:
        """Start again after the last record that the server has."""
        if acked_through < self.acked_through:
            logger.error(
                "The server has records up to %d, but had acknowledged %d: it lost data. What is"
                " still in the spool is sent again; the rest will be shown as a gap.",
                acked_through,
                self.acked_through,
            )
            self.lost_by_the_server += self.acked_through - acked_through
            self._take_back_sent(acked_through)
            self._server_lost_through = max(self._server_lost_through, self.acked_through)
        self.acked_through = acked_through
        self._next_seq = acked_through + 1
        self._waiting.clear()
        self._segment, self._offset = None, 0

    def _take_back_sent(self, acked_through: int) -> None:
        """Move kept segments with records beyond this one back among those to deliver."""
        sent = list_segments(self._folder / SENT)
        begun = [segment for segment in sent if first_seq_of(segment) <= acked_through + 1]
        for segment in sent[max(len(begun) - 1, 0) :]:
            with contextlib.suppress(FileNotFoundError):
                os.replace(segment, self._folder / segment.name)

    def next_batch(self, max_records: int, max_bytes: int) -> list[Record]:
        """The next records to send, at least one, of any size; empty when nothing new has been
        written. OSError: a segment can't be read."""
        batch: list[Record] = []
        size_bytes = 0
        while len(batch) < max_records:
            if not self._waiting and not self._read_more():
                break
            if batch and size_bytes + len(self._waiting[0].payload) > max_bytes:
                break
            record = self._waiting.popleft()
            size_bytes += len(record.payload)
            batch.append(record)
        return batch

    def missing_at_the_end(self, end: SpoolEnd | None) -> list[Record]:
        """What the spool's end lacks: at most one gap, and the last record. Only when the writer is
        gone and all else is sent."""
        newest, content = self._newest()
        if newest is not None and content is not None and content.tail_bytes:
            self._damaged_segments.add(newest)
        if end is not None:
            is_unreadable = newest is not None and content is None
            return self._missing_until(
                end, DAMAGED if is_unreadable else end.reason or NEVER_WRITTEN
            )
        if newest is None:
            return []
        if content is None:
            # How many records it held is not known; it was made for the one in its name.
            return self._missing_before(first_seq_of(newest) + 1, DAMAGED)
        # What is torn is one record: those behind it were never written.
        if content.frames:
            last_whole = content.frames[-1].seq
        else:
            last_whole = first_seq_of(newest) - 1
        if content.tail_bytes:
            return self._missing_before(last_whole + 2, TORN)
        return []

    @property
    def ends_torn(self) -> bool:
        """Whether the newest segment ends in a part of a record, or can't be read."""
        newest, content = self._newest()
        return newest is not None and (content is None or content.tail_bytes > 0)

    def _newest(self) -> tuple[Path | None, SegmentContent | None]:
        segments = list_segments(self._folder)
        if segments:
            return (segments[-1], self._content_of(segments[-1]))
        return (None, None)

    def _missing_until(self, end: SpoolEnd, reason: str) -> list[Record]:
        if not end.last_payload or self._next_seq > end.last_seq:
            return self._missing_before(end.last_seq + 1, reason)
        missing = self._missing_before(end.last_seq, reason)
        self._next_seq = end.last_seq + 1
        last = Record(
            seq=end.last_seq, payload=end.last_payload, payload_hash=payload_hash(end.last_payload)
        )
        return [*missing, last]

    def acknowledge(self, acked_through: int) -> None:
        """Remember what the server has, and delete, or keep as sent, the segments that hold nothing
        else.

        It may be more than was sent since `resume_after`: a batch whose answer did not come in time
        can arrive later."""
        self.acked_through = max(acked_through, self.acked_through)
        self._next_seq = max(self._next_seq, self.acked_through + 1)
        while self._waiting and self._waiting[0].seq <= self.acked_through:
            self._waiting.popleft()
        segments = list_segments(self._folder)
        # The last segment is still being written: only a newer one, or the writer's end, closes it.
        for segment, newer in itertools.pairwise(segments):
            if first_seq_of(newer) - 1 <= self.acked_through:
                self._discard(segment)
                if segment == self._segment:
                    # The newer one came into being since this one was read to its end.
                    self._segment, self._offset = None, 0

    def discard_last_segment(self) -> None:
        """Delete what `acknowledge` leaves. Only when the writer is gone and everything is
        acknowledged."""
        for segment in list_segments(self._folder):
            self._discard(segment)

    def _discard(self, segment: Path) -> None:
        if segment in self._damaged_segments:
            # Kept to be examined; readers no longer see it.
            with contextlib.suppress(FileNotFoundError):
                os.replace(segment, segment.with_suffix(".damaged"))
            return
        if self._keep_seconds:
            # What can't be kept, for instance on a full disk, is deleted.
            with contextlib.suppress(OSError):
                keep_sent(segment, self._keep_seconds)
        segment.unlink(missing_ok=True)

    def _read_more(self) -> bool:
        """Move on until records wait or the spool's end is reached."""
        while not self._waiting:
            segment = self._segment or self._segment_to_start_with()
            if segment is None:
                return False
            self._segment = segment
            # Looked up before reading: once a newer segment exists, nothing is appended to this
            # one.
            newer = next(
                (path for path in list_segments(self._folder) if path.name > segment.name), None
            )
            try:
                self._read(segment)
            except FileNotFoundError:
                # It was removed since it was listed.
                self._segment, self._offset = None, 0
                continue
            if newer is not None:
                missing = self._missing_before(first_seq_of(newer))
                if missing:
                    self._damaged_segments.add(segment)
                self._waiting.extend(missing)
                self._segment, self._offset = newer, 0
            elif not self._waiting:
                return False
        return True

    def _segment_to_start_with(self) -> Path | None:
        segments = list_segments(self._folder)
        holding = [segment for segment in segments if first_seq_of(segment) <= self._next_seq]
        if holding:
            return holding[-1]
        if segments:
            return segments[0]
        return None

    def _read(self, segment: Path) -> None:
        content = self._content_of(segment, self._offset)
        if content is None:
            return
        if content.damaged:
            logger.error("%s is damaged; what could be read of it is delivered.", segment)
            self._damaged_segments.add(segment)
        for frame in content.frames:
            self._offset = frame.end_offset
            self._take(frame)

    def _content_of(self, segment: Path, offset: int = 0) -> SegmentContent | None:
        """Read a segment. None: the disk can't; it is kept aside, and its records will be a gap.
        OSError: it is gone, or can't be read now for a reason that is not its own."""
        known = segment in self._damaged_segments
        for attempt in range(1 if known else READ_ATTEMPTS):
            if attempt:
                time.sleep(READ_PAUSE_SECONDS)
            try:
                return read_segment(segment, offset)
            except OSError as error:
                if error.errno not in _LOST_ON_DISK:
                    raise
                failure = error
        if not known:
            logger.error("%s can't be read (%s); its records are not delivered.", segment, failure)
            self._damaged_segments.add(segment)
        return None

    def _take(self, frame: Frame) -> None:
        if frame.seq < self._next_seq:
            return
        if frame.seq > self._next_seq:
            gap = _gap_in(frame)
            if gap is not None:
                first_covered = gap.first_seq
            else:
                first_covered = frame.seq
            self._waiting.extend(self._missing_before(first_covered))
        self._waiting.append(
            Record(seq=frame.seq, payload=frame.payload, payload_hash=payload_hash(frame.payload))
        )
        self._next_seq = frame.seq + 1

    def _missing_before(self, seq: int, reason: str | None = None) -> list[Record]:
        """The gap between the last record read and `seq`, as one record; empty where nothing is
        missing."""
        first, last = self._next_seq, seq - 1
        if first > last:
            return []
        self._next_seq = seq
        if reason is None:
            reason = self._reason_for(first, last)
        logger.error("Records %d to %d are missing: %s.", first, last, reason)
        return [record_of(last, Gap(first_seq=first, last_seq=last, reason=reason))]

    def _reason_for(self, first: int, last: int) -> str:
        if self._segment is None or first_seq_of(self._segment) <= first:
            return DAMAGED
        if last <= self._server_lost_through:
            return LOST_BY_THE_SERVER
        self.misses_files = True
        return REMOVED


def _gap_in(frame: Frame) -> Gap | None:
    try:
        message = decode_payload(frame.payload)
    except CodecError:
        return None
    if isinstance(message, Gap):
        return message
    return None
