"""The transport of the training process: reports go to a spool on disk, and this process opens no socket.

How old the oldest record is that the server has not acknowledged.

The transport for a mode.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shlex
import threading
import time
from pathlib import Path
from typing import Literal

from isentrope.transport.control_file import ControlFile
from isentrope.transport.files import ProcessLock
from isentrope.transport.shipper_supervisor import ShipperSupervisor
from isentrope.transport.spool_folder import ShipperState, ShipperStatus, SpoolEnd, SpoolError, SpoolFolder
from isentrope.transport.spool_writer import FIRST_SEQ, OUT_OF_TIME, MessageQueue, SpoolLimits, SpoolWriter
from isentrope.transport.transport import InMemoryTransport, MakeMessage, Transport, TransportStatistics
from isentrope_wire import environment
from isentrope_wire.codec import encode_payload
from isentrope_wire.reports import ControlSnapshot, RunStarted

MOST_MARKS = 256


class DeliveryLag:
    """Remembers when records were written, coarser the longer the server stays away. Used by one thread."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, float]] = []
        """Sequence numbers and when they were the newest on disk."""
        self._spacing_seconds = 0.0

    def written(self, seq: int, at: float) -> None:
        """Records up to `seq` are on disk."""
        if not self._marks:
            self._spacing_seconds = 0.0
        elif self._marks[-1][0] >= seq or at - self._marks[-1][1] < self._spacing_seconds:
            return
        self._marks.append((seq, at))
        if len(self._marks) > MOST_MARKS:
            # The first one stays: it says how old the oldest record is.
            self._marks = self._marks[::2]
            self._spacing_seconds = max(2 * self._spacing_seconds, 1.0)

    def acknowledged(self, seq: int) -> None:
        """The server has records up to `seq`."""
        kept = 0
        while kept < len(self._marks) and self._marks[kept][0] <= seq:
            kept += 1
        del self._marks[:kept]

    @property
    def oldest_at(self) -> float | None:
        """When the oldest of what the server lacks was written; None: it has everything."""
        return self._marks[0][1] if self._marks else None


logger = logging.getLogger(__name__)

ROUND_SECONDS = 0.05
"""How long a report waits at most before the writer thread wakes. It polls: waking it would cost the loop a lock."""
STATUS_SECONDS = 0.5
LONGEST_CLOSE_SECONDS = 1.0
LAST_WORD_SECONDS = 0.15
"""What a close may take on top when the writer thread does not come back: to say on disk what it leaves."""
STUCK = frozenset({ShipperState.RETRYING, ShipperState.HOLDING, ShipperState.GAVE_UP})
"""A shipper in one of these states has heard that it can't deliver now."""


class SpoolTransport:
    """Queue, writer thread, spool folder and, when online, the shipper beside them.

    `put` and `desired_control` are for one thread, the training loop's; neither they nor `statistics` touch disk or
    lock. In a forked child (a DataLoader's worker) every method does nothing: the spool belongs to the parent.
    """

    def __init__(
        self,
        folder: SpoolFolder,
        run: RunStarted,
        supervisor: ShipperSupervisor | None,
        limits: SpoolLimits | None = None,
    ) -> None:
        """
        Args:
            supervisor: keeps a shipper running; None: spool only, for `isentrope sync` to deliver later.

        Raises:
            SpoolError: the folder's file system knows no locks.
        """
        limits = limits or SpoolLimits()
        self.folder = folder
        self._supervisor = supervisor
        self._queue = MessageQueue(max_messages=limits.max_queued_messages, max_bytes=limits.max_queued_bytes)
        self._run = run
        self._grpc_target = folder.grpc_target()
        self._removal_logged = False
        self._writer = SpoolWriter(folder.path, run, self._queue, limits)
        self._control_file = ControlFile(folder.control)
        self._desired: ControlSnapshot | None = None
        self._acked_through = 0
        self._lag = DeliveryLag()
        self._oldest_unacknowledged_at: float | None = None
        self._next_status_at = 0.0
        self._trouble_logged = False
        self._refused_after_close = 0
        self._owner_pid = os.getpid()
        self._closing = threading.Event()
        self._is_closing = False
        """The same, for the training thread: a look at it is no call."""
        self._give_up_at = float("inf")
        self._close_waited = threading.Event()
        self._end_lock = threading.Lock()
        self._end_told = False
        self._alive_lock = ProcessLock(folder.trainer_lock)
        try:
            self._alive_lock.acquire()
        except OSError as error:
            raise SpoolError(
                f"The spool needs a file system with locks, and {folder.path} has none ({error}). "
                "Point ISENTROPE_HOME at a folder on a local disk."
            ) from error
        if supervisor is not None:
            self._start_shipper(supervisor)
        self._thread = threading.Thread(target=self._work, name="isentrope-spool", daemon=True)
        self._thread.start()
        # Started now: a process that is ending starts no more threads. On its own: the disk may be what hangs.
        self._last_word = threading.Thread(target=self._leave_word, name="isentrope-last-word", daemon=True)
        self._last_word.start()
        atexit.register(self.close)

    def put(self, make: MakeMessage) -> bool:
        """Queue one message; see `Transport.put`."""
        if self._is_closing:
            self._refused_after_close += 1
            return False
        return os.getpid() == self._owner_pid and self._queue.put(make)

    def desired_control(self) -> ControlSnapshot | None:
        """The newest control the shipper brought."""
        return self._desired

    def statistics(self) -> TransportStatistics:
        """The counts as they stand; `acknowledged` lags by up to half a second."""
        oldest_at = self._oldest_unacknowledged_at
        return TransportStatistics(
            accepted=self._queue.accepted,
            dropped=self._queue.refused + self._writer.lost + self._refused_after_close,
            spooled=self._writer.spooled_through,
            acknowledged=self._acked_through,
            left_out=self._writer.left_out,
            lag_seconds=0.0 if oldest_at is None else time.monotonic() - oldest_at,
        )

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Write what fits in the time, at most a second, and let the shipper deliver the rest without this process.

        What was accepted and does not get to the disk is a gap there, also when the writer thread hangs. Says in one
        warning what stays on disk when the shipper has heard that the server is away or refuses.
        """
        if os.getpid() != self._owner_pid or self._closing.is_set():
            return
        allowed_seconds = min(max(timeout_seconds, 0.0), LONGEST_CLOSE_SECONDS)
        # The rest of the time is for the last write, which can't be interrupted.
        end = time.monotonic() + allowed_seconds
        self._give_up_at = end - 0.2 * allowed_seconds
        self._is_closing = True
        self._closing.set()
        self._thread.join(allowed_seconds)
        self._close_waited.set()
        if self._thread.is_alive():
            self._last_word.join(LAST_WORD_SECONDS)
        atexit.unregister(self.close)
        if self._supervisor is not None:
            self._say_what_stays(end)

    def _say_what_stays(self, wait_until: float) -> None:
        """One warning when the shipper gets nowhere: whoever ends a run without it believes all is delivered."""
        status = ShipperStatus.read(self.folder.status)
        # A run of a few seconds may end before its shipper has heard whether the server takes anything.
        while self.folder.exists and _has_yet_to_hear(status) and time.monotonic() < wait_until:
            time.sleep(ROUND_SECONDS)
            status = ShipperStatus.read(self.folder.status)
        if status is None or status.state not in STUCK:
            return
        undelivered = self._writer.spooled_through - status.acked_through
        if undelivered > 0:
            one = undelivered == 1
            logger.warning(
                "%s not delivered yet (%s: %s); %s in %s, `isentrope sync %s` uploads %s.",
                "1 record is" if one else f"{undelivered} records are",
                status.state,
                " ".join(status.error.split()).rstrip("."),
                "it stays" if one else "they stay",
                self.folder.path,
                shlex.quote(str(self.folder.path)),
                "it" if one else "them",
            )

    def _start_shipper(self, supervisor: ShipperSupervisor) -> None:
        # On the caller's thread: were this one to fork a worker while another starts a process, the worker would
        # inherit the pipe that tells of a failed start, and the starting thread would wait for the worker's end.
        try:
            supervisor.tend()
        except OSError as error:
            logger.warning("The shipper can't be started (%s); it is tried again, reports stay on disk.", error)

    def _work(self) -> None:
        while not self._closing.wait(ROUND_SECONDS):
            self._guarded_round()
        while time.monotonic() < self._give_up_at:
            if not self._guarded_round():
                time.sleep(ROUND_SECONDS)
            elif self._writer.idle:
                break
        self._finish()

    def _guarded_round(self) -> bool:
        try:
            return self._round()
        except Exception:  # the sender thread's guard: whatever happens here, training goes on
            if not self._trouble_logged:
                self._trouble_logged = True
                logger.warning("The spool at %s is in trouble; training goes on.", self.folder.path, exc_info=True)
            return False

    def _round(self) -> bool:
        """Write what waits, then look after the shipper, the control and the status. False: the disk refuses."""
        written = self._writer.write_queued(self._out_of_time)
        while written and not self._writer.idle and not self._closing.is_set():
            written = self._writer.write_queued(self._out_of_time)
        self._keep_in_place()
        self._writer.sync()
        self._desired = self._control_file.read()
        now = time.monotonic()
        if now >= self._next_status_at or self._closing.is_set():
            self._next_status_at = now + STATUS_SECONDS
            self._note_what_is_acknowledged()
            if self._supervisor is not None:
                self._supervisor.tend()
        return written

    def _keep_in_place(self) -> None:
        """Make anew what somebody removed: else all that follows would go into files without a name."""
        if not self._alive_lock.is_in_place:
            if not self._removal_logged:
                self._removal_logged = True
                logger.warning(
                    "Somebody removed files of the spool at %s. It goes on; what was not delivered yet will be a gap.",
                    self.folder.path,
                )
            self.folder.restore(self._run, self._grpc_target)
            self._alive_lock.acquire_anew()
        self._writer.leave_vanished_segment()

    def _out_of_time(self) -> bool:
        return time.monotonic() >= self._give_up_at

    def _note_what_is_acknowledged(self) -> None:
        status = ShipperStatus.read(self.folder.status)
        if status is not None:
            self._acked_through = status.acked_through
        self._lag.written(self._writer.spooled_through, time.monotonic())
        self._lag.acknowledged(self._acked_through)
        self._oldest_unacknowledged_at = self._lag.oldest_at

    def _finish(self) -> None:
        try:
            self._writer.close()
            with self._end_lock:
                self._end_told = True
                is_whole = self._writer.spooled_through == self._writer.numbered_through
                self.folder.write_end(
                    SpoolEnd(self._writer.numbered_through) if is_whole else self._what_was_accepted()
                )
        except OSError as error:
            logger.warning("The end of the spool at %s may not survive a power cut: %s.", self.folder.path, error)
        # From here on the shipper knows that nothing more will come.
        self._alive_lock.release()
        if self._supervisor is not None and self.folder.exists:
            # One that died a moment ago would be missed by nobody once this process is gone.
            with contextlib.suppress(OSError):
                self._supervisor.tend(last=True)

    def _leave_word(self) -> None:
        """When the writer thread did not come to its end: what was accepted, and the goodbye, for whoever delivers."""
        self._close_waited.wait()
        end = self._what_was_accepted()
        with self._end_lock, contextlib.suppress(OSError):
            if not self._end_told:
                # A process that dies now takes nothing with it that was written; a power cut at the same moment may.
                self.folder.write_end(end, lasting=False)

    def _what_was_accepted(self) -> SpoolEnd:
        goodbye = self._queue.newest_ready
        last_payload = b"" if goodbye is None else encode_payload(goodbye())
        return SpoolEnd(FIRST_SEQ + self._queue.accepted + self._queue.refused, OUT_OF_TIME, last_payload)


def _has_yet_to_hear(status: ShipperStatus | None) -> bool:
    return status is None or status.state is ShipperState.STARTING


Mode = Literal["online", "offline", "disabled"]


def open_transport(
    run: RunStarted,
    *,
    mode: Mode,
    home: Path,
    grpc_target: str,
    token: str | None,
    limits: SpoolLimits | None = None,
) -> Transport:
    """Open what carries the reports of one rank of one incarnation.

    Args:
        mode: `online`: spool and shipper; `offline`: spool only; `disabled`: everything is taken and goes nowhere.
        home: ISENTROPE_HOME; the spool lies in it.
        grpc_target: host:port of the server's ingest. Nothing is connected here: the server may be away.
        token: what the shipper sends; None, or the one it finds by itself: ISENTROPE_TOKEN or, read anew at each
            attempt, the home's owner token.

    Raises:
        SpoolError: the home can't be written to or knows no locks, or this incarnation has a spool already.
        ConfigurationError: what is told of the run is larger than a record may be.
    """
    if mode == "disabled":
        return InMemoryTransport(keep_messages=False)
    folder = SpoolFolder.create(home, run, grpc_target)
    if home == environment.home() and token == environment.token():
        # Left to the shipper to find, so that an owner's token that changes later still takes effect.
        token = None
    supervisor = ShipperSupervisor(folder, home=home, token=token) if mode == "online" else None
    try:
        return SpoolTransport(folder, run, supervisor, limits)
    except OSError:
        # Else a `sync` would look at it for ever.
        folder.remove()
        raise
