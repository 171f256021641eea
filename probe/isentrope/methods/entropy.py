"""By entropy: update only the tokens at which the policy was most undecided (top entropy), or only those whose entropy has
not moved far since the old policy (entropy-ratio clip, ERC)."""

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

SMALL_ENTROPY = 1e-8
"""Added to both entropies, nats: the ratio of two that are 0 is 1."""


def select_entropy_ratio_clip(
    control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Keep the token if

        1 - beta_low < H / H_old < 1 + beta_high                                               arXiv:2512.05591

    H the entropy at its position now, H_old under the policy that the batch was sampled with (`gate(old_entropies=)`).
    The authors use beta = 0.05 on both sides, beside the ratio clip. Without old entropies, or where one is not finite,
    the token is kept.
    """
    if tokens.old_entropies is None:
        kept = tokens.mask.new_ones(tokens.mask.shape)
        return Selection(kept, ~kept)
    old, now = tokens.old_entropies.double(), tokens.scores.entropies.double()
    ratios = (now + SMALL_ENTROPY) / (old + SMALL_ENTROPY)
    outside = (ratios <= 1 - control.number("beta_low")) | (ratios >= 1 + control.number("beta_high"))
    clipped = outside & tokens.mask & tokens.in_scope(control.scope)
    return Selection(~clipped, clipped)


ENTROPY_RATIO_CLIP = Intervention(select=select_entropy_ratio_clip)
