"""Many ranks at once, each with its spool and shipper."""

from __future__ import annotations

from tests.faults.oracle import Verdict
from tests.faults.stage import Stage


def eight_ranks(stage: Stage) -> Verdict:
    """Eight ranks report a thousand steps each while the server is killed: every stream is whole."""
    ranks, steps = (3, 150) if stage.short else (8, 1000)
    trainers = [
        stage.start_trainer(
            stage.plan("crowd", rank=rank, world_size=ranks, steps=steps, step_seconds=0.02),
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
