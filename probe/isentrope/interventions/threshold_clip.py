"""What Clip_B and Clip_V have in common: two thresholds, a scope, and a cap on how much is left out."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.interventions.gated_tokens import GatedTokens, Selection
from isentrope.interventions.scope import in_scope
from isentrope.interventions.top_share import top_share_cutoff
from isentrope_wire.control import Control


def distance_beyond(control: Control, standardised: Tensor) -> Tensor:
    """How far beyond its threshold a score lies, in standard deviations; -inf with no threshold at all.

    Args:
        standardised: the score from its centre, in standard deviations.
    """
    none = torch.full_like(standardised, -torch.inf)
    below = none if control.mu_low is None else -control.mu_low - standardised
    above = none if control.mu_high is None else standardised - control.mu_high
    return torch.maximum(below, above)


def cap_cutoff(control: Control, tokens: GatedTokens, outside: Tensor, distances: Tensor) -> Tensor:
    """The distance from which on a token belongs to the `max_fraction` furthest out."""
    among = _in_scope(control, tokens, outside)
    return top_share_cutoff(distances, tokens.mask, control.number("max_fraction"), among=among, at_most=True)


def clipped(control: Control, tokens: GatedTokens, dropped: Tensor, asked: Tensor | None = None) -> Selection:
    """Leave out the tokens of `dropped` that lie in the scope.

    Args:
        asked: what would have been dropped without the cap. While the cap binds, moving µ changes nothing.
    """
    dropped = _in_scope(control, tokens, dropped)
    return Selection(~dropped, dropped if asked is None else _in_scope(control, tokens, asked))


def _in_scope(control: Control, tokens: GatedTokens, outside: Tensor) -> Tensor:
    return outside & in_scope(control.scope, tokens.advantages, tokens.scores.vocab_centered_scores)
