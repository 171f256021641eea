"""Rollouts: the completions that were sampled for a batch of prompts, with what their sampler knew of them.

Everything that trains takes them in this one shape, for any model, tokenizer and lengths of the prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rollouts:
    """A batch of sampled completions; the group of prompt i are the rows i * group_size and following."""

    prompts: Tensor
    """int64 [prompts, prompt length], padded on the left."""
    prompt_mask: Tensor
    """bool [prompts, prompt length]: False on padding."""
    completions: Tensor
    """int64 [rollouts, completion length], padded on the right after the end marker."""
    mask: Tensor
    """bool [rollouts, completion length]: True up to and including the end marker."""
    sampler_logprobs: Tensor
    """float [rollouts, completion length]: log-probabilities the tokens were drawn with, in nats; 0 on padding."""
    group_size: int
    answers: tuple[str, ...] = ()
    """The expected one of each prompt; empty where they are not known."""

    def of_prompts(self, indices: Tensor) -> Rollouts:
        """The rollouts of these prompts (int64 indices), in this order."""
        rows = self.rows_of_prompts(indices)
        return Rollouts(
            self.prompts[indices],
            self.prompt_mask[indices],
            self.completions[rows],
            self.mask[rows],
            self.sampler_logprobs[rows],
            self.group_size,
            tuple(self.answers[index] for index in indices.tolist()) if self.answers else (),
        )

    def samples(self) -> dict[str, Tensor | list[str]]:
        """Prompt and expected answer of each rollout, as `Probe.gate` takes them."""
        ids = self.prompts.masked_fill(~self.prompt_mask, -1).repeat_interleave(self.group_size, dim=0)
        answers = [answer for answer in self.answers for _ in range(self.group_size)]
        return {"prompt_ids": ids, "answer": answers} if answers else {"prompt_ids": ids}

    def rows_of_prompts(self, indices: Tensor) -> Tensor:
        """The rows, int64 [len(indices) * group size], that `of_prompts` takes."""
        return (indices[:, None] * self.group_size + torch.arange(self.group_size, device=indices.device)).flatten()


def left_padded(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Prompts of different lengths as token ids [prompts, length of the longest], and their mask, False on padding."""
    longest = max(map(len, prompts))
    padded = [[pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    counted = [[False] * (longest - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return torch.tensor(padded), torch.tensor(counted)
