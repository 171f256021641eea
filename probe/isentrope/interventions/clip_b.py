"""Clip_B: leave out the tokens whose discriminator score is an outlier of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.interventions.gated_tokens import Centres, GatedTokens, Selection
from isentrope.interventions.threshold_clip import cap_cutoff, clipped, distance_beyond
from isentrope.interventions.threshold_statistics import ThresholdStatistics
from isentrope.scores import TokenScores, batch_centered_scores
from isentrope_wire.control import Control


def outside_thresholds(
    scores: TokenScores, statistics: ThresholdStatistics, mu_low: float | None, mu_high: float | None
) -> Tensor:
    """True where the token is NOT kept by

        -mu_low sigma <= S* - mean_B(S*) <= mu_high sigma                      arXiv:2602.03392, eq. 15

    with mean and sigma over the batch's tokens. A side that is None does not clip; a score that is not finite is kept.

    Args:
        scores: of any shape.
        statistics: of the batch the thresholds refer to.
        mu_low, mu_high: in standard deviations, not negative.
    """
    centred = batch_centered_scores(scores.discriminator_scores.detach().double(), statistics.discriminator_mean)
    outside = torch.zeros_like(centred, dtype=torch.bool)
    if mu_low is not None:
        outside |= centred < -mu_low * statistics.discriminator_std
    if mu_high is not None:
        outside |= centred > mu_high * statistics.discriminator_std
    return outside


def count_cutoff(control: Control, tokens: GatedTokens, centres: Centres) -> Tensor | None:
    """Where the `max_fraction` furthest out begin, in standard deviations beyond the threshold."""
    if control.value("max_fraction") is None:
        return None
    outside = outside_thresholds(tokens.scores, centres.thresholds, control.mu_low, control.mu_high)
    return cap_cutoff(control, tokens, outside, _distances(control, tokens, centres))


def select(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Leave out what lies outside the thresholds, in scope, and among the furthest `max_fraction` if there is such."""
    outside = outside_thresholds(tokens.scores, centres.thresholds, control.mu_low, control.mu_high)
    if cutoff is None:
        return clipped(control, tokens, outside)
    return clipped(control, tokens, outside & (_distances(control, tokens, centres) >= cutoff), asked=outside)


def _distances(control: Control, tokens: GatedTokens, centres: Centres) -> Tensor:
    statistics = centres.thresholds
    centred = batch_centered_scores(tokens.scores.discriminator_scores.detach().double(), statistics.discriminator_mean)
    return distance_beyond(control, centred / statistics.discriminator_std)
