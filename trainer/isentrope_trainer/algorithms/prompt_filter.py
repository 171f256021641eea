"""Which prompts a batch is made of: the filter by pass rate, and dynamic sampling.

A prompt whose answers are all right or all wrong teaches nothing: its advantages are 0. The filter keeps the prompts
between two pass rates, as 2602.03392 chooses its training set; dynamic sampling asks new prompts until the batch is full
again (DAPO, arXiv:2503.14476, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from isentrope_trainer.settings import PromptFilterConfig

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class FilledBatch(Generic[Batch]):
    """A batch put together from several draws."""

    parts: list[tuple[Batch, Tensor]]
    """Each draw with the int64 indices of its prompts that take part. Together they are as many as were wanted."""
    drawn: int
    """Prompts that were sampled for it."""
    kept: int
    """Prompts that passed the filter, at most as many as were wanted. Where there were fewer, others fill the batch up."""


def pass_rates(rewards: Tensor, solved: float = 1.0) -> Tensor:
    """Share of right answers of each prompt.

    Args:
        rewards: [prompts, group size].
        solved: the reward of a right answer.

    Returns:
        [prompts].
    """
    return (rewards >= solved).float().mean(dim=1)


def within_pass_rates(rewards: Tensor, config: PromptFilterConfig) -> Tensor:
    """Which prompts the filter keeps; both bounds belong to the range.

    Args:
        rewards: [prompts, group size].

    Returns:
        Bool [prompts].
    """
    rates = pass_rates(rewards)
    return (rates >= config.lowest) & (rates <= config.highest)


def fill_batch(
    draw: Callable[[int, int], tuple[Batch, Tensor]], first: int, wanted: int, config: PromptFilterConfig
) -> FilledBatch[Batch]:
    """Draw prompts until `wanted` of them pass the filter, or `config.most_draws` times as many were drawn.

    Args:
        draw: called with the number of the first prompt and how many; returns what was sampled for them and its rewards
            [prompts, group size].
        first: number of the first prompt to draw.
        wanted: prompts of the batch. That many are drawn each time.
    """
    draws: list[tuple[Batch, Tensor]] = []
    kept = 0
    while kept < wanted and len(draws) < config.most_draws:
        batch, rewards = draw(first + len(draws) * wanted, wanted)
        passing = within_pass_rates(rewards, config)
        draws.append((batch, passing))
        kept += int(passing.sum())
    return FilledBatch(parts=_first_of(draws, wanted), drawn=len(draws) * wanted, kept=min(kept, wanted))


def _first_of(draws: list[tuple[Batch, Tensor]], wanted: int) -> list[tuple[Batch, Tensor]]:
    """The first `wanted` prompts that pass, and as many others as are missing."""
    passing = torch.cat([passing for _, passing in draws])
    # Stable: those that pass come first, in the order in which they were drawn.
    chosen = torch.zeros_like(passing)
    chosen[(~passing).int().argsort(stable=True)[:wanted]] = True
    parts, start = [], 0
    for batch, passing_of_draw in draws:
        indices = chosen[start : start + len(passing_of_draw)].nonzero()[:, 0]
        if len(indices):
            parts.append((batch, indices))
        start += len(passing_of_draw)
    return parts
