"""The folder a server owns: private, locked against a second server, with the address of its server
in the lock."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from isentrope_server.errors import StartupError
from isentrope_wire.environment import LOCK_NAME, read_lock, server_of


@contextmanager
def locked_home(home: Path, url: str, grpc: str = "") -> Iterator[None]:
    """Lock the home, made where it is missing; the lock holds the addresses, so that others find
    the server.
    StartupError: the home can't be made or written to, or belongs to a running server."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartupError(
            f"The home {home} must be a folder this user can write to: {error.strerror}. "
            "Change its permissions, or set ISENTROPE_HOME to another folder."
        ) from error
    with os.fdopen(descriptor, "r+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refuse_used_home(home, read_lock(lock)) from None
        _write_lock(lock, {"url": url, "pid": os.getpid()} | ({"grpc": grpc} if grpc else {}))
        try:
            yield
        finally:
            _write_lock(lock, None)


@contextmanager
def locked_database(file: Path | None) -> Iterator[None]:
    """Lock SQLite's file, by a file beside it: servers of several homes may name it by its URL.
    StartupError: another one uses it. None: a database server, which has locks of its own."""
    if file is None:
        yield
        return
    real = file.resolve()
    try:
        descriptor = os.open(f"{real}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StartupError(
            f"The database {file} must be in a folder this user can write to: {error.strerror}. "
            "Check the file and its permissions, or set ISENTROPE_HOME or ISENTROPE_DATABASE_URL."
        ) from error
    with os.fdopen(descriptor) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(
                f"A server with another home already uses the database {file}: a file of SQLite "
                "has one server. Stop it, or set ISENTROPE_DATABASE_URL to another file; servers "
                "share a PostgreSQL."
            ) from None
        yield


def check_unlocked(home: Path) -> None:
    """Raise StartupError where the home belongs to a running server. Call it before the ports are
    opened: that server has opened them, too."""
    held = server_of(home)
    if held is not None:
        raise _refuse_used_home(home, held)


def running_server_url(home: Path) -> str | None:
    """The address of the running server of this home; None without one."""
    return (server_of(home) or {}).get("url")


def make_private_file(path: Path) -> None:
    """Make a file that only its owner can read, unless it exists."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, by a rename, so that no reader sees a part of
    it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


def _write_lock(lock: IO[str], held: dict[str, object] | None) -> None:
    lock.seek(0)
    lock.truncate()
    if held is not None:
        json.dump(held, lock)
    lock.flush()


def _refuse_used_home(home: Path, held: dict[str, str]) -> StartupError:
    owner = ""
    if {"pid", "url"} <= held.keys():
        owner = f" (process {held['pid']}, {held['url']})"
    return StartupError(
        f"Another Isentrope server{owner} already uses the home {home}: trainings report to it"
        " as they are. For a second server, set ISENTROPE_HOME to a home of its own and give"
        " it other ports."
    )
