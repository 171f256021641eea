"""What an update does to the policy, on completions that nothing else sees.

Before each update some are drawn from the policy as it is, of problems that no run learns from and
no panel has. The change of their mean entropy over the update judges its prediction: what is judged
and what judges it share no token, no prompt and no generator."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from isentrope_trainer.models.policy import Policy
from isentrope_trainer.models.sampling import Rollouts
from isentrope_trainer.tasks.base import Task

FRESH_CHANGE = "fresh/change"
"""What an update did to their mean entropy, in nats."""
FRESH_ERROR = "fresh/error"
"""Standard error of it: how far it may lie from the policy's."""
_FIRST_PROBLEM = 1 << 40
"""Far from the problems that are trained on, and from those of the panel."""
_OF_A_PROMPT = 2
_SEED = 1_000_003
"""Added to the run's own: its generator is another."""


class FreshChange(NamedTuple):
    """Of the mean entropy over an update, in nats."""

    mean: float
    error: float
    """Its standard error; prompts are what is drawn independently."""


class FreshCompletions:
    """Draws them, and keeps by step what each update did to their mean entropy, in nats."""

    def __init__(
        self, policy: Policy, task: Task, completions: int, seed: int, temperature: float
    ) -> None:
        """`completions`: drawn before each update, now for the first one."""
        self.changes: dict[int, FreshChange] = {}
        self._policy, self._task = policy, task
        self._prompts = completions // _OF_A_PROMPT
        self._temperature, self._next_problem = temperature, _FIRST_PROBLEM
        self._generator = torch.Generator(policy.model.device).manual_seed(seed + _SEED)
        self._drawn = self._draw()
        self._before = self._entropies(self._drawn)

    def follow(self, step: int) -> None:
        """After the update of a step."""
        changes = self._entropies(self._drawn) - self._before
        mean, rows = changes.mean(), self._drawn.mask.nonzero()[:, 0]
        of_prompts = torch.zeros(self._prompts, dtype=changes.dtype, device=changes.device)
        of_prompts.index_add_(0, rows // _OF_A_PROMPT, changes - mean)
        error = math.sqrt(float(of_prompts.square().sum())) / len(changes)
        self.changes[step] = FreshChange(float(mean), error)
        self._drawn = self._draw()
        self._before = self._entropies(self._drawn)

    def _draw(self) -> Rollouts:
        problems = range(self._next_problem, self._next_problem + self._prompts)
        self._next_problem += self._prompts
        return self._policy.sample(
            [self._task.problem(index).prompt for index in problems],
            _OF_A_PROMPT,
            self._generator,
            temperature=self._temperature,
            max_tokens=self._task.max_tokens,
        )

    @torch.no_grad()
    def _entropies(self, rollouts: Rollouts) -> Tensor:
        """[tokens], float64, in nats."""
        logits = self._policy.read(rollouts).logits[rollouts.mask].double() / self._temperature
        logprobs = logits.log_softmax(-1)
        return -(logprobs.exp() * logprobs).sum(-1)
