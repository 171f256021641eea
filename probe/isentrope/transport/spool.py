"""The transport of the training process: reports go to a spool on disk, and this process opens no
socket."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar, Literal

from isentrope.guard import SafeLog
from isentrope.transport.files import (
    ProcessLock,
    Tally,
    is_held_by_another_process,
    write_document,
)
from isentrope.transport.spool_disk import SpoolLimits
from isentrope.transport.spool_folder import (
    ControlFile,
    ShipperState,
    ShipperStatus,
    SpoolEnd,
    SpoolError,
    SpoolFolder,
    records_are,
)
from isentrope.transport.spool_writer import FIRST_SEQ, OUT_OF_TIME, MessageQueue, SpoolWriter
from isentrope.transport.transport import (
    InMemoryTransport,
    MakeMessage,
    Transport,
    TransportStatistics,
)
from isentrope_wire import environment
from isentrope_wire.backoff import Backoff
from isentrope_wire.codec import encode_payload
from isentrope_wire.numbers import printable
from isentrope_wire.reports import DELETED, ControlSnapshot, RunStarted

logger = SafeLog(__name__)

ROUND_SECONDS = 0.05
"""The longest a report waits before the writer thread looks. It polls: waking it would cost the
loop a lock."""
STATUS_SECONDS = 0.5
LONGEST_CLOSE_SECONDS = 1.0
END_FILE_SECONDS = 0.15
"""What a close may take on top when the writer thread hangs: to write the file `end`."""
SHARED_WAIT_SECONDS = 10.0
"""Runs that end so soon after each other, as those left open at a process's end, wait together for
what their shippers report."""
STUCK = frozenset({ShipperState.RETRYING, ShipperState.HOLDING, ShipperState.GAVE_UP})
"""A shipper in one of these states can't deliver now."""
STUCK_SECONDS = 2.0
"""How long it must be in one before the log names it: a server may start beside the training."""
REPEAT_SECONDS = 3600.0
"""Between two such warnings of a run."""


ABSENT_SECONDS = 3.0
"""Seconds after which a missing folder is made again, if its home exists."""
HOME_ABSENT_SECONDS = 60.0
"""Seconds where its home is missing, too: a later mount would hide a new folder."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 30.0
"""After a shipper that ran this long the next restart begins with a short pause again."""


class ShipperSupervisor:
    """Keeps one shipper process running on a spool folder. Used by the writer thread alone."""

    def __init__(self, folder: SpoolFolder, *, home: Path) -> None:
        """`home` is where the shipper looks for the owner's token."""
        self._folder = folder
        self._environment = dict(os.environ) | {
            "ISENTROPE_HOME": str(home.absolute()),
            "GRPC_ENABLE_FORK_SUPPORT": "0",
            # gRPC's stderr goes to a file of unlimited size; the shipper's own log names failed
            # calls.
            "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "NONE"),
        }
        # What a killed process had handed over is known to its shipper. Linux alone has it.
        self.tally = Tally() if hasattr(os, "memfd_create") else None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._pauses = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._not_before = 0.0

    def keep_running(self, *, last: bool = False) -> None:
        """Start the shipper if none runs and the pause after its last end is over; where this
        process ends, at once.
        OSError: it can't be started."""
        now = time.monotonic()
        if self._process is not None:
            status = self._process.poll()
            # The shell ends a moment after a shipper that was killed. Of two shippers one delivers,
            # whichever has the lock.
            if status is None and (
                not last or is_held_by_another_process(self._folder.shipper_lock)
            ):
                return
            self._process = None
            if status is not None:
                self._plan_restart(status, now)
        if last or now >= self._not_before:
            self._started_at = now
            self._process = self._start()

    def _plan_restart(self, status: int, now: float) -> None:
        if now - self._started_at >= STEADY_SECONDS:
            self._pauses.reset()
        pause_seconds = self._pauses.next_pause_seconds()
        logger.warning(
            "The shipper ended with status %d and starts again in %.1f s; reports stay in %s"
            " meanwhile.",
            status,
            pause_seconds,
            self._folder.path,
        )
        self._not_before = now + pause_seconds

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: a grpc.py or logging.py lying in the user's working folder must not be taken for the
        # real one.
        shipper = [
            sys.executable,
            "-P",
            "-m",
            "isentrope.transport.shipper",
            str(self._folder.path),
        ]
        inherited: tuple[int, ...] = ()
        if self.tally is not None:
            inherited = (self.tally.descriptor,)
            shipper += ["--tally", str(self.tally.descriptor)]
        # A shell between them: Ray kills the children of a worker that exits, not their children,
        # and the last reports are still to be delivered then.
        command = ["/bin/sh", "-c", '"$@" & wait $!', "sh", *shipper]
        with self._folder.errors.open("wb") as errors:
            return subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=inherited,
                # A Ctrl-C in the trainer's terminal must not reach the process that delivers its
                # last reports.
                start_new_session=True,
            )


class SpoolTransport:
    """Queue, writer thread, spool folder and, when online, the shipper beside them.

    `put` and `requested_control` are for one thread, the training loop's; neither they nor
    `statistics` touch disk or lock. In a forked child (a DataLoader's worker) every method does
    nothing: the spool belongs to the parent.

    A report's way: `put` queues it; the writer thread builds and writes it (`spool_writer`,
    `spool_disk`); the shipper reads and sends it (`spool_reader`, `connection`). A control's way
    back: the shipper writes the control file, the writer thread reads it, and `requested_control`
    is an attribute read."""

    _last_wait_ends: ClassVar = -SHARED_WAIT_SECONDS

    def __init__(
        self,
        folder: SpoolFolder,
        run: RunStarted,
        supervisor: ShipperSupervisor | None,
        limits: SpoolLimits | None = None,
    ) -> None:
        """`run` is the first record; `supervisor` keeps a shipper running, None: `isentrope sync`
        delivers later.
        SpoolError: the folder's file system knows no locks."""
        limits = limits or SpoolLimits()
        self.folder = folder
        self._supervisor = supervisor
        self._queue = MessageQueue(
            max_messages=limits.max_queued_messages, max_bytes=limits.max_queued_bytes
        )
        self._run = run
        self._grpc_target = folder.grpc_target()
        self._target = (folder.path / "target").read_bytes()
        self._absent_since: float | None = None
        self._max_queued_messages = limits.max_queued_messages
        self._writer = SpoolWriter(folder.path, run, self._queue, limits)
        if supervisor is None:
            self._tally = None
        else:
            self._tally = supervisor.tally
        self._count_handed_over()
        self._control_file = ControlFile(folder.control)
        self._requested: ControlSnapshot | None = None
        self._acked_through = 0
        self._waiting_since = (0, 0.0)
        """A record, and when it was the newest on disk; another one takes its place once the server
        has it."""
        self._next_status_at = 0.0
        self._stuck_since: float | None = None
        self._next_warning_at = 0.0
        self._failure_logged = False
        self._noted = ""
        self._refused_after_close = 0
        self._owner_pid = os.getpid()
        self._closing = threading.Event()
        self._is_closing = False
        """`_closing` as a bool: the training thread reads it faster."""
        self._give_up_at = float("inf")
        self._close_waited = threading.Event()
        self._end_lock = threading.Lock()
        self._end_written = False
        self._alive_lock = ProcessLock(folder.trainer_lock)
        try:
            self._alive_lock.acquire()
        except OSError as error:
            raise SpoolError(
                f"The spool needs a file system with locks, and {folder.path} has none ({error}). "
                "Point ISENTROPE_HOME at a folder on a local disk."
            ) from error
        if supervisor is not None:
            # On the caller's thread: if this one forked a worker while another thread starts a
            # process, the worker would inherit the pipe that reports a failed start, and the
            # starting thread would wait for the worker's end.
            try:
                supervisor.keep_running()
            except OSError as error:
                logger.warning(
                    "The shipper can't be started (%s); reports stay on disk until it can.", error
                )
        self._thread = threading.Thread(target=self._work, name="isentrope-spool", daemon=True)
        self._thread.start()
        # Started now: a process that is ending starts no more threads. On its own: the disk may be
        # what hangs.
        self._end_thread = threading.Thread(
            target=self._write_end_of_a_hanging_writer, name="isentrope-end", daemon=True
        )
        self._end_thread.start()
        atexit.register(self.close)

    def put(self, make: MakeMessage) -> bool:
        """Queue one message; see `Transport.put`."""
        if self._is_closing:
            self._refused_after_close += 1
            return False
        if os.getpid() != self._owner_pid:
            return False
        accepted = self._queue.put(make)
        self._count_handed_over()
        return accepted

    def _count_handed_over(self) -> None:
        if self._tally is not None:
            self._tally.set(FIRST_SEQ + self._queue.accepted + self._queue.refused)

    def requested_control(self) -> ControlSnapshot | None:
        """The newest control that the shipper received."""
        return self._requested

    def statistics(self) -> TransportStatistics:
        """The counts now; `acknowledged` lags by up to half a second."""
        waits = self._acked_through < self._writer.spooled_through
        return TransportStatistics(
            accepted=self._queue.accepted,
            dropped=self._queue.refused + self._writer.lost + self._refused_after_close,
            spooled=self._writer.spooled_through,
            acknowledged=self._acked_through,
            left_out=self._writer.left_out,
            lag_seconds=(
                time.monotonic() - self._waiting_since[1]
                if waits and self._waiting_since[0]
                else 0.0
            ),
        )

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Write what fits in the time, at most a second, and let the shipper deliver the rest
        without this process.

        What was accepted and is not written in time becomes a gap, also when the writer thread
        hangs. One warning is logged about what stays on disk when the server is away or refuses.
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
            self._end_thread.join(END_FILE_SECONDS)
        atexit.unregister(self.close)
        if self._supervisor is not None:
            self._warn_of_undelivered(end)

    def _warn_of_undelivered(self, wait_until: float) -> None:
        """Log one warning when the shipper can't deliver: otherwise the end of a run looks like all
        was delivered."""
        status = ShipperStatus.read(self.folder.status)
        if time.monotonic() < SpoolTransport._last_wait_ends + SHARED_WAIT_SECONDS:
            wait_until = min(wait_until, SpoolTransport._last_wait_ends)
        # A run of a few seconds may end before its shipper knows whether the server takes anything.
        while self.folder.exists and time.monotonic() < wait_until:
            if status is not None and status.state is not ShipperState.STARTING:
                break
            SpoolTransport._last_wait_ends = wait_until
            time.sleep(ROUND_SECONDS)
            status = ShipperStatus.read(self.folder.status)
        if status is not None:
            # A run may end before its writer thread has read it.
            self._pass_on(status.note)
        if status is None or status.state not in STUCK:
            return
        undelivered = self._writer.spooled_through - status.acked_through
        if undelivered > 0 and DELETED in status.error:
            logger.warning(
                "%s not stored: the run %s. They are kept in %s, which can be removed.",
                records_are(undelivered),
                DELETED,
                self.folder.path,
            )
        elif undelivered > 0:
            logger.warning(
                "%s not delivered yet to %s (%s), kept in %s. The side process goes on trying for a"
                " while; `isentrope sync %s` uploads later.",
                records_are(undelivered),
                self._grpc_target,
                status.summary,
                self.folder.path,
                shlex.quote(str(self.folder.path)),
            )

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
        except Exception:  # the sender thread's guard: no failure here may stop the training
            if not self._failure_logged:
                self._failure_logged = True
                logger.warning(
                    "Writing to the spool %s failed; training continues.",
                    self.folder.path,
                    exc_info=True,
                )
            return False

    def _round(self) -> bool:
        """Write what waits, then check the shipper, the control and the status. False: the disk
        refuses, or the folder is away."""
        if not self._keep_in_place():
            return False
        written = self._writer.write_queued(self._is_out_of_time)
        while written and not self._writer.idle and not self._closing.is_set():
            written = self._writer.write_queued(self._is_out_of_time)
        self._writer.sync()
        self._requested = self._control_file.read()
        now = time.monotonic()
        if now >= self._next_status_at or self._closing.is_set():
            self._next_status_at = now + STATUS_SECONDS
            self._update_acknowledged()
            if self._supervisor is not None:
                self._supervisor.keep_running()
        return written

    def _keep_in_place(self) -> bool:
        """Whether there is a folder to write to. A missing one, as on a lost mount, is waited for,
        then made again: files without a name would be lost."""
        if self.folder.exists:
            if self._absent_since is not None:
                self._absent_since = None
                logger.warning("The spool %s is there again; reports go on.", self.folder.path)
            self._alive_lock.take_again()
            self._writer.leave_vanished_segment()
            return True
        now = time.monotonic()
        if self._absent_since is None:
            self._absent_since = now
            self._writer.note_absence()
            logger.warning(
                "The spool %s is not there: it was removed or moved, or its disk is away. "
                "Training continues, and reports wait in memory, at most %d of them. "
                "If it does not come back it is made anew, and what it held is shown as a gap.",
                self.folder.path,
                self._max_queued_messages,
            )
        home = self.folder.home
        is_home_there = home is not None and home.is_dir()
        patience_seconds = HOME_ABSENT_SECONDS
        if is_home_there:
            patience_seconds = ABSENT_SECONDS
        if self._closing.is_set() or now - self._absent_since >= patience_seconds:
            self.folder.restore(self._run, self._target, self._alive_lock)
        return False

    def _is_out_of_time(self) -> bool:
        return time.monotonic() >= self._give_up_at

    def _update_acknowledged(self) -> None:
        status = ShipperStatus.read(self.folder.status)
        if status is not None:
            self._acked_through = status.acked_through
            self._warn_while_stuck(status)
            self._pass_on(status.note)
        if self._acked_through >= self._waiting_since[0]:
            self._waiting_since = (self._writer.spooled_through, time.monotonic())

    def _pass_on(self, note: str) -> None:
        """Log what the server says of the run, once, on the first rank."""
        if note and note != self._noted and not self._run.rank:
            logger.warning("%s", printable(note))
        self._noted = note or self._noted

    def _warn_while_stuck(self, status: ShipperStatus) -> None:
        """Log soon, and seldom again, that nothing is delivered: a wrong address would show at the
        run's end only."""
        now = time.monotonic()
        if status.state not in STUCK:
            self._stuck_since = None
            return
        self._stuck_since = self._stuck_since or now
        is_due = now - self._stuck_since >= STUCK_SECONDS and now >= self._next_warning_at
        # Of all ranks the first: theirs is mostly the same address.
        if not is_due or self._run.rank:
            return
        self._next_warning_at = now + REPEAT_SECONDS
        logger.warning(
            "Reports are not delivered to %s (%s). Training continues, and they wait in %s.%s",
            self._grpc_target,
            status.summary,
            self.folder.path,
            (
                ""
                if status.state is ShipperState.HOLDING
                else (
                    " If the server is at another address, set ISENTROPE_GRPC (host:port, reports)"
                    " and ISENTROPE_URL (its pages; https:// where it has TLS)."
                )
            ),
        )

    def _finish(self) -> None:
        try:
            self._writer.close()
            with self._end_lock:
                self._end_written = True
                is_whole = self._writer.spooled_through == self._writer.numbered_through
                if is_whole:
                    end = SpoolEnd(self._writer.numbered_through)
                else:
                    end = self._end_of_accepted()
                write_document(self.folder.end, end, lasting=True)
        except OSError as error:
            logger.warning(
                "The end of the spool %s may not survive a power cut: %s.", self.folder.path, error
            )
        # From here on the shipper knows that nothing more will come.
        self._alive_lock.release()
        if self._supervisor is not None and self.folder.exists:
            # A shipper that died a moment ago would not be restarted once this process is gone.
            with contextlib.suppress(OSError):
                self._supervisor.keep_running(last=True)
        if self._tally is not None:
            self._tally.close()

    def _write_end_of_a_hanging_writer(self) -> None:
        """Write the file `end` for a writer thread that did not finish: what was accepted, and the
        run's last message."""
        self._close_waited.wait()
        end = self._end_of_accepted()
        with self._end_lock, contextlib.suppress(OSError):
            if not self._end_written:
                # What was written survives the end of the process, if not a power cut at the same
                # moment.
                write_document(self.folder.end, end)

    def _end_of_accepted(self) -> SpoolEnd:
        last = self._queue.newest_ready
        if last is None:
            last_payload = b""
        else:
            last_payload = encode_payload(last())
        return SpoolEnd(
            FIRST_SEQ + self._queue.accepted + self._queue.refused, OUT_OF_TIME, last_payload
        )


Mode = Literal["online", "offline", "disabled"]


def open_transport(
    run: RunStarted, *, mode: Mode, home: Path, grpc_target: str, limits: SpoolLimits | None = None
) -> Transport:
    """Open the transport of one rank of one attempt of a run.

    Its shipper reads the token as this process would, at each attempt: `ISENTROPE_TOKEN`, or the
    owner's in the home.

    Args:
        run: the first record.
        mode: `online`: spool and shipper; `offline`: spool only; `disabled`: everything is accepted
            and discarded.
        home: ISENTROPE_HOME; the spool lies in it.
        grpc_target: host:port of the server's ingest. Nothing is connected here: the server may be
            away.

    Raises:
        SpoolError: the home can't be written to or has no locks, or this attempt has a spool
            already.
        ConfigurationError: the run's description is larger than a record may be, or
            `ISENTROPE_KEEP_DELIVERED` is no time.
    """
    if mode == "disabled":
        return InMemoryTransport(keep_messages=False)
    # The shipper reads it; its error would be seen by nobody.
    environment.keep_delivered_seconds()
    folder = SpoolFolder.create(home, run, grpc_target)
    kind = environment.file_system_of(home)
    if kind in environment.NETWORK_FILE_SYSTEMS and not run.rank:
        logger.warning(
            "The home %s lies on a network file system (%s): its locks may not reach other "
            "machines, where `isentrope sync` would take this run for ended. "
            "Point ISENTROPE_HOME at a local disk of this machine.",
            home,
            kind,
        )
    supervisor = None
    if mode == "online":
        supervisor = ShipperSupervisor(folder, home=home)
    try:
        return SpoolTransport(folder, run, supervisor, limits)
    except OSError:
        # Otherwise every `sync` would find it.
        folder.remove()
        raise
