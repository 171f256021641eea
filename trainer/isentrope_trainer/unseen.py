"""Completions that no update learns from: what they show is what an update does to the entropy, not to its own tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import isentrope
from isentrope_trainer.rollout import Rollouts
from isentrope_trainer.settings import TrainingConfig
from isentrope_trainer.tasks.base import Task
from isentrope_trainer.training_state import TrainingState

PANEL_STEPS = 10
"""Updates until others are drawn, for the policy soon answers otherwise."""
_FIRST_PROBLEM = 1 << 30
"""Far from those that are trained on."""


@dataclass(slots=True)
class Panel:
    """One completion for each of some prompts."""

    newest: Rollouts | None = None
    replaced: Rollouts | None = None
    """Scored once more in the step that the newest ones were drawn for, so that no step is without a change."""

    def renew(self, state: TrainingState, task: Task, config: TrainingConfig) -> None:
        """Draw others where it is time, with a generator of their own: the run's own makes the same draws without them."""
        self.replaced = None
        if not config.unseen or (self.newest is not None and state.step % PANEL_STEPS):
            return
        rollouts = config.prompts * config.group_size // config.updates_per_batch
        number = max(1, rollouts // (config.unseen * state.ranks.size))
        first = _FIRST_PROBLEM + (state.step * state.ranks.size + state.ranks.rank) * number
        drawn = state.policy.sample(
            [task.problem(first + index).prompt for index in range(number)],
            1,
            torch.Generator(state.generator.device).manual_seed(first + config.seed),
            temperature=config.temperature,
            max_tokens=task.max_tokens,
        )
        self.newest, self.replaced = drawn, self.newest

    def scores(
        self, state: TrainingState, probe: isentrope.Probe, config: TrainingConfig
    ) -> list[isentrope.TokenScores]:
        """As `unseen` of `Probe.step` takes them."""
        parts = [part for part in (self.replaced, self.newest) if part is not None]
        return [
            probe.score(
                state.policy.read(part).logits[part.mask], part.completions[part.mask], temperature=config.temperature
            )
            for part in parts
        ]
