"""The tokens of a step, all micro-batches in one vector, with nothing left in them that may not enter a sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from isentrope.statistics.token_ledger import TokenBatch, flat


class StepTokens(NamedTuple):
    """Vectors [tokens]; the numbers are float64, and 0 where the token is not valid."""

    entropies: Tensor
    discriminator_scores: Tensor
    vocab_centered_scores: Tensor
    logprobs: Tensor
    advantages: Tensor
    importance_ratios: Tensor
    """1 when the loop gave no sampler log-probs."""
    kept: Tensor
    valid: Tensor
    """True where the mask says so and all numbers are finite."""
    not_finite: Tensor
    """How many tokens the mask names that are not valid; a scalar on the device."""
    has_ratios: bool


def step_tokens(batches: Sequence[TokenBatch]) -> StepTokens | None:
    """Of all micro-batches, in their order; None when they hold no token at all, padding included."""
    if not any(batch.mask.numel() for batch in batches):
        return None
    mask = flat([batch.mask for batch in batches])
    entropies, discriminator, centred, logprobs, advantages = (
        flat(parts).double()
        for parts in (
            [batch.scores.entropies for batch in batches],
            [batch.scores.discriminator_scores for batch in batches],
            [batch.scores.vocab_centered_scores for batch in batches],
            [batch.scores.logprobs for batch in batches],
            [batch.advantages for batch in batches],
        )
    )
    has_ratios = all(batch.importance_ratios is not None for batch in batches)
    ratios = (
        flat([batch.importance_ratios for batch in batches if batch.importance_ratios is not None]).double()
        if has_ratios
        else torch.ones_like(entropies)
    )
    finite = (entropies + discriminator + centred + logprobs + advantages + ratios).isfinite()
    valid = mask & finite
    # Padding may hold anything, NaN included: nothing outside `valid` enters a sum.
    entropies, discriminator, centred, logprobs, advantages, ratios = (
        torch.where(valid, values, 0.0) for values in (entropies, discriminator, centred, logprobs, advantages, ratios)
    )
    kept = flat([batch.keep_mask for batch in batches])
    return StepTokens(
        entropies, discriminator, centred, logprobs, advantages, ratios, kept, valid, (mask & ~finite).sum(), has_ratios
    )
