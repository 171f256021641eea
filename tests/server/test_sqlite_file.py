"""SQLite only where it is safe."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import OperationalError

from isentrope_server import backend
from isentrope_server.errors import StartupError
from isentrope_server.settings import Settings
from isentrope_server.store.database import (
    Database,
    NetworkFileSystem,
    check_file_system,
    upgrade,
)
from isentrope_server.store.tables import deleted_runs
from isentrope_server.store.writer import Event, Transaction, Writer
from isentrope_wire.environment import file_system_of
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank
from tests.server.test_store import add, ids


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'test.db'}")
    with database.writing_engine.begin() as connection:
        upgrade(connection)
    yield database
    database.close()


MOUNTS = """\
overlay / overlay rw 0 0
/dev/sda1 /home ext4 rw 0 0
server:/vol /home/ada nfs4 rw 0 0
server:/vol /mnt/with\\040blank cifs rw 0 0
tmpfs /home/ada/fast tmpfs rw 0 0
"""


def test_a_file_has_one_server(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "one")
    settings = Settings(home=tmp_path / "one", token=None)
    other = Settings(home=tmp_path, token=None, database_url=f"sqlite:///{link}/isentrope.db")

    async def start() -> None:
        async with backend.open_backend(settings):
            with pytest.raises(StartupError, match="another home already uses"):
                await backend.open_backend(other).__aenter__()
        async with backend.open_backend(other):
            pass

    asyncio.run(start())


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    file = tmp_path / "mounts"
    file.write_text(MOUNTS)
    return file


@pytest.mark.parametrize("home", ["/home/ada/.isentrope", "/mnt/with blank/home"])
def test_a_database_on_a_network_file_system_is_refused(mounts: Path, home: str) -> None:
    with pytest.raises(NetworkFileSystem, match="PostgreSQL"):
        check_file_system(Path(home) / "isentrope.db", mounts)


@pytest.mark.parametrize(
    ("home", "kind"),
    [
        ("/home/grace", "ext4"),
        ("/home/ada/fast/x", "tmpfs"),
        ("/home/adam", "ext4"),
        ("/srv", "overlay"),
    ],
)
def test_a_local_disk_is_fine_and_the_nearest_mount_counts(
    mounts: Path, home: str, kind: str
) -> None:
    assert file_system_of(Path(home) / "isentrope.db", mounts) == kind
    check_file_system(Path(home) / "isentrope.db", mounts)


def test_unknown_file_system_is_not_refused(tmp_path: Path) -> None:
    check_file_system(tmp_path / "isentrope.db", tmp_path / "no such file")


def test_every_connection_is_durable_and_readers_cannot_write(database: Database) -> None:
    def pragma(connection: Connection, name: str) -> object:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar()

    with database.writing_engine.connect() as connection:
        assert (pragma(connection, "journal_mode"), pragma(connection, "synchronous")) == ("wal", 2)
        assert pragma(connection, "foreign_keys") == 1
    with database.reading() as connection, pytest.raises(OperationalError, match="readonly"):
        connection.execute(insert(deleted_runs).values(id="x", deleted_at=0.0, deleted_by=""))


def test_failed_commit_reaches_every_caller_and_the_writer_continues(database: Database) -> None:
    announced: list[Event] = []
    writer = Writer(database.writing_engine, announced.extend)

    def breaks_the_commit(transaction: Transaction) -> None:
        transaction.connection.execute(text("PRAGMA defer_foreign_keys = ON"))
        transaction.connection.execute(
            text("INSERT INTO gaps (stream_key, first_seq, last_seq, reason) VALUES (99, 1, 2, '')")
        )

    writer.start()
    hold = threading.Event()
    writer.submit(lambda transaction: hold.wait(5))
    innocent = writer.submit(lambda transaction: add("innocent", transaction))
    guilty = writer.submit(breaks_the_commit)
    hold.set()
    for future in (innocent, guilty):
        with pytest.raises(Exception, match="FOREIGN KEY"):
            future.result(timeout=5)
    assert ids(database) == set()
    assert announced == []
    assert writer.submit(lambda transaction: add("later", transaction)).result(timeout=5) == "later"
    writer.stop()


@pytest.mark.parametrize("name", ["isentrope.db", "of another name.db", None])
def test_only_its_owner_can_read_a_new_database_wherever_it_lies(
    tmp_path: Path, name: str | None
) -> None:
    # Without a name: the database of a home whose path means something in a URL.
    home, url = (
        tmp_path / "home?a=b%20c",
        f"sqlite:///{tmp_path}/elsewhere/{name}" if name else None,
    )
    (tmp_path / "elsewhere").mkdir()
    before = os.umask(0o022)
    try:
        with ServerInThread(home, database_url=url) as server:
            Rank(server).report(0, x=1.0)
            name, folder = name or "isentrope.db", tmp_path / "elsewhere" if name else home
            found = sorted(folder.glob(f"{name}*"))
            assert [file.name for file in found] == [
                name,
                *(f"{name}{suffix}" for suffix in ("-shm", "-wal", ".lock")),
            ]
            assert {file.stat().st_mode & 0o777 for file in found} == {0o600}
    finally:
        os.umask(before)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "isentrope.db"
    with sqlite3.connect(file) as large:
        large.execute("CREATE TABLE large (bytes BLOB)")
        large.executemany("INSERT INTO large VALUES (randomblob(?))", [(1 << 20,)] * 200)
    database = Database(f"sqlite:///{file}")
    with database.reading() as connection:
        before = mapped_mebibytes()
        rows = connection.exec_driver_sql("SELECT count(instr(bytes, x'00112233')) FROM large")
        assert rows.scalar_one() == 200
        more = mapped_mebibytes() - before
    database.close()
    assert 32 < more < 80


def mapped_mebibytes() -> float:
    """What this process has of files in memory."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssFile:")[2].split()[0]) / 1024


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SQLITE_IOERR_WRITE", "takes no writes: it is full, mounted read only, over a quota"),
        ("SQLITE_READONLY", "takes no writes: it is full, mounted read only, over a quota"),
        ("SQLITE_CANTOPEN", "Check the file and its permissions"),
    ],
)
def test_a_disk_that_refuses_writes_is_named_at_the_start(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = sqlite3.OperationalError("disk I/O error")
    cause.sqlite_errorname = name

    def refuse(_connection: Connection) -> None:
        raise OperationalError("PRAGMA", {}, cause)

    monkeypatch.setattr(backend, "upgrade", refuse)
    settings = Settings(home=tmp_path)
    database = Database(settings.resolved_database_url)
    with pytest.raises(StartupError, match=said):
        backend._migrate(database, settings)
    database.close()
