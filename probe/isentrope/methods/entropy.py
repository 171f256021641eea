"""Top entropy: update only the tokens at which the policy was most undecided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Intervention, Selection, top_share_cutoff
from isentrope_wire.control import Control

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64


def select_top_entropy(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Keep the token if

        H_t >= tau,   tau the (1 - rho) quantile of H over the batch                         arXiv:2506.01939

    The share rho is exact (to a token) over the tokens tau was counted from: those of the first pass on this rank where
    there is one, else the previous step's, or the micro-batch's own. A quantile of the step itself is not known before
    its last micro-batch. An entropy that is not finite is kept.
    """
    assert cutoff is not None, "top entropy ranks tokens"
    clipped = (tokens.scores.entropies.double() < cutoff) & tokens.in_scope(control.scope)
    return Selection(~clipped, clipped)


def entropy_cutoff(
    control: Control, entropies: Float[Tensor, "*tokens"], mask: Bool[Tensor, "*tokens"]
) -> Float64[Tensor, ""]:
    """tau: the entropy above which the wanted share of the tokens lies, in nats."""
    return top_share_cutoff(entropies, mask, control.number("fraction"))


TOP_ENTROPY = Intervention(
    select=select_top_entropy,
    count_cutoff=lambda control, tokens, centres: entropy_cutoff(control, tokens.scores.entropies, tokens.mask),
    count_first_pass=entropy_cutoff,
)
