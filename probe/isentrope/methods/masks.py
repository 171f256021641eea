"""Keep or drop a token by one number of its own: the sign of its score, its entropy, how far
entropy or ratio have moved.

Score sign, top entropy, entropy-ratio clip (ERC), and PPO's ratio clip with a bound of its own on
each side, which acts on top of another method too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.methods.base import Centres, Intervention, Selection, top_share_cutoff
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control

if TYPE_CHECKING:
    from jaxtyping import Bool


def select_score_sign(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Clip (`mask`), or alone keep (`keep`), the tokens of one sign of

        S* = p (H + log p)                                                arXiv:2602.03392, Figure 1

    on positive or negative samples (the scope). Rewarding a token with S* > 0 lowers the entropy,
    rewarding one with S* < 0 raises it. `keep` clips exactly what `mask` keeps; a score of exactly
    0 has neither sign. A score that is not finite is kept.
    """
    scores = tokens.scores.discriminator_scores
    if control.value("sign") == "positive":
        of_the_sign = scores > 0
    else:
        of_the_sign = scores < 0
    if control.value("action") == "mask":
        clipped = of_the_sign
    else:
        clipped = ~of_the_sign & scores.isfinite()
    clipped = clipped & tokens.is_in_scope(control.scope)
    return Selection(~clipped, clipped)


SCORE_SIGN = Intervention(select=select_score_sign)


def select_top_entropy(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Keep the token if

        H_t >= tau,   tau the (1 - rho) quantile of H over the batch                arXiv:2506.01939

    The share rho is exact (to a token) over the tokens tau was counted from: the previous step's on
    this rank, or the micro-batch's own. A quantile of the step itself is not known before its last
    micro-batch. An entropy that is not finite is kept.
    """
    assert cutoff is not None, "top entropy ranks tokens"
    clipped = (tokens.scores.entropies.double() < cutoff) & tokens.is_in_scope(control.scope)
    return Selection(~clipped, clipped)


def entropy_cutoff(control: Control, tokens: TokenBatch, centres: Centres) -> Tensor:
    """tau: the entropy above which the wanted share of the tokens lies, in nats."""
    return top_share_cutoff(tokens.scores.entropies, tokens.mask, control.number("fraction"))


TOP_ENTROPY = Intervention(select=select_top_entropy, count_cutoff=entropy_cutoff)

SMALL_ENTROPY = 1e-8
"""Added to both entropies, nats: the ratio of two that are 0 is 1."""


def select_entropy_ratio_clip(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Keep the token if

        1 - beta_low < H / H_old < 1 + beta_high                                    arXiv:2512.05591

    H the entropy at its position now, H_old under the policy that the batch was sampled with
    (`gate(old_entropies=)`). The authors use beta = 0.05 on both sides, beside the ratio clip.
    Without old entropies, or where one is not finite, the token is kept.
    """
    if tokens.old_entropies is None:
        kept = tokens.mask.new_ones(tokens.mask.shape)
        return Selection(kept, ~kept)
    old, now = tokens.old_entropies.double(), tokens.scores.entropies.double()
    ratios = (now + SMALL_ENTROPY) / (old + SMALL_ENTROPY)
    outside = (ratios <= 1 - control.number("beta_low")) | (
        ratios >= 1 + control.number("beta_high")
    )
    clipped = outside & tokens.mask & tokens.is_in_scope(control.scope)
    return Selection(~clipped, clipped)


ENTROPY_RATIO_CLIP = Intervention(select=select_entropy_ratio_clip)


def select_ratio_clip(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Clip the tokens to which

        min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A)         arXiv:2503.14476, Clip-Higher

    gives no gradient: A > 0 and r > 1 + epsilon_high, or A < 0 and r < 1 - epsilon_low. Clip-higher
    is epsilon_high > epsilon_low. A mask removes gradients and never restores those that the loop's
    own clip removed: to choose the bounds here, let the loop clip wider. Without sampler log-probs
    r is not known and every token is kept."""
    clipped = outside_ratios(control, tokens) & tokens.is_in_scope(control.scope)
    return Selection(~clipped, clipped)


def outside_ratios(control: Control, tokens: TokenBatch) -> Bool[Tensor, "*tokens"]:
    """True where the clip removes the gradient, in any scope; a bound that is None does not
    clip."""
    outside = torch.zeros_like(tokens.mask)
    ratios, low, high = (
        tokens.importance_ratios,
        control.value("epsilon_low"),
        control.value("epsilon_high"),
    )
    if ratios is None:
        return outside
    if isinstance(high, float):
        outside |= (tokens.advantages > 0) & (ratios > 1 + high)
    if isinstance(low, float):
        outside |= (tokens.advantages < 0) & (ratios < 1 - low)
    return outside


RATIO_CLIP = Intervention(select=select_ratio_clip)
