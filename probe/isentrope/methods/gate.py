"""The one door to every method: by what the gradient of each token's log-prob is multiplied under a control.

0 leaves the token out, 1 leaves it as it is, anything else weights it. The log-probs keep their values, and so does the
loss. Two methods together multiply their factors, in either order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from isentrope.methods import covariance, entropy, ratio, sign, threshold, unlikely
from isentrope.methods.base import Centres, GatedTokens, Intervention, Selection
from isentrope_wire.control import Control, Method

METHODS: Mapping[Method, Intervention] = {
    Method.CLIP_B: Intervention(threshold.select_clip_b, threshold.clip_b_cutoff),
    Method.CLIP_V: Intervention(threshold.select_clip_v, threshold.clip_v_cutoff),
    Method.CLIP_COV: Intervention(covariance.select_clip_cov),
    Method.KL_COV: Intervention(covariance.select_kl_cov, covariance.kl_cov_cutoff),
    Method.SCORE_SIGN: Intervention(sign.select_score_sign),
    Method.TOP_ENTROPY: Intervention(entropy.select_top_entropy, entropy.top_entropy_cutoff),
    Method.UNLIKELY: Intervention(unlikely.select_unlikely),
    Method.RATIO_CLIP: Intervention(ratio.select_ratio_clip),
}


def select_tokens(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """What `control` makes of the tokens: its method, then the ratio clip it may bring along, then the denominator.

    Args:
        control: with a method in `METHODS`.
        cutoff: of `METHODS[control.method].count_cutoff`.
    """
    own = METHODS[control.method].select(control, tokens, centres, cutoff)
    factors = own.factors
    if control.method != Method.RATIO_CLIP:
        low, high = control.value("epsilon_low"), control.value("epsilon_high")
        if low is not None or high is not None:
            factors = factors * ~ratio.outside_ratios(tokens, low, high)
    if control.value("denominator") == "shrink":
        factors = with_shrunken_denominator(factors, tokens.mask)
    return Selection(factors, own.candidates)


def with_shrunken_denominator(factors: Tensor, mask: Tensor) -> Tensor:
    """As if the tokens left out had not been there: the factors times valid / kept tokens of this `gate` call.

    A loss that is a mean over these tokens then has the gradient of the mean over the kept ones alone. Its value stays,
    and with it what the loop logs. (With a mean over several calls the tokens kept in each count as that call's share.)
    """
    kept = (mask & (factors != 0)).sum()
    return factors * (mask.sum() / kept.clamp_min(1))


def gated_logprobs(logprobs: Tensor, factors: Tensor) -> Tensor:
    """The same values; the gradient that comes back is multiplied by the factors. A NaN in it stops at a factor of 0."""
    if factors.dtype == torch.bool:
        return torch.where(factors, logprobs, logprobs.detach())
    return _Gated.apply(logprobs, factors)  # type: ignore[no-any-return, no-untyped-call]


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logprobs: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors.to(logprobs.dtype))
        return logprobs.view_as(logprobs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return torch.where(factors == 0, 0.0, gradient * factors), None
