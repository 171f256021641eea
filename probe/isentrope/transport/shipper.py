"""The side process that delivers a spool to the server and writes the requested control for the
training process.

    python -m isentrope.transport.shipper DIR

It runs beside the training process and after it, until everything is acknowledged. It reads its
token from the environment or the home at each attempt, retries as long as the training process
runs, and never drops a record."""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Before anything imports grpc: its fork handlers are for processes that fork, and this one never
# does.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from isentrope.transport.connection import ServerAway, ServerRefuses, TelemetryConnection, TooSlow
from isentrope.transport.files import (
    ProcessLock,
    is_held_by_another_process,
    read_tally,
    write_document,
)
from isentrope.transport.spool_folder import (
    ControlFile,
    ShipperState,
    ShipperStatus,
    SpoolEnd,
    SpoolError,
    SpoolFolder,
    drop_delivered,
)
from isentrope.transport.spool_reader import KILLED, SpoolReader
from isentrope_wire import environment
from isentrope_wire.backoff import Backoff
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.numbers import printable
from isentrope_wire.reports import ControlSnapshot

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 600.0
DRAIN_VARIABLE = "ISENTROPE_DRAIN_SECONDS"

TORN_END = (
    "half a record is left, and nothing says that its training process has ended. Deliver it from"
    " where the process runs; or, if it has ended, with `isentrope sync --final`"
)

EXIT_DELIVERED = 0
EXIT_GAVE_UP = 1
EXIT_NO_SPOOL = 2
EXIT_OTHER_SHIPPER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipperSettings:
    """Sizes and pauses of a shipper."""

    batch_records: int = 250
    """Records of a backlog in one Push: they share one COMMIT of the server."""
    batch_bytes: int = 1024 * 1024
    """Halved each time a batch was not answered in time; at least one record, of any size."""
    poll_seconds: float = 0.05
    """Between two looks at an empty spool: the longest a report waits before it is sent."""
    drain_seconds: float = DRAIN_SECONDS
    """After the training process's end: without any success for so long, the shipper leaves the
    rest on disk."""
    longest_pause_seconds: float = 5.0
    """Between attempts to reach a server that is away: once it is back, reports arrive soon."""
    longest_hold_seconds: float = 30.0
    """Between attempts at a server that refuses: a person has to correct that."""
    waits_when_refused: bool = True
    """Whether to wait after a refusal: beside a training run it may be corrected, in a `sync` it
    will not."""
    keep_seconds: float = 0.0
    torn_end_is_lost: bool = True
    """Whether a record that is torn at the end of a spool without a file `end` is a gap. In a copy
    of a spool whose training process runs on another machine it is not."""
    tally: int | None = None
    """Descriptor of the training process's `Tally`: the last record it has handed over."""


class Shipper:
    """Delivers one spool folder."""

    def __init__(
        self,
        folder: SpoolFolder,
        settings: ShipperSettings,
        *,
        target: str | None = None,
        find_token: Callable[[], str | None] = environment.token,
    ) -> None:
        """`find_token` is called before each attempt, so that a corrected token takes effect.
        SpoolError: `folder` is no spool folder."""
        self._folder = folder
        self._settings = settings
        self._find_token = find_token
        self._run = folder.run()
        self._given_target = target
        earlier = ShipperStatus.read(folder.status)
        self._reader = SpoolReader(
            folder.path,
            earlier.acked_through if earlier is not None else 0,
            keep_seconds=settings.keep_seconds,
        )
        self._unwritten_control: ControlSnapshot | None = None
        self._away = Backoff(longest_seconds=settings.longest_pause_seconds)
        self._refused = Backoff(longest_seconds=settings.longest_hold_seconds)
        self._status = ShipperStatus(pid=os.getpid())
        self._note = ""
        self._last_success_at = time.monotonic()
        self._trainer_gone_at: float | None = None
        self._reached = False
        self._control_error_logged = False
        self._batch_bytes = settings.batch_bytes

    def run(self) -> ShipperStatus:
        """Deliver until the training process is gone and everything is acknowledged, or the drain
        limit is over.
        OSError: the folder vanished; ServerRefuses: only where the settings say not to wait."""
        self._set_status(ShipperState.STARTING)
        while not self._gave_up():
            try:
                self._deliver_over_one_connection()
            except ServerRefuses as error:
                if not self._settings.waits_when_refused:
                    self._set_status(ShipperState.GAVE_UP, str(error))
                    raise
                self._pause(ShipperState.HOLDING, error)
            except ServerAway as error:
                self._pause(ShipperState.RETRYING, error)
            except OSError as error:
                if not self._folder.exists:
                    raise
                # Too many open files, no memory, a failing disk: as with the server, the next
                # attempt may succeed.
                self._pause(ShipperState.RETRYING, error)
            else:
                if self._ends_are_final or not self._reader.ends_torn:
                    self._reader.discard_last_segment()
                    self._set_status(ShipperState.DRAINED)
                else:
                    self._set_status(ShipperState.GAVE_UP, TORN_END)
                return self._status
        self._set_status(ShipperState.GAVE_UP, self._status.error)
        return self._status

    def _deliver_over_one_connection(self) -> None:
        """Return when there is nothing left to deliver and nothing more will come; ServerAway,
        ServerRefuses: try again from Hello."""
        target = self._given_target or self._folder.grpc_target()
        try:
            token = self._find_token()
        except ConfigurationError as error:  # its file is missing, or is being written
            raise ServerRefuses(str(error)) from error
        with TelemetryConnection(target, token, self._run) as connection:
            acked_through = self._say_hello(connection)
            self._reached = True
            logger.info("Connected to %s; the server has records up to %d.", target, acked_through)
            self._reader.resume_after(acked_through)
            self._acknowledge(acked_through)
            connection.watch()
            while True:
                if connection.control_changed.is_set():
                    connection.control_changed.clear()
                    self._say_hello(connection)
                self._write_control()
                # Checked before reading: the last records of a process that has just ended must
                # still be read.
                trainer_gone = self._trainer_is_gone()
                if self._push_next(connection, trainer_gone=trainer_gone):
                    continue
                if trainer_gone:
                    return
                self._succeed()
                connection.check_watch()
                time.sleep(self._settings.poll_seconds)

    def _push_next(self, connection: TelemetryConnection, *, trainer_gone: bool) -> bool:
        batch = self._reader.next_batch(self._settings.batch_records, self._batch_bytes)
        if not batch and trainer_gone and self._ends_are_final:
            end = self._folder.read_end() or self._end_of_killed_trainer()
            batch = self._reader.missing_at_the_end(end)
        if not batch:
            return False
        if self._reader.misses_files and self._was_delivered_by_another(connection):
            return True
        try:
            acked_through, quarantined = connection.push(batch)
        except TooSlow:
            if len(batch) > 1:
                self._batch_bytes = max(sum(len(record.payload) for record in batch) // 2, 1)
                # A smaller batch is another attempt, with its own time.
                self._last_success_at = time.monotonic()
            raise
        for item in quarantined:
            logger.error(
                "The server could not use record %d (%s): %s",
                item.seq,
                item.code,
                printable(item.message),
            )
        if acked_through < batch[-1].seq:
            raise ServerAway(
                f"Records up to {batch[-1].seq} were sent, the server has stored them up to"
                f" {acked_through} only."
            )
        # In small steps: over a slow link each batch that is too large again costs its whole
        # timeout.
        self._batch_bytes = min(
            self._batch_bytes + self._batch_bytes // 8 + 1, self._settings.batch_bytes
        )
        self._succeed()
        self._acknowledge(acked_through)
        return True

    def _was_delivered_by_another(self, connection: TelemetryConnection) -> bool:
        """Whether the files that are missing were delivered by a shipper whose lock is not seen
        here: it removes them once the server has their records. Goes on behind them then."""
        self._reader.misses_files = False
        acked_through = self._say_hello(connection)
        if acked_through <= self._reader.acked_through:
            return False
        self._reader.resume_after(acked_through)
        self._acknowledge(acked_through)
        return True

    def _end_of_killed_trainer(self) -> SpoolEnd | None:
        """How the spool would have ended: what was handed over and is not on disk is a gap. None
        where this is not known."""
        if self._settings.tally is None:
            return None
        end = SpoolEnd(read_tally(self._settings.tally), KILLED)
        with contextlib.suppress(OSError):
            # For the next shipper, if this one does not deliver it.
            write_document(self._folder.end, end)
        return end

    @property
    def _ends_are_final(self) -> bool:
        return self._settings.torn_end_is_lost or self._folder.read_end() is not None

    def _acknowledge(self, acked_through: int) -> None:
        self._reader.acknowledge(acked_through)
        self._set_status(ShipperState.DELIVERING)

    def _say_hello(self, connection: TelemetryConnection) -> int:
        """The last record that the server has; the requested control is kept for
        `_write_control`."""
        acked_through, control = connection.hello()
        self._note = connection.note
        if control is not None:
            method = control.unreadable or control.control.method
            logger.info(
                "Control version %d by %s: %s.", control.version, printable(control.author), method
            )
            self._unwritten_control = control
        return acked_through

    def _write_control(self) -> None:
        """Hand the requested control to the training process; a full disk is tried again at the
        next call."""
        if self._unwritten_control is None:
            return
        try:
            ControlFile(self._folder.control).write(self._unwritten_control)
        except OSError as error:
            if not self._control_error_logged:
                logger.error(
                    "The control can't be written for the training process yet: %s.", error
                )
            self._control_error_logged = True
            return
        self._unwritten_control, self._control_error_logged = None, False

    def _succeed(self) -> None:
        self._last_success_at = time.monotonic()
        self._away.reset()
        self._refused.reset()

    def _pause(self, state: ShipperState, error: OSError) -> None:
        # The same error for hours is logged once.
        if str(error) != self._status.error:
            logger.log(
                logging.ERROR if state is ShipperState.HOLDING else logging.WARNING,
                "%s: %s",
                state,
                error,
            )
        self._set_status(state, str(error))
        backoff = self._away
        if state is ShipperState.HOLDING:
            backoff = self._refused
        end = time.monotonic() + backoff.next_pause_seconds()
        while time.monotonic() < end and not self._gave_up():
            time.sleep(self._settings.poll_seconds)

    def _gave_up(self) -> bool:
        if not self._trainer_is_gone() or self._trainer_gone_at is None:
            return False
        if self._status.state is ShipperState.HOLDING and self._folder.wanted.exists():
            # It may have a token that this process can't see.
            return True
        idle_since = max(self._trainer_gone_at, self._last_success_at)
        return time.monotonic() - idle_since > self._settings.drain_seconds

    def _trainer_is_gone(self) -> bool:
        if self._trainer_gone_at is None and not self._trainer_lives():
            logger.info(
                "The training process has ended; what its spool still has is to be delivered."
            )
            self._trainer_gone_at = time.monotonic()
        return self._trainer_gone_at is not None

    def _trainer_lives(self) -> bool:
        if is_held_by_another_process(self._folder.trainer_lock):
            return True
        # The lock of a folder that is away for a moment is not seen either: no end of a training.
        if not self._folder.exists:
            raise FileNotFoundError(
                errno.ENOENT, "the spool's folder is not there", str(self._folder.path)
            )
        return is_held_by_another_process(self._folder.trainer_lock)

    def _set_status(self, state: ShipperState, error: str = "") -> None:
        acked_through = self._reader.acked_through
        if (state, acked_through, error) == (
            self._status.state,
            self._status.acked_through,
            self._status.error,
        ):
            return
        self._status = ShipperStatus(
            state=state,
            acked_through=acked_through,
            error=error,
            pid=os.getpid(),
            reached=self._reached,
            lost_by_the_server=self._reader.lost_by_the_server,
            note=self._note,
        )
        try:
            write_document(self._folder.status, self._status)
        except OSError as failure:
            # On a full disk delivering continues: it frees space.
            logger.warning("The status file can't be written: %s.", failure)


def ship(
    folder: SpoolFolder,
    settings: ShipperSettings,
    *,
    target: str | None = None,
    find_token: Callable[[], str | None] = environment.token,
) -> ShipperStatus | None:
    """Deliver a folder to `target`, else to the server it names; delivered, it is removed, or kept
    in its home's `delivered` for a while. The last status; None where another shipper delivers it,
    or did until now. SpoolError: it is no spool folder; ServerRefuses: only where the settings say
    not to wait."""
    shipper = Shipper(folder, settings, target=target, find_token=find_token)
    lock = ProcessLock(folder.shipper_lock)
    if not lock.acquire():
        return None
    try:
        # The shipper that held the lock until now may have delivered everything.
        status = None
        if folder.exists:
            status = shipper.run()
        if status is not None and status.state is ShipperState.DRAINED:
            folder.retire()
    finally:
        lock.release()
    if folder.home is not None:
        drop_delivered(folder.home, settings.keep_seconds)
    return status


def main() -> int:
    """Parse the command line and deliver; the exit status, one of the EXIT constants."""
    parser = argparse.ArgumentParser(
        prog="python -m isentrope.transport.shipper", description=__doc__
    )
    parser.add_argument("folder", type=Path, help="the spool folder of one rank")
    parser.add_argument("--tally", type=int, help="descriptor of the last record's number")
    arguments = parser.parse_args()
    folder = SpoolFolder(arguments.folder)
    try:
        folder.run()
        _log_into(folder.log)
        drain_seconds = float(os.environ.get(DRAIN_VARIABLE) or DRAIN_SECONDS)
        keep_seconds = environment.keep_delivered_seconds()
        settings = ShipperSettings(
            drain_seconds=drain_seconds, keep_seconds=keep_seconds, tally=arguments.tally
        )
        status = ship(folder, settings)
    except (SpoolError, ConfigurationError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_NO_SPOOL
    except FileNotFoundError:
        if folder.exists:
            raise
        # There is no place for a log. A training process that lives makes the folder anew, and
        # starts another shipper.
        return EXIT_NO_SPOOL
    if status is None:
        return EXIT_OTHER_SHIPPER
    if status.state is ShipperState.DRAINED:
        return EXIT_DELIVERED
    return EXIT_GAVE_UP


def _log_into(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=512 * 1024, backupCount=1, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    sys.exit(main())
