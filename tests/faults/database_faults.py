"""SQLite's file is removed, replaced or restored from a backup under the server."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.faults.oracle import Verdict
from tests.faults.stage import Stage, Trainer
from tests.system.running_server import wait_for

KEPT = {"ISENTROPE_KEEP_DELIVERED": "1d"}


def database_file_lost(stage: Stage) -> Verdict:
    """The file is removed under the server, then replaced by an old copy: it acknowledges nothing
    more, and the next start gets all."""
    database, copy = stage.server.home / "isentrope.db", stage.folder / "copy.db"
    trainer = stage.running_trainer("homeless", environment=KEPT)
    command(stage, "backup", str(copy))
    for replaced in (False, True):
        _report_further(trainer)
        for file in () if replaced else database.parent.glob("isentrope.db*"):
            file.unlink()
        if replaced:
            copy.rename(database)
        wait_for(lambda: _cause(stage) == "database_file", 10.0, "the server is not ready")
        _report_further(trainer)
        stage.server.kill()
        for suffix in ("-wal", "-shm"):
            database.with_name(f"{database.name}{suffix}").unlink(missing_ok=True)
        stage.server.start()
        stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def wal_removed(stage: Stage) -> Verdict:
    """SQLite's -wal is removed under the server, which is killed: it acknowledges nothing more, and
    the next start gets all."""
    database = stage.server.home / "isentrope.db"
    trainer = stage.running_trainer("logless", environment=KEPT)
    _report_further(trainer)
    database.with_name(f"{database.name}-wal").unlink()
    wait_for(lambda: _cause(stage) == "database_file", 10.0, "the server is not ready")
    _report_further(trainer)
    stage.server.kill()
    stage.server.start()
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def acknowledged_and_gone(stage: Stage) -> Verdict:
    """The database loses what it had acknowledged of a run that is over: after the next start it is
    a gap, and `sync` brings back what the home has kept."""
    home = stage.folder / "home-over"
    trainer = stage.running_trainer("over", home=home, environment=KEPT)
    command(stage, "backup", str(stage.folder / "copy.db"))
    _report_further(trainer)
    trainer.stop()
    trainer.finish()
    stage.expect_delivery(trainer)
    time.sleep(2.5)  # the file is as of the last second
    stage.server.kill()
    for suffix in ("", "-wal", "-shm"):
        (stage.server.home / f"isentrope.db{suffix}").unlink(missing_ok=True)
    (stage.folder / "copy.db").rename(stage.server.home / "isentrope.db")
    stage.server.start()
    (gap,) = stage.api.get("/runs/over/gaps").json()["items"]
    (stream,) = stage.oracle.truth.streams("over").values()
    given = stage.server.environment | {"ISENTROPE_HOME": str(home)}
    subprocess.run(
        [sys.executable, "-m", "isentrope", "sync"], env=given, check=True, capture_output=True
    )
    verdict = stage.verdict_on([trainer.ledger])
    last = len(trainer.ledger.offers) + 1
    covered = (gap["first_seq"], gap["last_seq"])
    verdict.require(covered == (stream.acked_through + 1, last), f"the gap was {gap}")
    verdict.require("had acknowledged" in gap["reason"], f"the gap was {gap}")
    verdict.require(stage.api.get("/runs/over/gaps").json()["items"] == [], "a gap is left")
    verdict.require("no longer all that was acknowledged" in stage.server.log, "no line says so")
    verdict.hold()
    return verdict


def database_restored_from_backup(stage: Stage) -> Verdict:
    """A backup is brought back: living runs send again what it lacks by themselves, `isentrope
    sync` those that ended since."""
    home = stage.folder / "home-ended"
    trainer = stage.running_trainer("living", environment=KEPT)
    command(stage, "backup", str(stage.folder / "backup.db"))
    ended = stage.start_trainer(
        stage.plan("ended", steps=60, step_seconds=0.0), home=home, environment=KEPT
    )
    ended.finish()
    stage.expect_delivery(ended)
    _report_further(trainer)
    stage.server.kill()
    command(stage, "restore", str(stage.folder / "backup.db"))
    stage.server.start()
    stage.expect_a_fresh_report(trainer)
    given = stage.server.environment | {"ISENTROPE_HOME": str(home)}
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "isentrope", "sync"], env=given, check=True, capture_output=True
        )
    verdict = stage.judge(trainer)
    verdict += stage.verdict_on([ended.ledger])
    return verdict


def command(stage: Stage, *words: str) -> None:
    """Do what a person would do beside the server."""
    given = stage.server.environment | {"ISENTROPE_HOME": str(stage.server.home)}
    subprocess.run(
        [sys.executable, "-m", "isentrope", *words], env=given, check=True, capture_output=True
    )


def _report_further(trainer: Trainer) -> None:
    """Some segments' worth of reports, which are delivered where the server takes them."""
    trainer.wait_until_accepted(trainer.ledger.accepted_steps[-1] + 50)
    time.sleep(0.5)


def _cause(stage: Stage) -> str | None:
    answer = stage.api.get(f"{stage.server.url}/readyz")
    return None if answer.is_success else str(answer.json()["error"]["details"]["cause"])
