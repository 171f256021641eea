"""A run that was killed goes on from an older checkpoint."""

from __future__ import annotations

import shutil

from tests.faults.oracle import Allowance, Verdict
from tests.faults.stage import Stage, Trainer

KILLED = Allowance(unwritten_seconds=0.5)
SPOOL_GONE = Allowance(unwritten_seconds=1e9)
"""The user deleted it: what had not been delivered is lost with it, and only that."""


def resume_with_its_spool(stage: Stage) -> Verdict:
    """The first life's spool is still there and is delivered late: both lives are whole, the second one speaks."""
    first, second = _two_lives(stage, "resumed", keep_spool=True)
    for trainer in (first, second):
        stage.expect_delivery(trainer)
    return stage.verdict_on([first.ledger, second.ledger], allowances={"first": KILLED})


def resume_without_its_spool(stage: Stage) -> Verdict:
    """The first life's disk is gone with what it held: the second life is whole."""
    first, second = _two_lives(stage, "restored", keep_spool=False)
    stage.expect_delivery(second)
    return stage.verdict_on([first.ledger, second.ledger], allowances={"first": SPOOL_GONE})


def _two_lives(stage: Stage, run_id: str, *, keep_spool: bool) -> tuple[Trainer, Trainer]:
    lost = stage.folder / "home-lost"
    plan = stage.plan(run_id, steps=100_000, step_seconds=0.02)
    first = stage.start_trainer(plan, home=lost, expected_exit=-9)
    first.wait_until_acknowledged()
    stage.server.kill()
    at = len(first.ledger.accepted_steps)
    first.wait_until_accepted(at + 30)
    first.process.kill()
    first.finish()
    if not keep_spool:
        shutil.rmtree(lost)
    stage.server.start()
    again = stage.plan(run_id, incarnation="second", first_step=at // 2, steps=60, step_seconds=0.02, salt=0.25)
    second = stage.start_trainer(again)
    second.finish()
    return first, second
