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

Drawn = TypeVar("Drawn")


@dataclass(frozen=True, slots=True)
class FilledBatch(Generic[Drawn]):
    """A batch put together from several draws."""

    parts: list[tuple[Drawn, Tensor, Tensor]]
    """Each draw with its rewards, and the int64 indices of its prompts that take part: together as many as were wanted."""
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
    draw: Callable[[int], tuple[Drawn, Tensor]], wanted: int, config: PromptFilterConfig
) -> FilledBatch[Drawn]:
    """Draw prompts until `wanted` of them pass the filter, or `config.most_draws` draws are made.

    Args:
        draw: called with the draw's number, from 0; returns what was sampled and its rewards [prompts, group size].
        wanted: prompts of the batch.
    """
    draws: list[tuple[Drawn, Tensor]] = []
    passing: list[Tensor] = []
    while len(draws) < config.most_draws and sum(int(one.sum()) for one in passing) < wanted:
        draws.append(draw(len(draws)))
        passing.append(within_pass_rates(draws[-1][1], config))
    passes = torch.cat(passing)
    # Stable: those that pass come first, in the order in which they were drawn; others fill up a capped batch.
    chosen = torch.zeros_like(passes)
    chosen[(~passes).int().argsort(stable=True)[:wanted]] = True
    of_draws = [one.nonzero()[:, 0] for one in chosen.split([len(one) for one in passing])]
    return FilledBatch(
        parts=[
            (drawn, rewards, indices) for (drawn, rewards), indices in zip(draws, of_draws, strict=True) if len(indices)
        ],
        drawn=len(passes),
        kept=min(int(passes.sum()), wanted),
    )
