"""What one of several processes does of a training: run by `torchrun`, and without it as the one
process of all.

    torchrun --nproc-per-node 2 -m tests.trainer.two_ranks FOLDER

Writes `rank-R-of-N.pt` into the folder.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_trainer.algorithms.advantages import ADVANTAGES, JudgedRollouts
from isentrope_trainer.experience import Batch, Panel
from isentrope_trainer.loop import update
from isentrope_trainer.models.warm_start import WarmStartConfig, untrained_policy
from isentrope_trainer.reference_run import train_reference_policy
from isentrope_trainer.settings import ALGORITHMS, PolicyConfig, TrainingConfig
from isentrope_trainer.tasks.countdown import Countdown
from isentrope_trainer.training_state import Checkpoints, Ranks, TrainingState, join_ranks
from isentrope_wire.reports import StepReport

SHAPE = PolicyConfig(hidden_size=32, layers=2, attention_heads=2, feed_forward_size=48)
CONFIG = TrainingConfig(
    steps=2, prompts=4, group_size=4, learning_rate=1e-3, algorithm="reinforce_plus_plus"
)


def reports_in(transport: InMemoryTransport) -> list[dict[str, float]]:
    """Those over the tokens of all ranks: the others hold what their rank logged, and what it
    spent."""
    messages = [message for message in transport.messages if isinstance(message, StepReport)]
    return [
        {str(name): value for name, value in message.scalars.items()}
        for message in messages
        if "entropy/mean" in message.scalars
    ]


def update_from_share(ranks: Ranks) -> dict[str, Any]:
    """One update from this rank's share of a batch that all ranks know: its gradient, and what was
    reported."""
    task = Countdown(0)
    state = TrainingState(untrained_policy(task, SHAPE, seed=1), CONFIG, ranks)
    prompts = [task.problem(index).prompt for index in range(CONFIG.prompts)]
    generator = torch.Generator().manual_seed(3)
    whole = state.policy.sample(prompts, CONFIG.group_size, generator, max_tokens=task.max_tokens)
    all_rewards = torch.rand(CONFIG.prompts, CONFIG.group_size, generator=generator)
    own = torch.tensor(list(ranks.share(CONFIG.prompts)))
    rollouts, rewards = whole.select_prompts(own), all_rewards[own]
    judged = JudgedRollouts(rewards=rewards, mask=rollouts.mask, sum_over_ranks=ranks.sum)
    batch = Batch(rollouts, rewards, ADVANTAGES[ALGORITHMS[CONFIG.algorithm].advantage](judged))
    transport = InMemoryTransport()
    with isentrope.Probe(transport=transport) as probe:
        update(
            state,
            batch,
            probe,
            CONFIG,
            Panel(task),
            max_tokens=task.max_tokens,
            started=time.perf_counter(),
        )
    gradient = torch.cat(
        [parameter.grad.flatten() for parameter in state.parameters() if parameter.grad is not None]
    )
    return {"gradient": gradient, "reports": reports_in(transport)}


def whole_run(folder: Path) -> dict[str, Any]:
    """The steps, reports and final weights of a short run."""
    transport, steps = InMemoryTransport(), []
    train_reference_policy(
        CONFIG,
        isentrope.Control(),
        policy_config=SHAPE,
        warm_start=WarmStartConfig(steps=1, batch_size=2),
        transport=transport,
        threads=1,
        checkpoints=Checkpoints(folder / "checkpoints"),
        follow=lambda probe, result: steps.append(result.step),
    )
    return {"steps": steps, "run_reports": reports_in(transport)}


def main(folder: Path) -> None:
    ranks = join_ranks()
    made = update_from_share(ranks)
    if ranks.size > 1:
        made |= whole_run(folder)
    torch.save(made, folder / f"rank-{ranks.rank}-of-{ranks.size}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
