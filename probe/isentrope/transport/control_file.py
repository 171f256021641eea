"""The requested control on its way from the shipper to the training process: a small file in the spool folder.

    file    = deadline (float64), CRC-32 of the snapshot (uint32), snapshot (protobuf, see `isentrope_wire.codec`)

The deadline is the moment of the monotonic clock at which the control expires, NaN where it does not. Both processes
share that clock and nobody sets it, so a time to live holds also when the time of day is set back between the writing
and the step that follows.
"""

from __future__ import annotations

import logging
import math
import struct
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path

from isentrope.transport.files import write_atomically
from isentrope_wire.codec import decode_control, encode_control
from isentrope_wire.errors import CodecError
from isentrope_wire.reports import ControlSnapshot

logger = logging.getLogger(__name__)

_HEADER = struct.Struct("<dI")
_DRIFT_SECONDS = 0.1


def monotonic_deadline(snapshot: ControlSnapshot) -> float:
    """The monotonic clock's time, in seconds, at which a snapshot received now expires; NaN: never."""
    return math.nan if snapshot.expires_at is None else time.monotonic() + (snapshot.expires_at - time.time())


class ControlFile:
    """One control snapshot on disk. Content that can't be read changes nothing: the last good snapshot stays."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest: ControlSnapshot | None = None
        self._deadline = math.nan
        self._fingerprint: tuple[int, int, int] | None = None

    def write(self, snapshot: ControlSnapshot, deadline: float = math.nan) -> None:
        """Replace the file's content.

        Args:
            snapshot: the requested control.
            deadline: `monotonic_deadline` of the snapshot when it was received, in seconds.

        Raises:
            OSError: the spool folder is gone, read-only or full.
        """
        content = encode_control(snapshot)
        write_atomically(self._path, _HEADER.pack(deadline, zlib.crc32(content)) + content)

    def read(self) -> ControlSnapshot | None:
        """Read the newest snapshot; costs one `stat` when the file has not changed.

        Returns:
            The snapshot, None before there is one. It expires by the time of day or by the monotonic clock, whichever
            comes first.
        """
        self._read()
        newest = self._newest
        if newest is None or newest.expires_at is None or math.isnan(self._deadline):
            return newest
        expires_at = time.time() + (self._deadline - time.monotonic())
        # The two differ by some milliseconds while the time of day is being kept right.
        return newest if expires_at > newest.expires_at - _DRIFT_SECONDS else replace(newest, expires_at=expires_at)

    def _read(self) -> None:
        try:
            status = self._path.stat()
            fingerprint = (status.st_ino, status.st_mtime_ns, status.st_size)
            if fingerprint == self._fingerprint:
                return
            content = self._path.read_bytes()
        except OSError:
            # No file yet, or it was removed: nothing new was requested.
            return
        # Remembered before the content is decoded, so that bad content is decoded, and logged, once.
        self._fingerprint = fingerprint
        try:
            self._deadline, self._newest = _decoded(content)
        except CodecError as error:
            logger.warning("%s is ignored, the active control stays: %s", self._path, error)


def _decoded(content: bytes) -> tuple[float, ControlSnapshot]:
    # A file torn by a power cut could otherwise be read as a control that lacks its last fields.
    deadline, checksum = _HEADER.unpack_from(content) if len(content) > _HEADER.size else (math.nan, 0)
    snapshot = content[_HEADER.size :]
    if not snapshot or zlib.crc32(snapshot) != checksum:
        raise CodecError(f"expected a control snapshot with its checksum, got {len(content)} other bytes.")
    return deadline, decode_control(snapshot)


class ControlHandover:
    """Writes the control file, for several threads. What a full disk refused is written by `retry`."""

    def __init__(self, file: ControlFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._newest_version = 0
        self._unwritten: ControlSnapshot | None = None
        self._deadline = math.nan
        self._logged_error = ""

    def connecting(self) -> None:
        """Accept any version from the server: after its database was restored it counts from an earlier one."""
        with self._lock:
            self._newest_version = 0

    def receive(self, snapshot: ControlSnapshot) -> None:
        """Write a control to the file, unless a newer one was received before it over this connection."""
        with self._lock:
            if snapshot.version < self._newest_version:
                logger.info(
                    "Control version %d was received after version %d: ignored.", snapshot.version, self._newest_version
                )
                return
            self._newest_version = snapshot.version
            self._unwritten = snapshot
            # Taken now, not when the disk has room: the time of day may be set meanwhile.
            self._deadline = monotonic_deadline(snapshot)
            self._write()

    def retry(self) -> None:
        """Write the control that the disk refused, if there is one."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        snapshot = self._unwritten
        if snapshot is None:
            return
        try:
            self._file.write(snapshot, self._deadline)
        except OSError as error:
            if str(error) != self._logged_error:
                logger.error("Control version %d can't be written for the trainer yet: %s.", snapshot.version, error)
            self._logged_error = str(error)
            return
        self._unwritten, self._logged_error = None, ""
