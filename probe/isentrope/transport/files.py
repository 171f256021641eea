"""Files that two processes share: a lock that is held as long as a process lives, and files that are replaced whole."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

_FLOCK = struct.Struct("hhqqi0q")
"""Linux's struct flock: type, whence, start, length, process id."""


class ProcessLock:
    """An exclusive lock on a file, released by the system when its process ends, however it ends.

    A POSIX record lock, not `flock`: a forked child (a DataLoader's worker) must not keep its parent alive by
    inheriting the lock. In return it does not exclude a second lock within one process, and closing any other descriptor
    of the same file in this process would release it. So nothing else opens these files.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock without waiting.

        Returns:
            False where another process holds it.

        Raises:
            OSError: the file can't be opened, or its file system has no locks.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    @property
    def is_in_place(self) -> bool:
        """Whether the locked file still has its name. False also when the lock is not held."""
        return self._descriptor is not None and is_still_at(self._path, self._descriptor)

    def replace(self) -> None:
        """Put another locked file in the place of one that was removed; at no moment does it look free.

        Raises:
            OSError: as `acquire`.
        """
        self.release()
        draft = ProcessLock(self._path.with_name(f".{self._path.name}.{os.getpid()}"))
        if draft.acquire():
            os.replace(draft._path, self._path)
            self._descriptor = draft._descriptor

    def release(self) -> None:
        """Release the lock; does nothing when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_held_by_another_process(path: Path) -> bool:
    """Whether another process holds the lock on `path`.

    Raises:
        OSError: as `ProcessLock.acquire`.
    """
    return bool(another_process_holds(path))


def another_process_holds(path: Path) -> bool | None:
    """As `is_held_by_another_process`; None: there is no such file, so nothing is known.

    Raises:
        OSError: as `ProcessLock.acquire`.
    """
    try:
        # Without O_CREAT: the folder may be about to be removed.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def is_still_at(path: Path, descriptor: int) -> bool:
    """Whether an open file still has its name. Inode numbers are no help: some file systems change them at each look."""
    return os.fstat(descriptor).st_nlink > 0 and path.exists()


def pid_of_holder(path: Path) -> int | None:
    """Find the process that holds the lock on `path`.

    Args:
        path: of the lock.

    Returns:
        Its id. None where no other process holds it, or one in another container or on another machine.

    Raises:
        OSError: as `ProcessLock.acquire`.
    """
    if not path.exists():
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, request))
    finally:
        os.close(descriptor)
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def write_atomically(path: Path, content: bytes, *, lasting: bool = False, mode: int = 0o600) -> None:
    """Replace `path` by `content`.

    Only one writer at a time per path.

    Args:
        path: the file.
        content: all of it.
        lasting: flush the content to the disk first. Otherwise the file may be torn after a power cut, and its reader
            must withstand that.
        mode: who may read it, less what the umask forbids. Default: its owner alone.

    Raises:
        OSError: the folder is gone, read-only or full.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
