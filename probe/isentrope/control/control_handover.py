"""Hands each control the server wishes for to the training process, the newest last, whichever thread it comes on."""

from __future__ import annotations

import logging
import threading

from isentrope.control.control_file import ControlFile, monotonic_deadline
from isentrope_wire.messages import ControlSnapshot

logger = logging.getLogger(__name__)


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
