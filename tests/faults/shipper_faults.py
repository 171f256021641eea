"""The side process that delivers is killed or frozen."""

from __future__ import annotations

import os
import random
import signal
import time

from tests.faults.oracle import Verdict
from tests.faults.stage import Stage, wait_for


def shipper_killed(stage: Stage) -> Verdict:
    """kill -9 of the shipper, again and again: the training process starts another."""
    trainer = stage.start_trainer(stage.plan("unshipped", steps=100_000, step_seconds=0.01))
    trainer.wait_until_acknowledged()
    for _ in range(2 if stage.short else 4):
        pid = wait_for(lambda: trainer.shipper_pid, 30.0, "a shipper was at work")
        time.sleep(random.uniform(0.0, 0.5))
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda gone=pid: trainer.shipper_pid not in (None, gone), 30.0, "another shipper was at work")  # type: ignore[misc]
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)


def shipper_frozen(stage: Stage) -> Verdict:
    """SIGSTOP of the shipper: nothing moves, nothing is lost, and the end of the training process does not wait."""
    trainer = stage.start_trainer(stage.plan("stopped", steps=100_000, step_seconds=0.01))
    trainer.wait_until_acknowledged()
    pid = wait_for(lambda: trainer.shipper_pid, 30.0, "a shipper was at work")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3.0 if stage.short else 20.0)
    os.kill(pid, signal.SIGCONT)
    stage.expect_a_fresh_report(trainer)
    return stage.judge(trainer)
