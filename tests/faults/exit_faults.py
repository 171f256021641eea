"""Every way for a training process to end, and the children it leaves."""

from __future__ import annotations

from tests.faults.oracle import Allowance, Verdict
from tests.faults.stage import Stage, Trainer

GENTLE = {"return": 0, "forget": 0, "exception": 1, "sys.exit": 0, "SIGINT": -2}
"""Python ends in its own time, and with what exit code: nothing may be lost."""
ABRUPT = {"os._exit": 0, "SIGTERM": -15, "SIGKILL": -9}
"""Nobody asks Python: what was put in the last moment may not be on disk."""
LAST_MOMENT = Allowance(unwritten_seconds=0.5)


def every_way_to_exit(stage: Stage) -> Verdict:
    """Return, exception, sys.exit, os._exit, SIGTERM, SIGINT, SIGKILL: the rest is delivered without the trainer."""
    trainers = {how: _ending(stage, how, code) for how, code in (GENTLE | ABRUPT).items()}
    total = Verdict()
    for how, trainer in trainers.items():
        trainer.finish()
        stage.expect_delivery(trainer)
        one = stage.verdict_on([trainer.ledger], LAST_MOMENT if how in ABRUPT else None)
        total.offered, total.stored = total.offered + one.offered, total.stored + one.stored
        total.unwritten += one.unwritten
    return total


def _ending(stage: Stage, how: str, code: int) -> Trainer:
    run_id = f"ends-by-{how.strip('_').replace('._', '-').replace('.', '-')}"
    plan = stage.plan(run_id, steps=60, step_seconds=0.02, ending=how)
    return stage.start_trainer(plan, expected_exit=code)


def forked_children(stage: Stage) -> Verdict:
    """A child forked in mid-run uses and closes what it inherited, and outlives its parent: nobody notices."""
    trainer = stage.start_trainer(stage.plan("forked", steps=60, step_seconds=0.02, forks_at=55))
    trainer.finish()
    return stage.judge(trainer, finish=False)


def fork_in_dataloader_workers(stage: Stage) -> Verdict:
    """A real probe over a real DataLoader with forked workers, new ones each epoch."""
    plan = stage.plan("loaded", steps=24 if stage.short else 120, step_seconds=0.0)
    trainer = stage.start_trainer(plan, module="tests.faults.dataloader_process")
    trainer.finish()
    return stage.judge(trainer, finish=False)
