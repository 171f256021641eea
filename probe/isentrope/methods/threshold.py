"""What Clip_B and Clip_V have in common: two thresholds, a scope, and a cap on how much is left out.

Clip_B: leave out the tokens whose discriminator score is an outlier of the batch.

    keep while  -mu_low sigma <= S* - mean_B(S*) <= mu_high sigma                  arXiv:2602.03392, eq. 15

with mean and sigma over the batch's tokens, in nats. A side that is None does not clip; a score that is not finite is
kept.

Clip_V: leave out the tokens whose vocabulary-centred score is large.

    keep while  -mu_low sigma' <= S_c <= mu_high sigma',   sigma' = std_B(S_c)     arXiv:2602.03392, eq. 16

in nats. S_c = S* - E[S] is centred once, as in the paper's text (eq. 16 as printed subtracts E[S] twice). A side that is
None does not clip; a score that is not finite is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Selection, in_scope, top_share_cutoff
from isentrope.scores import batch_centered_scores
from isentrope_wire.control import Control


def outside_thresholds(centred: Tensor, sigma: Tensor, control: Control) -> Tensor:
    """True where a centred score lies below -mu_low sigma or above mu_high sigma. A side that is None does not clip.

    Args:
        centred: in nats, any shape; what is not finite lies outside nothing.
        sigma: in nats, a scalar.
    """
    outside = torch.zeros_like(centred, dtype=torch.bool)
    if control.mu_low is not None:
        outside |= centred < -control.mu_low * sigma
    if control.mu_high is not None:
        outside |= centred > control.mu_high * sigma
    return outside


def threshold_cutoff(control: Control, tokens: GatedTokens, centred: Tensor, sigma: Tensor) -> Tensor | None:
    """Where the `max_fraction` furthest out begin, in standard deviations beyond the threshold."""
    if control.value("max_fraction") is None:
        return None
    among = _in_scope(control, tokens, outside_thresholds(centred, sigma, control))
    distances = distance_beyond(control, centred / sigma)
    return top_share_cutoff(distances, tokens.mask, control.number("max_fraction"), among=among, at_most=True)


def select_by_threshold(
    control: Control, tokens: GatedTokens, centred: Tensor, sigma: Tensor, cutoff: Tensor | None
) -> Selection:
    """Leave out what lies outside the thresholds, in scope, and among the furthest `max_fraction` if there is such.

    What would have been left out without that cap are the candidates: while it binds, moving µ changes nothing.
    """
    asked = dropped = _in_scope(control, tokens, outside_thresholds(centred, sigma, control))
    if cutoff is not None:
        dropped = asked & (distance_beyond(control, centred / sigma) >= cutoff)
    return Selection(~dropped, asked)


def distance_beyond(control: Control, standardised: Tensor) -> Tensor:
    """How far beyond its threshold a score lies, in standard deviations; -inf with no threshold at all.

    Args:
        standardised: the score from its centre, in standard deviations.
    """
    none = torch.full_like(standardised, -torch.inf)
    below = none if control.mu_low is None else -control.mu_low - standardised
    above = none if control.mu_high is None else standardised - control.mu_high
    return torch.maximum(below, above)


def _in_scope(control: Control, tokens: GatedTokens, outside: Tensor) -> Tensor:
    return outside & in_scope(control.scope, tokens.advantages, tokens.scores.vocab_centered_scores)


def clip_b_cutoff(control: Control, tokens: GatedTokens, centres: Centres) -> Tensor | None:
    """Where the `max_fraction` furthest out begin, in standard deviations beyond the threshold."""
    return threshold_cutoff(control, tokens, _clip_b_centred(tokens, centres), centres.thresholds.discriminator_std)


def select_clip_b(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Leave out what lies outside the thresholds, in scope, and among the furthest `max_fraction` if there is such."""
    sigma = centres.thresholds.discriminator_std
    return select_by_threshold(control, tokens, _clip_b_centred(tokens, centres), sigma, cutoff)


def _clip_b_centred(tokens: GatedTokens, centres: Centres) -> Tensor:
    scores = tokens.scores.discriminator_scores.detach().double()
    return batch_centered_scores(scores, centres.thresholds.discriminator_mean)


def clip_v_cutoff(control: Control, tokens: GatedTokens, centres: Centres) -> Tensor | None:
    """Where the `max_fraction` furthest out begin, in standard deviations beyond the threshold."""
    centred = tokens.scores.vocab_centered_scores.detach().double()
    return threshold_cutoff(control, tokens, centred, centres.thresholds.vocab_centered_std)


def select_clip_v(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Leave out what lies outside the thresholds, in scope, and among the furthest `max_fraction` if there is such."""
    centred = tokens.scores.vocab_centered_scores.detach().double()
    return select_by_threshold(control, tokens, centred, centres.thresholds.vocab_centered_std, cutoff)
