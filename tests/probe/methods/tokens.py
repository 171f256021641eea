"""Tokens with chosen numbers, for the tests of the methods."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isentrope.methods.base import Centres, Selection
from isentrope.methods.gate import INTERVENTIONS, select_tokens
from isentrope.scores import TokenScores
from isentrope.statistics.moments import ThresholdStatistics, threshold_statistics
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control

Numbers = Sequence[float] | Tensor


def tokens(
    advantages: Numbers,
    *,
    logprobs: Numbers | None = None,
    entropies: Numbers | None = None,
    discriminator: Numbers | None = None,
    centred: Numbers | None = None,
    ratios: Numbers | None = None,
    old_entropies: Numbers | None = None,
    groups: Tensor | None = None,
    mask: Sequence[bool] | Tensor | None = None,
    step: int = 0,
    rank: int = 0,
    first_position: int = 0,
) -> TokenBatch:
    """What is not given is 0, the mask True everywhere."""
    given = torch.as_tensor(advantages, dtype=torch.float32)

    def numbers(values: Numbers | None) -> Tensor:
        return (
            torch.zeros_like(given)
            if values is None
            else torch.as_tensor(values, dtype=torch.float32)
        )

    scores = TokenScores(
        logprobs=numbers(logprobs),
        entropies=numbers(entropies),
        discriminator_scores=numbers(discriminator),
        expected_scores=numbers(discriminator) - numbers(centred),
        vocab_centered_scores=numbers(centred),
    )
    return TokenBatch(
        scores=scores,
        advantages=given,
        mask=torch.ones_like(given, dtype=torch.bool) if mask is None else torch.as_tensor(mask),
        importance_ratios=None if ratios is None else numbers(ratios),
        old_entropies=None if old_entropies is None else numbers(old_entropies),
        group_ids=None if groups is None else groups.double(),
        step=step,
        rank=rank,
        first_position=first_position,
    )


def own_centres(of: TokenBatch) -> Centres:
    """Counted from the tokens themselves."""
    valid = of.mask
    return Centres(
        threshold_statistics([of.scores], [valid]),
        of.scores.logprobs.double()[valid].mean(),
        of.advantages.double()[valid].mean(),
    )


def selected(control: Control, of: TokenBatch, centres: Centres | None = None) -> Selection:
    """What the control makes of tokens that are the whole batch."""
    centres = own_centres(of) if centres is None else centres
    cutoff = INTERVENTIONS[control.method].cutoff(control, of, centres)
    return select_tokens(control, of, centres, cutoff)


def keep_mask(
    control: Control, scores: TokenScores, advantages: Tensor, statistics: ThresholdStatistics
) -> Tensor:
    """What Clip_B or Clip_V keeps, thresholds counted from these statistics."""
    nothing = torch.full((), torch.nan)
    of = TokenBatch(scores, advantages, torch.ones_like(advantages, dtype=torch.bool))
    return select_tokens(control, of, Centres(statistics, nothing, nothing), None).factors


def kept(selection: Selection) -> list[int]:
    """Indices of the tokens that take part."""
    return selection.factors.flatten().nonzero().flatten().tolist()


def many(count: int, seed: int = 0) -> TokenBatch:
    """Random tokens, all different, off-policy, one in ten padding."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(count, generator=generator)

    return tokens(
        normal(),
        logprobs=-normal().abs() - 1e-3,
        entropies=normal().abs(),
        discriminator=normal(),
        centred=normal(),
        ratios=(0.2 * normal()).exp(),
        mask=torch.rand(count, generator=generator) < 0.9,
    )
