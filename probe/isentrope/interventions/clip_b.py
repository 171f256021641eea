"""Clip_B: leave out the tokens whose discriminator score is an outlier of the batch.

    keep while  -mu_low sigma <= S* - mean_B(S*) <= mu_high sigma                  arXiv:2602.03392, eq. 15

with mean and sigma over the batch's tokens, in nats. A side that is None does not clip; a score that is not finite is
kept.
"""

from __future__ import annotations

from torch import Tensor

from isentrope.interventions import threshold_clip
from isentrope.interventions.gated_tokens import Centres, GatedTokens, Selection
from isentrope.scores import batch_centered_scores
from isentrope_wire.control import Control


def count_cutoff(control: Control, tokens: GatedTokens, centres: Centres) -> Tensor | None:
    """Where the `max_fraction` furthest out begin, in standard deviations beyond the threshold."""
    return threshold_clip.count_cutoff(control, tokens, _centred(tokens, centres), centres.thresholds.discriminator_std)


def select(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Leave out what lies outside the thresholds, in scope, and among the furthest `max_fraction` if there is such."""
    sigma = centres.thresholds.discriminator_std
    return threshold_clip.select(control, tokens, _centred(tokens, centres), sigma, cutoff)


def _centred(tokens: GatedTokens, centres: Centres) -> Tensor:
    scores = tokens.scores.discriminator_scores.detach().double()
    return batch_centered_scores(scores, centres.thresholds.discriminator_mean)
