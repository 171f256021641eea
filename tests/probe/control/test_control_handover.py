"""Controls on their way to the training process: the newest stands in the file, whatever threads and disks do."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from isentrope.transport.spool_folder import ControlFile, ControlHandover
from isentrope_wire.control import Control
from isentrope_wire.reports import ControlSnapshot


def version(number: int) -> ControlSnapshot:
    return ControlSnapshot(version=number, control=Control(), author="ada", requested_at=1.0)


class FileOnABadDisk(ControlFile):
    """Has no room while `has_room` is unset; then each write of the first version lasts until another was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_room = True
        self.first_is_being_written = threading.Event()
        self._another_was_written = threading.Event()

    def write(self, snapshot: ControlSnapshot) -> None:
        if not self.has_room:
            raise OSError(errno.ENOSPC, "No space left on device")
        if snapshot.version == 1:
            self.first_is_being_written.set()
            self._another_was_written.wait(0.5)
        super().write(snapshot)
        self._another_was_written.set()


def test_an_older_control_that_waited_for_room_never_overwrites_a_newer_one(tmp_path: Path) -> None:
    file = FileOnABadDisk(tmp_path / "control")
    handover = ControlHandover(file)
    file.has_room = False
    handover.receive(version(1))
    assert file.read() is None
    file.has_room = True
    retrying = threading.Thread(target=handover.retry)
    retrying.start()
    assert file.first_is_being_written.wait(30.0)
    handover.receive(version(2))
    retrying.join()
    handover.retry()
    assert file.read() == version(2)


def test_an_older_control_that_comes_late_is_ignored(tmp_path: Path) -> None:
    file = ControlFile(tmp_path / "control")
    handover = ControlHandover(file)
    handover.receive(version(5))
    handover.receive(version(4))
    assert file.read() == version(5)


def test_a_server_that_counts_from_an_earlier_version_is_believed_once_it_is_connected_to_anew(tmp_path: Path) -> None:
    file = ControlFile(tmp_path / "control")
    handover = ControlHandover(file)
    handover.receive(version(5))
    handover.connecting()
    handover.receive(version(3))
    assert file.read() == version(3)


def test_a_control_there_was_no_room_for_is_handed_over_once_there_is(tmp_path: Path) -> None:
    file = FileOnABadDisk(tmp_path / "control")
    handover = ControlHandover(file)
    file.has_room = False
    handover.receive(version(7))
    handover.retry()
    assert file.read() is None
    file.has_room = True
    handover.retry()
    assert file.read() == version(7)
