"""Entropy-ratio clip (ERC): leave out the tokens whose entropy has moved too far since the old policy, either way."""

from __future__ import annotations

from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Intervention, Selection
from isentrope_wire.control import Control

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
