"""The disk under a spool: appends frames to segments, survives its failures, and keeps some room in
reserve.

A write that fails ends the segment: the next attempt begins another, so that the one before can be
delivered and deleted. Frames that a failed sync may have lost are handed back to be written again:
the system drops what it could not write and reports the failure once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from isentrope.guard import SafeLog
from isentrope.transport.segments import SENT, SegmentWriter, drop_sent, first_seq_of, list_segments
from isentrope_wire.reports import StepReport

logger = SafeLog(__name__)

RESERVE_NAME = "reserve"
RESERVE_BYTES = 1024 * 1024
"""Room for some hundred reports of scalars alone and all gaps, on a disk that something else
filled."""
RESERVE_PAUSE_SECONDS = 2.0
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedFrame:
    """A frame and the numbers it accounts for: one for a report, several for a gap."""

    first_seq: int
    last_seq: int
    content: bytes
    is_gap: bool = False
    is_lightened: bool = False
    report: StepReport | None = None
    """The report of the frame, while it may have to be written again with fewer parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """How much a spool may hold, in memory and on disk."""

    max_queued_messages: int = 1024
    """At a step a second, a quarter of an hour during which the disk does not respond."""
    max_queued_bytes: int = 64 * 1024 * 1024
    max_spool_bytes: int = 2 * 1024 * 1024 * 1024
    """A server that is away for weeks must not fill the disk that checkpoints go to."""
    segment_bytes: int = 1024 * 1024
    """A segment is the unit of deletion; small ones free the disk early."""
    segment_seconds: float = 60.0


class SpoolDisk:
    """The segments and the reserve of one spool folder. Used by the writer thread alone."""

    def __init__(self, folder: Path, limits: SpoolLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._segment: SegmentWriter | None = None
        self._segment_opened_at = 0.0
        self._unsynced: list[NumberedFrame] = []
        self._doubtful: list[NumberedFrame] = []
        self._reserve = folder / RESERVE_NAME
        self._next_reserve_at = 0.0
        self.used_share = 0.0
        self.has_reserve = False
        self.restore_reserve()

    def append(self, frames: Sequence[NumberedFrame]) -> None:
        """Write frames, all of them or none. OSError: the disk refuses, `is_full`: for lack of
        room; those that `take_doubtful` then gives have to be written before these."""
        segment = self._segment or self._open_segment(frames[0].first_seq)
        try:
            segment.append(frame.content for frame in frames)
        except OSError:
            self._abandon_segment()
            raise
        self._unsynced.extend(frames)

    def sync(self) -> list[NumberedFrame]:
        """Make what was written survive a power cut, and end a segment that is full or old: the
        frames to be written once more."""
        if self._segment is not None and self._unsynced:
            try:
                self._segment.sync()
                self._unsynced = []
            except OSError as error:
                logger.warning(
                    "Syncing %s failed (%s); its end is written again.", self._segment.path, error
                )
                self._doubt()
        if self._segment is not None and self._segment.holds_frames and self._segment_is_due():
            self._close_segment()
        return self.take_doubtful()

    def leave_vanished_segment(self) -> list[NumberedFrame]:
        """End a segment whose file was removed: its frames that no sync had reached, to be written
        once more. OSError: the folder can't be looked into."""
        segment = self._segment
        if segment is None or segment.is_in_place:
            return []
        logger.warning(
            "%s was removed or moved; what it held and was not delivered is shown as a gap.",
            segment.path,
        )
        self._doubtful.extend(self._unsynced)
        self._unsynced = []
        with contextlib.suppress(OSError):
            self._close_segment()
        self.has_reserve = self._reserve.exists()
        return self.take_doubtful()

    def take_doubtful(self) -> list[NumberedFrame]:
        """Hand back frames that may be on disk or not, to be written before any other. A reader may
        have seen them, so they stay as they are and lose no part."""
        doubtful, self._doubtful = self._doubtful, []
        return [replace(frame, report=None, is_lightened=False) for frame in doubtful]

    def close(self) -> None:
        """Sync and close the segment, and remove the reserve. OSError: what was written last may
        not survive a power cut."""
        if self._segment is not None:
            try:
                self._segment.sync()
            finally:
                self._close_segment()
        self._reserve.unlink(missing_ok=True)

    def drop_sent(self) -> bool:
        """Delete what was kept of delivered reports, where others filled the disk; False when that
        is nothing."""
        # At the spool's own limit it would not help: sent segments do not count.
        with contextlib.suppress(OSError):
            return self.used_share < 1 and drop_sent(self._folder / SENT, 0.0, 0) > 0
        return False

    def give_up_reserve(self) -> bool:
        """Free the reserve; False when there is none."""
        if not self.has_reserve:
            return False
        self._reserve.unlink(missing_ok=True)
        self.has_reserve = False
        self._next_reserve_at = time.monotonic() + RESERVE_PAUSE_SECONDS
        return True

    def restore_reserve(self) -> bool:
        """Allocate the reserve again if the disk has room for twice as much; tried every two
        seconds at most."""
        now = time.monotonic()
        if self.has_reserve or now < self._next_reserve_at:
            return self.has_reserve
        self._next_reserve_at = now + RESERVE_PAUSE_SECONDS
        self.has_reserve = self._allocate_reserve()
        return self.has_reserve

    def _allocate_reserve(self) -> bool:
        try:
            free = os.statvfs(self._folder)
            if free.f_bavail * free.f_frsize < 2 * RESERVE_BYTES:
                return False
            descriptor = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                self._reserve.unlink(missing_ok=True)
            return False
        return True

    def _segment_is_due(self) -> bool:
        assert self._segment is not None
        age_seconds = time.monotonic() - self._segment_opened_at
        return (
            self._segment.size_bytes >= self._limits.segment_bytes
            or age_seconds >= self._limits.segment_seconds
        )

    def _open_segment(self, first_seq: int) -> SegmentWriter:
        used_bytes = sum(_size_of(path) for path in list_segments(self._folder))
        self.used_share = used_bytes / self._limits.max_spool_bytes
        if used_bytes >= self._limits.max_spool_bytes:
            reason = (
                f"the spool holds {used_bytes} bytes, its limit is {self._limits.max_spool_bytes}"
            )
            raise OSError(errno.ENOSPC, reason)
        self._segment = SegmentWriter(self._folder, first_seq)
        self._segment_opened_at = time.monotonic()
        return self._segment

    def _abandon_segment(self) -> None:
        """End a segment that could not be written to; its earlier frames are synced, or written
        again."""
        segment = self._segment
        if segment is None:
            return
        try:
            segment.sync()
        except OSError:
            self._doubt()
            return
        self._unsynced = []
        self._close_segment()
        if not segment.holds_frames:
            # The next segment begins with the same number, and so has this one's name.
            segment.path.unlink(missing_ok=True)

    def _doubt(self) -> None:
        """Give up a segment whose sync failed; its unsynced frames are to be written again."""
        segment = self._segment
        assert segment is not None
        unsynced, self._unsynced = self._unsynced, []
        self._doubtful.extend(unsynced)
        with contextlib.suppress(OSError):
            self._close_segment()
        # Its successor would have its name. One that begins with frames a sync had taken before
        # stays: they last.
        if not segment.holds_frames or (
            unsynced and first_seq_of(segment.path) == unsynced[0].first_seq
        ):
            with contextlib.suppress(OSError):
                segment.path.unlink(missing_ok=True)

    def _close_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()


def is_full(error: OSError) -> bool:
    """Whether a write failed for lack of room."""
    return error.errno in _NO_SPACE


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        # The shipper has just deleted it.
        return 0
