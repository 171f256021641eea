"""Top entropy: only the tokens at which the policy was most undecided are updated."""

from __future__ import annotations

from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Selection, in_scope, top_share_cutoff
from isentrope_wire.control import Control


def top_entropy_cutoff(control: Control, tokens: GatedTokens, centres: Centres) -> Tensor | None:
    """tau: the entropy above which the wanted share of the tokens lies, in nats."""
    return entropy_cutoff(control, tokens.scores.entropies.detach(), tokens.mask)


def entropy_cutoff(control: Control, entropies: Tensor, mask: Tensor) -> Tensor:
    """tau of tokens of which no more is known than their entropies, as in a first pass."""
    return top_share_cutoff(entropies, mask, control.number("fraction"))


def select_top_entropy(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Keep the token if

        H_t >= tau,   tau the (1 - rho) quantile of H over the batch                         arXiv:2506.01939

    The share rho is exact (to a token) over the tokens tau was counted from: those of the first pass on this rank where
    there is one, else the previous step's, or the micro-batch's own. A quantile of the step itself can't be known
    before its last micro-batch. An entropy that
    is not finite is kept.
    """
    assert cutoff is not None, "top entropy ranks tokens"
    outside = tokens.scores.entropies.detach().double() < cutoff
    outside &= in_scope(control.scope, tokens.advantages, tokens.scores.vocab_centered_scores)
    return Selection(~outside, outside)
