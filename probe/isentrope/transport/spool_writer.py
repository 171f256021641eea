"""Turns queued messages into records on disk. Runs on the writer thread alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from isentrope.transport.message_queue import MessageQueue, Refused
from isentrope.transport.segments import MAX_PAYLOAD_BYTES, encode_frame
from isentrope.transport.shedding import Pressure, lightened, parts_left_out, told
from isentrope.transport.spool_disk import NumberedFrame, SpoolDisk, is_full
from isentrope.transport.transport import MakeMessage
from isentrope_wire.codec import encode_payload
from isentrope_wire.messages import Gap, RunStarted, StepReport

logger = logging.getLogger(__name__)

GROUP_RECORDS = 64
FIRST_SEQ = 1
"""The number of the record that says which run it is; those that are put follow."""
QUEUE_FULL = "the queue of reports was full"
NOT_BUILT = "the report could not be built"
TOO_LARGE = "the report was larger than a record may be"
OUT_OF_TIME = "the training process ended before the report was written"
SHARES_UNDER_PRESSURE = ((0.9, Pressure.HISTOGRAMS), (0.75, Pressure.TOKENS))
"""From which share of what a spool may hold reports go without how much."""


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
    """Numbers records, frames them and hands them to the disk.

    A disk that can't be written to loses nothing by itself: the group stays in hand and is tried again, until the
    queue behind it is full and refuses. When it is full, reports first go without their tokens, then without their
    histograms, and say so. Whatever is lost whole is written as a gap with its reason, at its place.
    """

    def __init__(self, folder: Path, run: RunStarted, queue: MessageQueue, limits: SpoolLimits) -> None:
        self._folder = folder
        self._queue = queue
        self._limits = limits
        self._disk = SpoolDisk(
            folder,
            segment_bytes=limits.segment_bytes,
            segment_seconds=limits.segment_seconds,
            max_bytes=limits.max_spool_bytes,
        )
        self._disk_pressure = Pressure.NONE
        self._told_pressure = Pressure.NONE
        self._numbered_through = FIRST_SEQ - 1
        self._group: list[NumberedFrame] = []
        self._trouble: str | None = None
        self._failures_logged = False
        self.spooled_through = 0
        """The highest number on disk, gaps included."""
        self.lost = 0
        """Messages that were accepted and are lost nevertheless."""
        self.left_out = 0
        """Reports that were written without some of their parts."""
        self._add_record(encode_payload(run))

    @property
    def numbered_through(self) -> int:
        """The highest number given to a record or covered by a gap, on disk or not."""
        return self._numbered_through

    @property
    def idle(self) -> bool:
        """Nothing waits to be written."""
        return not self._group and self._queue.empty

    @property
    def pressure(self) -> Pressure:
        """What reports have to go without now."""
        share = self._disk.used_share
        by_share = next((pressure for least, pressure in SHARES_UNDER_PRESSURE if share >= least), Pressure.NONE)
        return max(self._disk_pressure, by_share)

    def write_queued(self, out_of_time: Callable[[], bool] = lambda: False) -> bool:
        """Write one group. False: the disk refuses; the group is kept for the next call.

        Args:
            out_of_time: asked before each message is built; once it says so, what is built is written.
        """
        if self._disk_pressure and self._disk.restore_reserve():
            self._disk_pressure = Pressure.NONE
        if not self._group:
            self._build_group(out_of_time)
        return not self._group or self._write_group()

    def sync(self) -> None:
        """Make what was written since the last call survive a power cut; close the segment when it is due."""
        self._take_back(self._disk.sync())

    def leave_vanished_segment(self) -> None:
        """Go on in another segment where somebody removed the one being written."""
        self._take_back(self._disk.leave_vanished_segment())

    def close(self) -> None:
        """Say what was not written in time, and end the spool.

        Raises:
            OSError: the end of the spool may not survive a power cut.
        """
        if self._group:
            # Once more: a gap in the place of what may be on disk already would contradict it.
            self._write_group()
        if not self.idle:
            self._give_up_the_rest()
        self._disk.close()

    def _build_group(self, out_of_time: Callable[[], bool]) -> None:
        # One by one: what is taken and not built in time could no longer be told from what was never put.
        while len(self._group) < GROUP_RECORDS and not out_of_time():
            entries = self._queue.take(1)
            if not entries:
                return
            for entry in entries:
                self._add(entry)

    def _add(self, entry: MakeMessage | Refused) -> None:
        if isinstance(entry, Refused):
            reason = QUEUE_FULL if self._trouble is None else f"{QUEUE_FULL}: {self._trouble}"
            self._add_gap(entry.count, reason)
            return
        try:
            message = entry()
            report = message if isinstance(message, StepReport) else None
            light = message if report is None else self._lightened(report)
            payload = encode_payload(light)
        except Exception:  # noqa: BLE001  # the sender thread's guard: a report that fails must not end the sending
            self._lose_one(NOT_BUILT)
            return
        self._queue.largest_bytes = max(self._queue.largest_bytes, len(payload))
        if len(payload) > MAX_PAYLOAD_BYTES:
            self._lose_one(TOO_LARGE)
        else:
            self._add_record(payload, report, is_lightened=light is not message)

    def _add_record(self, payload: bytes, report: StepReport | None = None, *, is_lightened: bool = False) -> None:
        self._numbered_through += 1
        self._group.append(_frame_of(self._numbered_through, payload, report, is_lightened=is_lightened))

    def _add_gap(self, count: int, reason: str) -> None:
        first, last = self._numbered_through + 1, self._numbered_through + count
        self._numbered_through = last
        payload = encode_payload(Gap(first_seq=first, last_seq=last, reason=reason))
        self._group.append(
            NumberedFrame(first_seq=first, last_seq=last, content=encode_frame(last, payload), is_gap=True)
        )

    def _lose_one(self, reason: str) -> None:
        self.lost += 1
        self._add_gap(1, reason)
        if not self._failures_logged:
            self._failures_logged = True
            logger.warning(
                "A report was lost: %s. Further ones are only counted.", reason, exc_info=reason == NOT_BUILT
            )

    def _write_group(self) -> bool:
        try:
            self._disk.append(self._group)
        except OSError as error:
            # A disk that fails twice at once gets until the next round, whatever room there is.
            taken_back = self._take_back(self._disk.take_doubtful())
            if not taken_back and is_full(error) and self._make_room():
                return self._write_group()
            self._say_disk_trouble(error)
            return False
        self.left_out += sum(frame.is_lightened for frame in self._group)
        self._told_pressure = min(self._told_pressure, self.pressure)
        self._trouble = None
        self.spooled_through = self._group[-1].last_seq
        self._group = []
        return True

    def _take_back(self, doubtful: list[NumberedFrame]) -> bool:
        """Put frames that may be on disk or not in front of all that is still to be written."""
        if not doubtful:
            return False
        self._group = [*doubtful, *self._group]
        self.spooled_through = doubtful[0].first_seq - 1
        return True

    def _make_room(self) -> bool:
        """Give up the reserve, and with it tokens; then histograms. False: there is nothing left to go without."""
        before = self._disk_pressure
        if self._disk.give_up_reserve():
            self._disk_pressure = max(Pressure.TOKENS, before)
        elif before < Pressure.HISTOGRAMS:
            self._disk_pressure = Pressure(before + 1)
        else:
            return False
        self._group = [self._relightened(frame) for frame in self._group]
        return True

    def _relightened(self, frame: NumberedFrame) -> NumberedFrame:
        if frame.report is None:
            return frame
        light = self._lightened(frame.report)
        is_lightened = light is not frame.report
        return _frame_of(frame.first_seq, encode_payload(light), frame.report, is_lightened=is_lightened)

    def _lightened(self, report: StepReport) -> StepReport:
        pressure = self.pressure
        if not parts_left_out(report, pressure):
            return report
        light = lightened(report, pressure)
        return light if pressure == self._told_pressure else self._tell_once(light, pressure)

    def _tell_once(self, report: StepReport, pressure: Pressure) -> StepReport:
        self._told_pressure = pressure
        return told(report, pressure, self._trouble or "the disk is full")

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
        """Replace all that is still in hand by one gap; the last message put, mostly the run's goodbye, gets a try."""
        missing = self._numbered_through - self.spooled_through
        self.lost += sum(not frame.is_gap for frame in self._group)
        last: MakeMessage | Refused | None = None
        while entries := self._queue.take(GROUP_RECORDS):
            missing += sum(entry.count if isinstance(entry, Refused) else 1 for entry in entries)
            self.lost += sum(not isinstance(entry, Refused) for entry in entries)
            last = entries[-1]
        has_last = last is not None and not isinstance(last, Refused)
        self._numbered_through = self.spooled_through
        self._group = []
        if missing > has_last:
            reason = OUT_OF_TIME if self._trouble is None else f"{OUT_OF_TIME}: {self._trouble}"
            self._add_gap(missing - has_last, reason)
            # Before the last is built: that may take longer than there is.
            self._write_group()
        if last is not None and has_last:
            self.lost -= 1
            self._add(last)
            self._write_group()


def _frame_of(seq: int, payload: bytes, report: StepReport | None, *, is_lightened: bool) -> NumberedFrame:
    content = encode_frame(seq, payload)
    return NumberedFrame(first_seq=seq, last_seq=seq, content=content, report=report, is_lightened=is_lightened)
