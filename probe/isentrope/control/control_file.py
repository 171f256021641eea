"""The desired control as a file in the spool folder: the shipper writes it, the training process reads it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from isentrope.atomic_file import write_atomically
from isentrope_wire.control import Control
from isentrope_wire.errors import CodecError, ControlError
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
        write_atomically(self._path, json.dumps(_to_document(snapshot)).encode())

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
            self._newest = _from_document(content)
        except CodecError as error:
            logger.warning("%s is ignored, the control in force stays: %s", self._path, error)
        return self._newest


def _to_document(snapshot: ControlSnapshot) -> dict[str, object]:
    return {
        "version": snapshot.version,
        "control": snapshot.control.to_document(),
        "author": snapshot.author,
        "requested_at": snapshot.requested_at,
        "expires_at": snapshot.expires_at,
    }


def _from_document(content: bytes) -> ControlSnapshot:
    try:
        document = json.loads(content)
        expires_at = document["expires_at"]
        return ControlSnapshot(
            version=_version(document["version"]),
            control=Control.from_document(document["control"]),
            author=str(document["author"]),
            requested_at=float(document["requested_at"]),
            expires_at=None if expires_at is None else float(expires_at),
        )
    except ControlError as error:
        raise CodecError(f"the control in it can't be applied: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        # json.JSONDecodeError and UnicodeDecodeError are ValueErrors.
        raise CodecError(f"expected a control snapshot as JSON, got {content[:80]!r} ({error}).") from error


def _version(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"a control's version is a whole number from 0 on, got {value!r}")
    return value
