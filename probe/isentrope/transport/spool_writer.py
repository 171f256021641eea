"""Turns queued messages into records on disk. Runs on the writer thread alone."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from isentrope.transport.message_queue import MessageQueue, Refused
from isentrope.transport.segments import HEADER_BYTES, MAX_PAYLOAD_BYTES, SegmentWriter, encode_frame, list_segments
from isentrope.transport.transport import MakeMessage
from isentrope_wire.codec import encode_payload
from isentrope_wire.messages import Gap, RunStarted

logger = logging.getLogger(__name__)

GROUP_RECORDS = 64
QUEUE_FULL = "the queue of reports was full"
NOT_BUILT = "the report could not be built"
TOO_LARGE = "the report was larger than a record may be"
OUT_OF_TIME = "the training process ended before the report was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """How much a spool may hold, in memory and on disk."""

    max_queued_messages: int = 1024
    """At a step a second, a quarter of an hour of a disk that does not answer."""
    max_queued_bytes: int = 64 * 1024 * 1024
    max_spool_bytes: int = 2 * 1024 * 1024 * 1024
    """A server gone for weeks must not fill the disk that checkpoints go to."""
    segment_bytes: int = 1024 * 1024
    """A segment is the unit of deletion; small ones give the disk back early."""
    segment_seconds: float = 60.0


class SpoolWriter:
    """Numbers records, frames them and appends them to segments.

    A disk that can't be written to loses nothing by itself: the group stays in hand and is tried again, until the
    queue behind it is full and refuses. Whatever is lost is written as a gap with its reason, at its place.
    """

    def __init__(self, folder: Path, run: RunStarted, queue: MessageQueue, limits: SpoolLimits) -> None:
        self._folder = folder
        self._queue = queue
        self._limits = limits
        self._segment: SegmentWriter | None = None
        self._segment_opened_at = 0.0
        self._unsynced = False
        self._numbered_through = 0
        self._group: list[_NumberedFrame] = []
        self._trouble: str | None = None
        self._failures_logged = False
        self.spooled_through = 0
        """The highest number on disk, gaps included."""
        self.lost = 0
        """Messages that were accepted and are lost nevertheless."""
        self._add_record(encode_payload(run))

    @property
    def idle(self) -> bool:
        """Nothing waits to be written."""
        return not self._group and not len(self._queue)

    def write_queued(self) -> bool:
        """Write one group. False: the disk refuses; the group is kept for the next call."""
        if not self._group:
            for entry in self._queue.take(GROUP_RECORDS):
                self._add(entry)
        if not self._group:
            return True
        try:
            self._append_group()
        except OSError as error:
            self._say_disk_trouble(error)
            return False
        self._trouble = None
        return True

    def sync(self) -> None:
        """Make what was written since the last call survive a power cut; close the segment when it is due.

        Raises:
            OSError: the disk failed.
        """
        if self._segment is None:
            return
        if self._unsynced:
            self._segment.sync()
            self._unsynced = False
        if self._segment.size_bytes == HEADER_BYTES:
            # The disk took no frame yet. The next segment would begin with the same number, and so have this one's name.
            return
        age_seconds = time.monotonic() - self._segment_opened_at
        if self._segment.size_bytes >= self._limits.segment_bytes or age_seconds >= self._limits.segment_seconds:
            self._close_segment()

    def close(self) -> None:
        """Say what was not written in time, and close the segment."""
        if self._group or len(self._queue):
            self._give_up_the_rest()
        if self._segment is not None:
            self._segment.sync()
            self._close_segment()

    def _add(self, entry: MakeMessage | Refused) -> None:
        if isinstance(entry, Refused):
            reason = QUEUE_FULL if self._trouble is None else f"{QUEUE_FULL}: {self._trouble}"
            self._add_gap(entry.count, reason)
            return
        try:
            payload = encode_payload(entry())
        except Exception:  # noqa: BLE001  # the sender thread's guard: a report that fails must not end the sending
            self._lose_one(NOT_BUILT)
            return
        self._queue.largest_bytes = max(self._queue.largest_bytes, len(payload))
        if len(payload) > MAX_PAYLOAD_BYTES:
            self._lose_one(TOO_LARGE)
        else:
            self._add_record(payload)

    def _add_record(self, payload: bytes) -> None:
        self._numbered_through += 1
        seq = self._numbered_through
        self._group.append(_NumberedFrame(seq, seq, encode_frame(seq, payload), is_gap=False))

    def _add_gap(self, count: int, reason: str) -> None:
        first, last = self._numbered_through + 1, self._numbered_through + count
        self._numbered_through = last
        payload = encode_payload(Gap(first_seq=first, last_seq=last, reason=reason))
        self._group.append(_NumberedFrame(first, last, encode_frame(last, payload), is_gap=True))

    def _lose_one(self, reason: str) -> None:
        self.lost += 1
        self._add_gap(1, reason)
        if not self._failures_logged:
            self._failures_logged = True
            logger.warning(
                "A report was lost: %s. Further ones are only counted.", reason, exc_info=reason == NOT_BUILT
            )

    def _append_group(self) -> None:
        segment = self._segment or self._open_segment(self._group[0].first_seq)
        segment.append(frame.content for frame in self._group)
        self._unsynced = True
        self.spooled_through = self._group[-1].last_seq
        self._group = []

    def _open_segment(self, first_seq: int) -> SegmentWriter:
        used_bytes = sum(path.stat().st_size for path in list_segments(self._folder))
        if used_bytes >= self._limits.max_spool_bytes:
            raise OSError(f"the spool holds {used_bytes} bytes, its limit is {self._limits.max_spool_bytes}")
        self._segment = SegmentWriter(self._folder, first_seq)
        self._segment_opened_at = time.monotonic()
        return self._segment

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _say_disk_trouble(self, error: OSError) -> None:
        if self._trouble is None:
            logger.warning(
                "The spool at %s can't be written (%s); reports wait in memory, at most %d of them.",
                self._folder,
                error,
                self._limits.max_queued_messages,
            )
        self._trouble = error.strerror or str(error)

    def _give_up_the_rest(self) -> None:
        """Replace all that is still in hand by one gap."""
        missing = self._numbered_through - self.spooled_through
        self.lost += sum(not frame.is_gap for frame in self._group)
        while entries := self._queue.take(GROUP_RECORDS):
            missing += sum(entry.count if isinstance(entry, Refused) else 1 for entry in entries)
            self.lost += sum(not isinstance(entry, Refused) for entry in entries)
        self._numbered_through = self.spooled_through
        self._group = []
        self._add_gap(missing, OUT_OF_TIME)
        try:
            self._append_group()
        except OSError as error:
            self._say_disk_trouble(error)


@dataclass(frozen=True, slots=True)
class _NumberedFrame:
    """A frame and the numbers it accounts for: one for a report, several for a gap."""

    first_seq: int
    last_seq: int
    content: bytes
    is_gap: bool
