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
    """r; 1 when the loop gave no sampler log-probs."""
    update_ratios: Tensor
    """r times what the loop's own loss makes of the token: what stands before A in its gradient."""
    kl_strengths: Tensor
    """What the loss's KL term adds to that; 0 where the loop did not say."""
    kept: Tensor
    valid: Tensor
    """True where the mask says so and all numbers are finite."""
    not_finite: Tensor
    """How many tokens the mask names that are not valid; a scalar on the device."""
    has_ratios: bool
    knows_loss: Tensor
    """True where the loop said what its loss makes of the token."""
    knows_kl: Tensor
    """True where it said so of its KL term."""


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
    weights, knows_loss = _told([batch.loss_weights for batch in batches], batches, unknown=1.0)
    kl_strengths, knows_kl = _told([batch.kl_strengths for batch in batches], batches, unknown=0.0)
    update_ratios = ratios if weights is None else ratios * weights
    told = update_ratios if kl_strengths is None else update_ratios + kl_strengths
    finite = (entropies + discriminator + centred + logprobs + advantages + ratios + told).isfinite()
    valid = mask & finite
    # Padding may hold anything, NaN included: nothing outside `valid` enters a sum.
    entropies, discriminator, centred, logprobs, advantages, ratios, update_ratios = (
        torch.where(valid, values, 0.0)
        for values in (entropies, discriminator, centred, logprobs, advantages, ratios, update_ratios)
    )
    return StepTokens(
        entropies=entropies,
        discriminator_scores=discriminator,
        vocab_centered_scores=centred,
        logprobs=logprobs,
        advantages=advantages,
        importance_ratios=ratios,
        update_ratios=update_ratios,
        kl_strengths=torch.zeros_like(ratios) if kl_strengths is None else torch.where(valid, kl_strengths, 0.0),
        kept=flat([batch.keep_mask for batch in batches]),
        valid=valid,
        not_finite=(mask & ~finite).sum(),
        has_ratios=has_ratios,
        knows_loss=valid & knows_loss,
        knows_kl=valid & knows_kl,
    )


def _told(
    given: Sequence[Tensor | None], batches: Sequence[TokenBatch], *, unknown: float
) -> tuple[Tensor | None, Tensor]:
    """Of all tokens what the loop said of them, None where it said nothing at all; and of which tokens it did."""
    known = flat([torch.full_like(b.mask, part is not None) for part, b in zip(given, batches, strict=True)])
    if all(part is None for part in given):
        return None, known
    parts = [
        torch.full_like(batch.mask, unknown, dtype=torch.float64) if part is None else part.double()
        for part, batch in zip(given, batches, strict=True)
    ]
    return flat(parts), known
