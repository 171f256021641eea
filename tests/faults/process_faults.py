"""The server, the shipper or the training process is killed, frozen, forked or resumed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time

from isentrope.transport.spool_reader import KILLED
from isentrope.transport.spool_writer import QUEUE_FULL
from tests.faults.faulty_libc import failing_calls
from tests.faults.oracle import Allowance, Verdict
from tests.faults.stage import Stage, Trainer
from tests.system.running_server import wait_for

GENTLE = {"return": 0, "forget": 0, "exception": 1, "sys.exit": 0, "SIGINT": -2}
"""Python ends in its own time, and with what exit code: nothing may be lost."""
ABRUPT = {"os._exit": 0, "SIGTERM": -15, "SIGKILL": -9}
"""Python is not asked: what was put in the last moment may not be on disk, and is a gap."""
LAST_MOMENT = Allowance(gap_reasons=(KILLED,))
FAST = Allowance(gap_reasons=(KILLED, QUEUE_FULL))
SPOOL_GONE = Allowance(unwritten_seconds=1e9)
"""The user deleted it: what had not been delivered is lost with it, and only that."""


def server_killed_at_random(stage: Stage) -> Verdict:
    """kill -9 of the server at random moments."""
    trainer = stage.running_trainer("killed", step_seconds=0.005)
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
    """The server dies with everything committed and nothing acknowledged."""
    return _dies_at(stage, "after-commit")


def server_killed_at_checkpoint(stage: Stage) -> Verdict:
    """The server dies while SQLite moves its write-ahead log into the database."""
    flag = stage.folder / "checkpoint"
    trainer = stage.running_trainer("checkpoint", step_seconds=0.004, histograms=8)
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
    trainer = stage.running_trainer(point, step_seconds=0.004, histograms=8)
    for _ in range(1 if stage.short else 5):
        stage.server.kill()
        stage.server.command = [
            sys.executable,
            "-m",
            "tests.faults.crashing_server",
            point,
            str(random.randint(3, 20)),
        ]
        stage.server.start(until_ready=False)
        wait_for(lambda: not stage.server.alive, 60.0, f"the server died {point}")
        stage.server.kill()
        stage.server.command = [sys.executable, "-m", "isentrope"]
        stage.server.start()
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def server_frozen(stage: Stage) -> Verdict:
    """SIGSTOP for a minute: sockets stay open, nothing answers; a training that ends meanwhile does
    not wait."""
    trainer, ending = stage.running_trainer("frozen"), stage.running_trainer("frozen-at-the-end")
    stage.server.freeze()
    ending.stop()
    ending.finish()
    time.sleep(7.0 if stage.short else 60.0)
    stage.server.thaw()
    stage.expect_a_fresh_report(trainer)
    stage.expect_delivery(ending)
    verdict = stage.judge(trainer)
    verdict += stage.verdict_on([ending.ledger])
    return verdict


def server_stopped(stage: Stage) -> Verdict:
    """SIGTERM while control streams are open: the server ends by itself, and its log holds no
    traceback."""
    trainer = stage.running_trainer("followed")
    for _ in range(1 if stage.short else 5):
        os.kill(stage.server.pid, signal.SIGTERM)
        wait_for(lambda: not stage.server.alive, 60.0, "the server ended")
        stage.server.start()
        stage.expect_a_fresh_report(trainer)
    verdict = stage.judge(trainer)
    verdict.require("Traceback" not in stage.server.log, "the server logged a traceback")
    verdict.hold()
    return verdict


def shipper_killed(stage: Stage) -> Verdict:
    """kill -9 of the shipper, again and again, also right before the training ends: another one
    starts."""
    trainer = stage.running_trainer("unshipped", step_seconds=0.01)
    for _ in range(2 if stage.short else 4):
        pid = wait_for(lambda: trainer.shipper_pid, 30.0, "a shipper was at work")
        time.sleep(random.uniform(0.0, 0.5))
        os.kill(pid, signal.SIGKILL)
        wait_for(
            lambda gone=pid: trainer.shipper_pid not in (None, gone),  # type: ignore[misc]
            30.0,
            "another shipper was at work",
        )
    stage.expect_a_fresh_report(trainer)
    os.kill(wait_for(lambda: trainer.shipper_pid, 30.0, "a shipper was at work"), signal.SIGKILL)
    return stage.judge(trainer)


def shipper_frozen(stage: Stage) -> Verdict:
    """SIGSTOP of the shipper, once more at the end of the training, which does not wait: nothing is
    lost."""
    trainer = stage.running_trainer("stopped", step_seconds=0.01)
    pid = wait_for(lambda: trainer.shipper_pid, 30.0, "a shipper was at work")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3.0 if stage.short else 20.0)
    os.kill(pid, signal.SIGCONT)
    stage.expect_a_fresh_report(trainer)
    os.kill(pid, signal.SIGSTOP)
    trainer.stop()
    trainer.finish()
    os.kill(pid, signal.SIGCONT)
    return stage.judge(trainer, finish=False)


def every_way_to_exit(stage: Stage) -> Verdict:
    """Return, exception, sys.exit, os._exit, SIGTERM, SIGINT, SIGKILL: the rest is delivered
    without the trainer."""
    trainers = {how: _ending(stage, how, code) for how, code in (GENTLE | ABRUPT).items()}
    total = Verdict()
    for how, trainer in trainers.items():
        trainer.finish()
        stage.expect_delivery(trainer)
        total += stage.verdict_on([trainer.ledger], LAST_MOMENT if how in ABRUPT else None)
    return total


def _ending(stage: Stage, how: str, code: int) -> Trainer:
    run_id = f"ends-by-{how.strip('_').replace('._', '-').replace('.', '-')}"
    plan = stage.plan(run_id, steps=60, ending=how)
    return stage.start_trainer(plan, expected_exit=code)


def trainer_killed_in_a_fast_loop(stage: Stage) -> Verdict:
    """kill -9 of trainers that make some thousand steps a second: what was not on disk is a gap."""
    total = Verdict()
    for life in range(2 if stage.short else 8):
        trainer = stage.running_trainer(
            f"fast-{life}", step_seconds=0.0, expected_exit=-9, histograms=8
        )
        trainer.process.kill()
        trainer.finish()
        stage.expect_delivery(trainer)
        total += stage.verdict_on([trainer.ledger], FAST)
    total.require(total.in_gaps > 0, "all was on disk: nothing was tried")
    total.hold()
    return total


def forked_children(stage: Stage) -> Verdict:
    """A child forked in mid-run uses and closes what it inherited, and outlives its parent: nothing
    is lost or added."""
    trainer = stage.start_trainer(stage.plan("forked", steps=60, forks_at=55))
    trainer.finish()
    return stage.judge(trainer, finish=False)


def eight_ranks(stage: Stage) -> Verdict:
    """Eight ranks report a thousand steps each while the server is killed: every stream is
    whole."""
    ranks, steps = (3, 150) if stage.short else (8, 1000)
    trainers = [
        stage.start_trainer(
            stage.plan("crowd", rank=rank, world_size=ranks, steps=steps),
            home=stage.folder / "home-crowd",
        )
        for rank in range(ranks)
    ]
    trainers[0].wait_until_accepted(steps // 3)
    stage.server.kill()
    trainers[-1].wait_until_accepted(steps // 2)
    stage.server.start()
    for trainer in trainers:
        trainer.finish(300.0)
    return stage.judge(*trainers, finish=False)


def resume_with_its_spool(stage: Stage) -> Verdict:
    """The first attempt's spool is still there and is delivered late: both attempts are whole, the
    second one counts."""
    first, second = _two_attempts(stage, "resumed", keep_spool=True)
    for trainer in (first, second):
        stage.expect_delivery(trainer)
    return stage.verdict_on([first.ledger, second.ledger], allowances={"first": LAST_MOMENT})


def resume_without_its_spool(stage: Stage) -> Verdict:
    """The first attempt's disk is gone with what it held: the second attempt is whole."""
    first, second = _two_attempts(stage, "restored", keep_spool=False)
    stage.expect_delivery(second)
    return stage.verdict_on([first.ledger, second.ledger], allowances={"first": SPOOL_GONE})


def _two_attempts(stage: Stage, run_id: str, *, keep_spool: bool) -> tuple[Trainer, Trainer]:
    lost = stage.folder / "home-lost"
    first = stage.running_trainer(run_id, home=lost, expected_exit=-9)
    stage.server.kill()
    at = len(first.ledger.accepted_steps)
    first.wait_until_accepted(at + 30)
    first.process.kill()
    first.finish()
    if not keep_spool:
        shutil.rmtree(lost)
    stage.server.start()
    again = stage.plan(
        run_id, incarnation="second", first_step=at // 2, steps=60, step_seconds=0.02, salt=0.25
    )
    second = stage.start_trainer(again)
    second.finish()
    return first, second
