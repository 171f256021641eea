"""The table of methods, and the gradient gate: each token's log-prob keeps its value, its gradient gets a factor.

0 clips the token, 1 keeps it as it is, anything else weights it. The loss keeps its value, too. Two methods together
multiply their factors, in either order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isentrope.methods import (
    covariance,
    entropy,
    positive,
    ratio,
    sign,
    steer,
    threshold,
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
    Method.UNLIKELY: positive.UNLIKELY,
    Method.RANK_REWARD: positive.RANK_REWARD,
    Method.POSITIVE_ADVANTAGE: positive.POSITIVE_ADVANTAGE,
    Method.STEER: steer.STEER,
    Method.RATIO_CLIP: ratio.RATIO_CLIP,
    Method.ENTROPY_RATIO_CLIP: entropy.ENTROPY_RATIO_CLIP,
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


class InBackward:
    """A decision about the tokens of one `gate` call that is made again when the gradient of the loss is known.

    The first backward that brings any gradient decides; those after it, of the same graph, follow. Which one that is stays
    on the device.
    """

    def __init__(self, select: Callable[[Tensor], Selection]) -> None:
        """
        Args:
            select: The decision, from the gradient by the gated log-probs.
        """
        self._select = select
        self._decision: Selection | None = None
        self._decided: Tensor | None = None

    def decide(self, gradient: Float[Tensor, "*tokens"]) -> Selection:
        """The decision that this backward uses."""
        if self._decision is None or self._decided is None:
            self._decision, self._decided = self._select(gradient), (gradient != 0).any()
        else:
            before, now = self._decision, self._select(gradient)
            self._decision = Selection(
                torch.where(self._decided, before.factors, now.factors),
                torch.where(self._decided, before.selected, now.selected),
            )
            self._decided = self._decided | (gradient != 0).any()
        return self._decision


FactorsOfGradient = Callable[[Tensor], Tensor | None]
"""The factors that a gradient by the gated log-probs leads to; None: those of the forward pass."""


def gated_logprobs(
    logprobs: Float[Tensor, "*tokens"],
    factors: Shaped[Tensor, "*tokens"],
    in_backward: FactorsOfGradient | None = None,
) -> Float[Tensor, "*tokens"]:
    """The same values; their gradient is multiplied by the factors. A NaN in it stops at a factor of 0.

    Args:
        logprobs: Of the tokens, nats.
        factors: Of the same shape.
        in_backward: Gives other factors once the gradient is known.
    """
    if in_backward is None and factors.dtype == torch.bool:
        return torch.where(factors, logprobs, logprobs.detach())
    return _Gated.apply(logprobs, factors, in_backward)  # type: ignore[no-any-return, no-untyped-call]


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logprobs: Tensor, factors: Tensor, in_backward: FactorsOfGradient | None) -> Tensor:
        ctx.save_for_backward(factors.to(logprobs.dtype))
        ctx.in_backward = in_backward
        return logprobs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (factors,) = ctx.saved_tensors
        if ctx.in_backward is not None:
            found = ctx.in_backward(gradient.detach())
            factors = factors if found is None else found.to(gradient.dtype)
        return torch.where(factors == 0, 0.0, gradient * factors), None, None
