"""The desired control as a file in the spool folder: the shipper writes it, the training process reads it."""

from __future__ import annotations

import logging
from pathlib import Path

from isentrope.atomic_file import write_atomically
from isentrope.control.snapshot_document import decode_snapshot, encode_snapshot
from isentrope_wire.errors import CodecError
from isentrope_wire.messages import ControlSnapshot

logger = logging.getLogger(__name__)


class ControlFile:
    """One control snapshot on disk. Content that can't be read leaves the last good snapshot standing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest: ControlSnapshot | None = None
        self._fingerprint: tuple[int, int, int] | None = None

    def write(self, snapshot: ControlSnapshot) -> None:
        """Replace the file's content.

        Raises:
            OSError: the spool folder is gone, read-only or full.
        """
        write_atomically(self._path, encode_snapshot(snapshot))

    def read(self) -> ControlSnapshot | None:
        """The newest snapshot that could be read; None before there is one. One `stat` when nothing changed."""
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
            self._newest = decode_snapshot(content)
        except CodecError as error:
            logger.warning("%s is ignored, the control in force stays: %s", self._path, error)
        return self._newest
