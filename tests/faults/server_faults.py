"""The server is killed, frozen, or dies at a moment chosen to hurt."""

from __future__ import annotations

import random
import sys
import time

from tests.faults.lying_libc import failing_calls
from tests.faults.oracle import Verdict
from tests.faults.stage import Stage, wait_for


def server_killed_at_random(stage: Stage) -> Verdict:
    """kill -9 of the server at moments nobody chose."""
    trainer = stage.start_trainer(stage.plan("killed", steps=100_000, step_seconds=0.005))
    trainer.wait_until_acknowledged()
    for _ in range(2 if stage.short else 12):
        time.sleep(random.uniform(0.2, 1.0))
        stage.server.kill()
        time.sleep(random.uniform(0.0, 0.5))
        stage.server.start()
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def server_killed_before_commit(stage: Stage) -> Verdict:
    """The server dies with everything written and nothing committed."""
    return _dies_at(stage, "before-commit")


def server_killed_after_commit_before_acknowledgement(stage: Stage) -> Verdict:
    """The server dies with everything committed and nobody told."""
    return _dies_at(stage, "after-commit")


def server_killed_at_checkpoint(stage: Stage) -> Verdict:
    """The server dies while SQLite moves its write-ahead log into the database."""
    flag = stage.folder / "checkpoint"
    trainer = stage.start_trainer(stage.plan("checkpoint", steps=100_000, step_seconds=0.004, histograms=8))
    trainer.wait_until_acknowledged()
    for _ in range(1 if stage.short else 5):
        stage.server.kill()
        flag.unlink(missing_ok=True)
        # While the log is on, only a checkpoint writes to the database file itself.
        stage.server.more_environment = failing_calls(
            flag, suffix="isentrope.db", calls="write,sync", kill_at=random.randint(2, 40)
        )
        stage.server.start()
        flag.touch()
        wait_for(lambda: not stage.server.alive, 60.0, "the server died in a checkpoint")
        stage.server.kill()
        stage.server.more_environment = {}
        stage.server.start()
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def _dies_at(stage: Stage, point: str) -> Verdict:
    trainer = stage.start_trainer(stage.plan(point, steps=100_000, step_seconds=0.004, histograms=8))
    trainer.wait_until_acknowledged()
    for _ in range(1 if stage.short else 5):
        stage.server.kill()
        stage.server.command = [sys.executable, "-m", "tests.faults.crashing_server", point, str(random.randint(3, 20))]
        stage.server.start(until_ready=False)
        wait_for(lambda: not stage.server.alive, 60.0, f"the server died {point}")
        stage.server.kill()
        stage.server.command = [sys.executable, "-m", "isentrope"]
        stage.server.start()
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def server_frozen(stage: Stage) -> Verdict:
    """SIGSTOP for a minute: sockets stay open, nobody answers."""
    trainer = stage.start_trainer(stage.plan("frozen", steps=100_000, step_seconds=0.02))
    trainer.wait_until_acknowledged()
    stage.server.freeze()
    time.sleep(7.0 if stage.short else 60.0)
    stage.server.thaw()
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)
