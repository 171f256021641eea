"""Clip_B and Clip_V: clip the tokens whose score lies beyond a threshold, in standard deviations.

    Clip_B: keep while  -mu_low sigma <= S* - mean_B(S*) <= mu_high sigma   arXiv:2602.03392, eq. 15
    Clip_V: keep while  -mu_low sigma' <= S_c <= mu_high sigma',  sigma' = std_B(S_c)
        arXiv:2602.03392, eq. 16

in nats, with mean and sigma over the batch's tokens. Clip_B clips the tokens whose discriminator
score is an outlier of the batch, Clip_V those whose vocabulary-centred score is large. S_c = S* -
E[S] is centred once, as in the paper's text (eq. 16 as printed subtracts E[S] twice). A side whose
mu is None does not clip, and a score that is not finite is kept.

With `max_fraction` only the tokens furthest beyond their threshold are clipped, at most that share
of all, but at least one. The selected tokens are those that would be clipped without that cap:
while it binds, moving mu changes nothing.

Clip_V with `zero_advantage=clip` also clips tokens with A = 0 beyond a threshold, whatever the
scope, and does not count them to the cap. They have no policy gradient; with `denominator=shrink`
the mean is then over fewer tokens, as in the authors' code (Trinity-RFT, `clipv_advantage`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.methods.base import (
    Centres,
    Intervention,
    Selection,
    ThresholdScore,
    top_share_cutoff,
)
from isentrope.scores import TokenScores
from isentrope.statistics.moments import ThresholdStatistics
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def clip_b_score(
    scores: TokenScores, over: ThresholdStatistics
) -> tuple[Float[Tensor, "*tokens"], Float[Tensor, ...]]:
    """S* - mean_B(S*) and sigma, nats."""
    return scores.discriminator_scores.double() - over.discriminator_mean, over.discriminator_std


def clip_v_score(
    scores: TokenScores, over: ThresholdStatistics
) -> tuple[Float[Tensor, "*tokens"], Float[Tensor, ...]]:
    """S_c and sigma', nats."""
    return scores.vocab_centered_scores.double(), over.vocab_centered_std


def is_beyond_thresholds(
    scores: Float[Tensor, "*tokens"], sigma: Float[Tensor, ""], control: Control
) -> Bool[Tensor, "*tokens"]:
    """True where a centred score lies below -mu_low sigma or above mu_high sigma, all in nats; a
    score that is not finite is beyond nothing, and a mu that is None does not clip."""
    beyond = torch.zeros_like(scores, dtype=torch.bool)
    if control.mu_low is not None:
        beyond |= scores < -control.mu_low * sigma
    if control.mu_high is not None:
        beyond |= scores > control.mu_high * sigma
    return beyond


def distance_beyond(
    control: Control, standardised: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """How far beyond its threshold a standardised score lies, in standard deviations; -inf with no
    threshold at all."""
    none = torch.full_like(standardised, -torch.inf)
    if control.mu_low is None:
        below = none
    else:
        below = -control.mu_low - standardised
    if control.mu_high is None:
        above = none
    else:
        above = standardised - control.mu_high
    return torch.maximum(below, above)


def clip_by_threshold(score: ThresholdScore) -> Intervention:
    """The intervention that clips what lies beyond the thresholds of a score."""

    def ranked(control: Control, tokens: TokenBatch, beyond: Tensor) -> Tensor:
        in_scope = tokens.is_in_scope(control.scope)
        return beyond & (in_scope & (tokens.advantages != 0) if _clips_zeros(control) else in_scope)

    def select(
        control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
    ) -> Selection:
        scores, sigma = score(tokens.scores, centres.thresholds)
        beyond = is_beyond_thresholds(scores, sigma, control)
        asked = clipped = ranked(control, tokens, beyond)
        if cutoff is not None:
            clipped = asked & (distance_beyond(control, scores / sigma) >= cutoff)
        if _clips_zeros(control):
            zeros = beyond & (tokens.advantages == 0)
            asked, clipped = asked | zeros, clipped | zeros
        return Selection(~clipped, asked)

    def count_cutoff(control: Control, tokens: TokenBatch, centres: Centres) -> Tensor:
        """Where the `max_fraction` furthest beyond begin, in standard deviations beyond the
        threshold."""
        scores, sigma = score(tokens.scores, centres.thresholds)
        among = ranked(control, tokens, is_beyond_thresholds(scores, sigma, control))
        distances = distance_beyond(control, scores / sigma)
        return top_share_cutoff(
            distances, tokens.mask, control.number("max_fraction"), among=among, at_most=True
        )

    return Intervention(
        select=select, count_cutoff=count_cutoff, ranks_with="max_fraction", threshold_score=score
    )


def _clips_zeros(control: Control) -> bool:
    return control.value("zero_advantage") == "clip"


CLIP_B, CLIP_V = clip_by_threshold(clip_b_score), clip_by_threshold(clip_v_score)
