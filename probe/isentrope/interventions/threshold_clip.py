"""What Clip_B and Clip_V have in common: two thresholds, a scope, and a cap on how much is left out."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.interventions.gated_tokens import GatedTokens, Selection
from isentrope.interventions.scope import in_scope
from isentrope.interventions.top_share import top_share_cutoff
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


def count_cutoff(control: Control, tokens: GatedTokens, centred: Tensor, sigma: Tensor) -> Tensor | None:
    """Where the `max_fraction` furthest out begin, in standard deviations beyond the threshold."""
    if control.value("max_fraction") is None:
        return None
    among = _in_scope(control, tokens, outside_thresholds(centred, sigma, control))
    distances = distance_beyond(control, centred / sigma)
    return top_share_cutoff(distances, tokens.mask, control.number("max_fraction"), among=among, at_most=True)


def select(control: Control, tokens: GatedTokens, centred: Tensor, sigma: Tensor, cutoff: Tensor | None) -> Selection:
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
