"""The table of methods, and the gradient gate: each token's log-prob keeps its value, its gradient gets a factor.

0 clips the token, 1 keeps it as it is, anything else weights it. The loss keeps its value, too. Two methods together
multiply their factors, in either order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isentrope.methods import (
    covariance,
    entropy,
    entropy_ratio,
    positive,
    rank,
    ratio,
    sign,
    steer,
    threshold,
    unlikely,
)
from isentrope.methods.base import Centres, GatedTokens, Intervention, Selection
from isentrope_wire.control import Control, Method

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Shaped

INTERVENTIONS: Mapping[Method, Intervention] = {
    Method.CLIP_B: threshold.CLIP_B,
    Method.CLIP_V: threshold.CLIP_V,
    Method.CLIP_COV: covariance.CLIP_COV,
    Method.KL_COV: covariance.KL_COV,
    Method.SCORE_SIGN: sign.SCORE_SIGN,
    Method.TOP_ENTROPY: entropy.TOP_ENTROPY,
    Method.UNLIKELY: unlikely.UNLIKELY,
    Method.RANK_REWARD: rank.RANK_REWARD,
    Method.POSITIVE_ADVANTAGE: positive.POSITIVE_ADVANTAGE,
    Method.STEER: steer.STEER,
    Method.RATIO_CLIP: ratio.RATIO_CLIP,
    Method.ENTROPY_RATIO_CLIP: entropy_ratio.ENTROPY_RATIO_CLIP,
}


def select_tokens(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Apply the control's method, then its ratio clip where it has one, then its denominator.

    Args:
        control: With a method in `INTERVENTIONS`.
        tokens: Those of one `gate` call.
        centres: What the method counts from.
        cutoff: That of `INTERVENTIONS[control.method]`, over the tokens it counts from.
    """
    own = INTERVENTIONS[control.method].select(control, tokens, centres, cutoff)
    factors = own.factors
    bounds = (control.value("epsilon_low"), control.value("epsilon_high"))
    if control.method != Method.RATIO_CLIP and bounds != (None, None):
        factors = factors * ~ratio.outside_ratios(control, tokens)
    if control.value("denominator") == "shrink":
        factors = with_shrunken_denominator(factors, tokens.mask)
    return Selection(factors, own.selected)


def with_shrunken_denominator(
    factors: Shaped[Tensor, "*tokens"], mask: Bool[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """The factors times valid / kept tokens of this `gate` call, as if the clipped tokens had not been there.

    A loss that is a mean over these tokens then has the gradient of the mean over the kept ones alone. Its value stays,
    and with it what the loop logs. (With a mean over several calls the tokens kept in each count as that call's share.)
    """
    kept = (mask & (factors != 0)).sum()
    return factors * (mask.sum() / kept.clamp_min(1))


def gated_logprobs(logprobs: Float[Tensor, "*tokens"], factors: Shaped[Tensor, "*tokens"]) -> Float[Tensor, "*tokens"]:
    """The same values; their gradient is multiplied by the factors. A NaN in it stops at a factor of 0."""
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
