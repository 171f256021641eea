"""Files that two processes share: a lock that is held as long as a process lives, a number that
outlives it, and files that are replaced whole."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import struct
from pathlib import Path
from typing import TypeVar

from isentrope_wire.numbers import document_of, read

_T = TypeVar("_T")


class ProcessLock:
    """An exclusive lock on a file, released by the system when its process ends, however it ends.

    A POSIX record lock, not `flock`: a forked child (a DataLoader's worker) must not keep its
    parent alive by inheriting the lock. In return it does not exclude a second lock within one
    process, and closing any other descriptor of the same file in this process would release it. So
    nothing else opens these files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock without waiting; False where another process holds it. OSError: the file
        can't be opened, or its file system has no locks."""
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
        """Whether the lock is held and its file still has its name."""
        return self._descriptor is not None and is_at(self._path, self._descriptor)

    def take_again(self) -> None:
        """Lock a file of this name again where the locked one lost it; at no moment does it look
        free. OSError: as `acquire`."""
        if self.is_in_place:
            return
        draft = ProcessLock(self._path.with_name(f".{self._path.name}.{os.getpid()}"))
        if draft.acquire():
            os.replace(draft._path, self._path)
            self.release()
            self._descriptor = draft._descriptor

    def release(self) -> None:
        """Release the lock; does nothing when it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_COUNT = struct.Struct("@Q")


class Tally:
    """A number that one process sets and another, which inherits `descriptor`, reads after its end,
    however it ended. In memory: setting it waits for no disk and makes no system call."""

    def __init__(self) -> None:
        """OSError: there is no memory."""
        self.descriptor = os.memfd_create("isentrope-tally")
        try:
            os.ftruncate(self.descriptor, _COUNT.size)
            self._numbers = memoryview(mmap.mmap(self.descriptor, _COUNT.size)).cast("Q")
        except OSError:
            os.close(self.descriptor)
            raise

    def set(self, number: int) -> None:
        self._numbers[0] = number

    def close(self) -> None:
        """Leave it to who inherited it."""
        os.close(self.descriptor)


def read_tally(descriptor: int) -> int:
    """What was set last; OSError: it can't be read."""
    (number,) = _COUNT.unpack(os.pread(descriptor, _COUNT.size, 0))
    return int(number)


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def is_held_by_another_process(path: Path) -> bool:
    """Whether another process holds the lock on `path`; False where there is no such file. OSError:
    as `ProcessLock.acquire`."""
    try:
        # Without O_CREAT: the folder may be about to be removed.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_atomically(
    path: Path, content: bytes, *, lasting: bool = False, mode: int = 0o600
) -> None:
    """Replace `path`, of which there is one writer at a time. Unless `lasting`, which flushes the
    content to the disk first, the file may be torn after a power cut, and its reader must withstand
    that. `mode`, less the umask, says who may read it. OSError: the folder is gone, read-only or
    full."""
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


def write_document(path: Path, value: object, *, lasting: bool = False) -> None:
    """`write_atomically` of a dataclass as JSON."""
    write_atomically(path, json.dumps(document_of(value)).encode(), lasting=lasting)


def read_document(kind: type[_T], path: Path) -> _T | None:
    """The dataclass in a file; None where there is none that can be read."""
    try:
        return read(kind, json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None
