"""The desired control as a file in the spool folder: the shipper writes it, the training process reads it.

Beside the time of day at which a change is too late stands the same moment of the monotonic clock, which both processes
share and nobody sets: it holds when the machine's clock is set back between the writing and the step that follows.

Hands each control the server wishes for to the training process, the newest last, whichever thread it comes on.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

from isentrope.control import decode_snapshot, encode_snapshot
from isentrope.transport.files import write_atomically
from isentrope_wire.errors import CodecError
from isentrope_wire.reports import ControlSnapshot

logger = logging.getLogger(__name__)

_DEADLINE = "monotonic_deadline"
_DRIFT_SECONDS = 0.1


def monotonic_deadline(snapshot: ControlSnapshot) -> float | None:
    """Until when the monotonic clock lets a snapshot that came just now begin; None: it has no time to live."""
    return None if snapshot.expires_at is None else time.monotonic() + (snapshot.expires_at - time.time())


class ControlFile:
    """One control snapshot on disk. Content that can't be read leaves the last good snapshot standing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest: ControlSnapshot | None = None
        self._deadline: float | None = None
        self._fingerprint: tuple[int, int, int] | None = None

    def write(self, snapshot: ControlSnapshot, deadline: float | None = None) -> None:
        """Replace the file's content.

        Args:
            deadline: `monotonic_deadline` of the snapshot when it came.

        Raises:
            OSError: the spool folder is gone, read-only or full.
        """
        document = json.loads(encode_snapshot(snapshot))
        write_atomically(self._path, json.dumps(document | {_DEADLINE: deadline}).encode())

    def read(self) -> ControlSnapshot | None:
        """The newest snapshot that could be read; None before there is one. One `stat` when nothing changed.

        Its time to live ends by the time of day or by the monotonic clock, whichever comes first.
        """
        newest = self._read()
        if newest is None or newest.expires_at is None or self._deadline is None:
            return newest
        expires_at = time.time() + (self._deadline - time.monotonic())
        # The two differ by some milliseconds while a clock is being kept right.
        return newest if expires_at > newest.expires_at - _DRIFT_SECONDS else replace(newest, expires_at=expires_at)

    def _read(self) -> ControlSnapshot | None:
        try:
            status = self._path.stat()
            fingerprint = (status.st_ino, status.st_mtime_ns, status.st_size)
            if fingerprint == self._fingerprint:
                return self._newest
            content = self._path.read_bytes()
        except OSError:
            # No file yet, or none any more: nobody asked for anything new.
            return self._newest
        # Remembered before the content is judged, so that bad content is judged, and complained of, once.
        self._fingerprint = fingerprint
        try:
            self._newest, self._deadline = decode_snapshot(content), _deadline_in(content)
        except CodecError as error:
            logger.warning("%s is ignored, the control in force stays: %s", self._path, error)
        return self._newest


def _deadline_in(content: bytes) -> float | None:
    """Of content that `decode_snapshot` could read; an older shipper wrote none."""
    deadline = json.loads(content).get(_DEADLINE)
    return float(deadline) if isinstance(deadline, int | float) else None


class ControlHandover:
    """Writes the control file for threads that take turns. A disk without room is tried again by `retry`."""

    def __init__(self, file: ControlFile) -> None:
        self._file = file
        self._turn = threading.Lock()
        self._newest_version = 0
        self._unwritten: ControlSnapshot | None = None
        self._deadline: float | None = None
        self._trouble = ""

    def connecting(self) -> None:
        """Believe the server anew: one whose database was restored counts its versions from an earlier one."""
        with self._turn:
            self._newest_version = 0

    def receive(self, snapshot: ControlSnapshot) -> None:
        """Put a control where the training process looks, unless a newer one came before it over this connection."""
        with self._turn:
            if snapshot.version < self._newest_version:
                logger.info(
                    "Control version %d comes after version %d: ignored.", snapshot.version, self._newest_version
                )
                return
            self._newest_version = snapshot.version
            self._unwritten = snapshot
            # Now, not when there is room to write it: the clock may be set meanwhile.
            self._deadline = monotonic_deadline(snapshot)
            self._write()

    def retry(self) -> None:
        """Write what there was no room for."""
        with self._turn:
            self._write()

    def _write(self) -> None:
        snapshot = self._unwritten
        if snapshot is None:
            return
        try:
            self._file.write(snapshot, self._deadline)
        except OSError as error:
            if str(error) != self._trouble:
                logger.error("Control version %d can't be handed to the trainer yet: %s.", snapshot.version, error)
            self._trouble = str(error)
            return
        self._unwritten, self._trouble = None, ""
