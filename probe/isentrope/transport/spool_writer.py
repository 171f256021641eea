"""Turns queued messages into records on disk.

- `MessageQueue`: between the training loop and the writer thread, without a lock that the loop
    could wait for
- `lightened`: what reports lose when the disk is full
- `SpoolWriter`: builds, numbers and writes, on the writer thread alone
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isentrope.guard import SafeLog
from isentrope.transport.segments import MAX_PAYLOAD_BYTES, encode_frame
from isentrope.transport.spool_disk import NumberedFrame, SpoolDisk, SpoolLimits, is_full
from isentrope.transport.transport import MakeMessage, ReadyMessage
from isentrope_wire.codec import encode_payload
from isentrope_wire.reports import DROPPED_PARTS, Alert, AlertLevel, Gap, RunStarted, StepReport


@dataclass(frozen=True, slots=True)
class Refused:
    """Messages refused at this place of the sequence, because the queue was full."""

    count: int


class MessageQueue:
    """First in, first out; one thread puts, one thread takes.

    `put` only appends to a deque, which is atomic: the training loop never waits for a lock, not
    even for one that a suspended writer thread holds.
    """

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        """How much may wait is estimated: a message is not built before it is taken, so each counts
        as much as the largest one seen so far."""
        # Each message with the number of refusals before it. So every refusal has its place,
        # without a mark in the queue that both threads would change.
        self._entries: deque[tuple[int, MakeMessage]] = deque()
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._refused_taken = 0
        self.largest_bytes = 0
        """Set by the taking thread: the largest message encoded so far."""
        self.accepted = 0
        self.refused = 0
        self.newest_ready: ReadyMessage | None = None
        """The message put last, taken since or not, if it was accepted and needs no building."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def empty(self) -> bool:
        """Whether neither a message nor a refusal waits. For the taking thread."""
        return not self._entries and self.refused == self._refused_taken

    def put(self, make: MakeMessage) -> bool:
        """Append one message; False when the queue is full."""
        waiting = len(self._entries)
        if waiting >= self._max_messages or waiting * self.largest_bytes > self._max_bytes:
            self.refused += 1
            self.newest_ready = None
            return False
        self._entries.append((self.refused, make))
        self.accepted += 1
        if isinstance(make, ReadyMessage):
            self.newest_ready = make
        else:
            self.newest_ready = None
        return True

    def take(self, max_messages: int) -> list[MakeMessage | Refused]:
        """Take the oldest messages in order, refusals at their place."""
        taken: list[MakeMessage | Refused] = []
        for _ in range(max_messages):
            # Read before taking: what is appended after this was refused later.
            refused = self.refused
            try:
                refused, make = self._entries.popleft()
            except IndexError:
                self._take_refusals(refused, taken)
                break
            self._take_refusals(refused, taken)
            taken.append(make)
        return taken

    def _take_refusals(self, refused: int, taken: list[MakeMessage | Refused]) -> None:
        if refused > self._refused_taken:
            taken.append(Refused(refused - self._refused_taken))
            self._refused_taken = refused


@dataclass(frozen=True, slots=True)
class Lost:
    """Reports that were lost whole, and why."""

    count: int
    reason: str
    advice: str = ""


HEAVY_PARTS: Mapping[str, Any] = {"rollouts": (), "tokens": (), "what_if": None, "histograms": ()}
"""What reports lose where there is little room; scalars, labels, alerts and control outcomes always
stay."""


def lightened(report: StepReport) -> StepReport:
    """The report without its heavy parts, which its label DROPPED_PARTS names; itself where it has
    none."""
    left_out = [name for name, nothing in HEAVY_PARTS.items() if getattr(report, name) != nothing]
    if not left_out:
        return report
    return replace(
        report, **HEAVY_PARTS, labels={**report.labels, DROPPED_PARTS: ", ".join(left_out)}
    )


def add_alert(report: StepReport, reason: str) -> StepReport:
    """The report with an alert about what reports lack from now on, and why."""
    message = (
        f"From step {report.step} on reports lack histograms, what-if sums, their top contributing"
        f" tokens and rollouts: {reason}. Free space on the disk of the spool."
    )
    alert = Alert(kind="left_out", level=AlertLevel.WATCH, message=message)
    return replace(report, alerts=(*report.alerts, alert))


def add_loss_alert(report: StepReport, lost: Lost) -> StepReport:
    """The report with an alert that reports before it were lost, and why."""
    message = (
        f"{lost.count} reports before step {report.step} were lost: {lost.reason}. Their steps are "
        f"missing, and more may be later; Config counts them.{lost.advice}"
    )
    alert = Alert(
        kind="left_out",
        level=AlertLevel.WATCH,
        message=message,
        evidence={"lost": float(lost.count)},
    )
    return replace(report, alerts=(*report.alerts, alert))


logger = SafeLog(__name__)

GROUP_RECORDS = 64
FIRST_SEQ = 1
"""Number of the record that describes the run; reports follow it."""
QUEUE_FULL = "the queue of reports was full"
CLOSE_FEWER = (
    " The loop closes steps faster than they can be written: close one for several updates, say."
)
NOT_BUILT = "the report could not be built"
TOO_LARGE = "the report was larger than a record may be"
OUT_OF_TIME = "the training process ended before the report was written"
AWAY = "the spool's folder was not there"
LIGHT_FROM_SHARE = 0.75
"""From this share of the spool's limit on reports lose their heavy parts."""


class SpoolWriter:
    """Numbers records, frames them and hands them to the disk.

    A failed write loses nothing by itself: the group is kept and written again, until the queue
    behind it is full and refuses. On a full disk reports lose their heavy parts, and are labelled
    so. Reports that are lost whole are written as a gap with its reason, at their place."""

    def __init__(
        self, folder: Path, run: RunStarted, queue: MessageQueue, limits: SpoolLimits
    ) -> None:
        self._folder = folder
        self._queue = queue
        self._limits = limits
        self._disk = SpoolDisk(folder, limits)
        self._disk_is_full = False
        self._alerted = False
        self.numbered_through = FIRST_SEQ - 1
        """The highest number given to a record or covered by a gap, on disk or not."""
        self._group: list[NumberedFrame] = []
        self._unnumbered = 0
        """Messages that were taken from the queue and have no number yet."""
        self._disk_error: str | None = None
        self._failures_logged = self._refusals_logged = False
        self._lost: Lost | None = None
        """The first reports that were lost, until a report says so."""
        self._lost_said = False
        self.spooled_through = 0
        """The highest number on disk, gaps included."""
        self.lost = 0
        """Messages that were accepted and lost."""
        self.left_out = 0
        self._add_record(encode_payload(run))

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._group and not self._unnumbered and self._queue.empty

    @property
    def _has_little_room(self) -> bool:
        return self._disk_is_full or self._disk.used_share >= LIGHT_FROM_SHARE

    def write_queued(self, out_of_time: Callable[[], bool] = lambda: False) -> bool:
        """Write one group; False where the disk refuses, and it is kept for the next call. Once
        `out_of_time`, asked before each message is built, is True, what is built is written."""
        if self._disk_is_full and self._disk.restore_reserve():
            self._disk_is_full = False
        if not self._group:
            self._build_group(out_of_time)
        return not self._group or self._write_group()

    def sync(self) -> None:
        """Make what was written since the last call survive a power cut; close a segment that is
        full or old."""
        self._take_back(self._disk.sync())

    def leave_vanished_segment(self) -> None:
        """Go on in a new segment where the file of the last one was removed or moved.
        OSError: the folder can't be looked into."""
        self._take_back(self._disk.leave_vanished_segment())

    def note_absence(self) -> None:
        """What the queue refuses until it is empty again is lost for the lack of the folder."""
        self._disk_error = AWAY

    def close(self) -> None:
        """Write a gap for what was not written in time, and end the spool. OSError: its end may not
        survive a power cut."""
        if self._group:
            # One more attempt: a gap in the place of records that may be on disk already would
            # contradict them.
            self._write_group()
        if not self.idle:
            self._give_up_the_rest()
        self._disk.close()

    def _build_group(self, out_of_time: Callable[[], bool]) -> None:
        # One by one: a message that is taken and not built in time looks like one that was never
        # put.
        while len(self._group) < GROUP_RECORDS and not out_of_time():
            if self._unnumbered:
                self._add_gap(self._unnumbered, NOT_BUILT)
                self._unnumbered = 0
            entries = self._queue.take(1)
            if not entries:
                return
            for entry in entries:
                self._add_or_count(entry)

    def _add_or_count(self, entry: MakeMessage | Refused) -> None:
        """Add an entry. Where there is no memory even for its gap, it gets one at the next call:
        each entry has its numbers, so that those behind it keep theirs."""
        before = self.numbered_through
        try:
            self._add(entry)
        except Exception:
            if self.numbered_through == before:
                if isinstance(entry, Refused):
                    self._unnumbered += entry.count
                else:
                    self._unnumbered += 1
            raise

    def _add(self, entry: MakeMessage | Refused) -> None:
        if isinstance(entry, Refused):
            self._note_refused(entry.count)
            return
        try:
            message = entry()
            if isinstance(message, StepReport) and self._lost is not None:
                message, self._lost = add_loss_alert(message, self._lost), None
            report = None
            if isinstance(message, StepReport):
                report = message
            if report is None:
                light = message
            else:
                light = self._lightened(report)
            payload = encode_payload(light)
        except Exception:  # noqa: BLE001  # the sender thread's guard: a report that fails must not end the sending
            self._lose_one(NOT_BUILT)
            return
        self._queue.largest_bytes = max(self._queue.largest_bytes, len(payload))
        if len(payload) > MAX_PAYLOAD_BYTES:
            self._lose_one(TOO_LARGE)
        else:
            self._add_record(payload, report, is_lightened=light is not message)

    def _add_record(
        self, payload: bytes, report: StepReport | None = None, *, is_lightened: bool = False
    ) -> None:
        seq = self.numbered_through + 1
        self._group.append(_frame_of(seq, payload, report, is_lightened=is_lightened))
        self.numbered_through = seq

    def _add_gap(self, count: int, reason: str) -> None:
        first, last = self.numbered_through + 1, self.numbered_through + count
        payload = encode_payload(Gap(first_seq=first, last_seq=last, reason=reason))
        self._group.append(
            NumberedFrame(
                first_seq=first, last_seq=last, content=encode_frame(last, payload), is_gap=True
            )
        )
        self.numbered_through = last

    def _note_refused(self, count: int) -> None:
        reason, advice = QUEUE_FULL, CLOSE_FEWER
        if self._disk_error is not None:
            reason, advice = f"{QUEUE_FULL}: {self._disk_error}", ""
        self._add_lost(Lost(count, reason, advice))
        if not self._refusals_logged:
            self._refusals_logged = True
            logger.warning(
                "Reports are dropped, %d so far: %s. Training continues; further ones are only "
                "counted.%s",
                count,
                reason,
                advice,
            )

    def _add_lost(self, lost: Lost) -> None:
        """Put a gap in the place of lost reports; the first ones are said in the next report."""
        self._add_gap(lost.count, lost.reason)
        if not self._lost_said:
            self._lost, self._lost_said = lost, True

    def _lose_one(self, reason: str) -> None:
        self.lost += 1
        self._add_lost(Lost(1, reason))
        if not self._failures_logged:
            self._failures_logged = True
            logger.warning(
                "A report was lost: %s. Further ones are only counted.",
                reason,
                exc_info=reason == NOT_BUILT,
            )

    def _write_group(self) -> bool:
        try:
            self._disk.append(self._group)
        except OSError as error:
            # After two failures at once the next round tries again, however little room there is.
            taken_back = self._take_back(self._disk.take_doubtful())
            if not taken_back and is_full(error) and self._make_room():
                return self._write_group()
            self._warn_of_disk_error(error)
            return False
        self.left_out += sum(frame.is_lightened for frame in self._group)
        self._alerted = self._alerted and self._has_little_room
        # What was refused meanwhile is taken from the queue after what had waited in it.
        if self._queue.empty:
            self._disk_error = None
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
        """Delete kept segments, free the reserve and drop the heavy parts. False: there is nothing
        left to drop."""
        if self._disk.drop_sent():
            return True
        if not self._disk.give_up_reserve() and self._disk_is_full:
            return False
        self._disk_is_full = True
        self._group = [self._relightened(frame) for frame in self._group]
        return True

    def _relightened(self, frame: NumberedFrame) -> NumberedFrame:
        if frame.report is None:
            return frame
        light = self._lightened(frame.report)
        is_lightened = light is not frame.report
        return _frame_of(
            frame.first_seq, encode_payload(light), frame.report, is_lightened=is_lightened
        )

    def _lightened(self, report: StepReport) -> StepReport:
        light = report
        if self._has_little_room:
            light = lightened(report)
        if light is report or self._alerted:
            return light
        self._alerted = True
        return add_alert(light, self._disk_error or "the disk is full")

    def _warn_of_disk_error(self, error: OSError) -> None:
        if self._disk_error is None:
            logger.warning(
                "Writing to the spool %s failed (%s); reports wait in memory, at most %d of them.",
                self._folder,
                error,
                self._limits.max_queued_messages,
            )
        self._disk_error = error.strerror or str(error)

    def _give_up_the_rest(self) -> None:
        """Replace all that is not written by one gap. One attempt is made at the last message,
        mostly the run's finish."""
        missing = self.numbered_through - self.spooled_through + self._unnumbered
        self._unnumbered = 0
        self.lost += sum(not frame.is_gap for frame in self._group)
        last: MakeMessage | Refused | None = None
        while entries := self._queue.take(GROUP_RECORDS):
            missing += sum(entry.count if isinstance(entry, Refused) else 1 for entry in entries)
            self.lost += sum(not isinstance(entry, Refused) for entry in entries)
            last = entries[-1]
        has_last = last is not None and not isinstance(last, Refused)
        self.numbered_through = self.spooled_through
        self._group = []
        if missing > has_last:
            if self._disk_error is None:
                reason = OUT_OF_TIME
            else:
                reason = f"{OUT_OF_TIME}: {self._disk_error}"
            self._add_gap(missing - has_last, reason)
            # Before the last is built, which may take longer than the time left.
            self._write_group()
        if last is not None and has_last:
            self.lost -= 1
            self._add(last)
            self._write_group()


def _frame_of(
    seq: int, payload: bytes, report: StepReport | None, *, is_lightened: bool
) -> NumberedFrame:
    content = encode_frame(seq, payload)
    return NumberedFrame(
        first_seq=seq, last_seq=seq, content=content, report=report, is_lightened=is_lightened
    )
