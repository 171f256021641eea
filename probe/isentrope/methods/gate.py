"""The table of methods, and the gradient gate: each token's log-prob keeps its value, its gradient
gets a factor.

0 clips the token, 1 keeps it as it is, anything else weights it. The loss keeps its value, too. Two
methods together multiply their factors, in either order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isentrope.methods.base import Centres, Intervention, Selection
from isentrope.methods.masks import RATIO_CLIP, outside_ratios
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control
from isentrope_wire.methods import METHODS, Method

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Shaped

INTERVENTIONS: Mapping[Method, Intervention] = {
    row: getattr(import_module(f"isentrope.methods.{file}"), name)
    for row in METHODS.values()
    if row.implementation
    for file, name in (row.implementation.split("."),)
}


def select_tokens(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Apply the control's method, then its ratio clip where it has one, then its denominator."""
    return _completed(
        INTERVENTIONS[control.method].select(control, tokens, centres, cutoff), control, tokens
    )


def _completed(own: Selection, control: Control, tokens: TokenBatch) -> Selection:
    factors = own.factors
    bounds = (control.value("epsilon_low"), control.value("epsilon_high"))
    if INTERVENTIONS[control.method] is not RATIO_CLIP and bounds != (None, None):
        factors = factors * ~outside_ratios(control, tokens)
    if control.value("denominator") == "shrink":
        factors = shrink_denominator_by_kept(factors, tokens.mask)
    again = own.in_backward
    return replace(
        own,
        factors=factors,
        in_backward=(
            None if again is None else lambda gradient: _completed(again(gradient), control, tokens)
        ),
    )


def shrink_denominator_by_kept(
    factors: Shaped[Tensor, "*tokens"], mask: Bool[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """The factors times valid / kept tokens of this `gate` call, as if the clipped tokens had not
    been there.

    A loss that is a mean over these tokens then has the gradient of the mean over the kept ones
    alone. Its value stays, and with it what the loop logs. (With a mean over several calls the
    tokens kept in each count as that call's share.)"""
    kept = (mask & (factors != 0)).sum()
    return factors * (mask.sum() / kept.clamp_min(1))


DecisionOfGradient = Callable[[Tensor], Selection | None]
"""The decision that a gradient by the gated log-probs leads to; None: that of the forward pass."""


def gated_logprobs(
    logprobs: Float[Tensor, "*tokens"],
    factors: Shaped[Tensor, "*tokens"],
    in_backward: DecisionOfGradient | None = None,
    entropies: Float[Tensor, "*tokens"] | None = None,
) -> Float[Tensor, "*tokens"]:
    """The log-probs unchanged, in nats; backward multiplies their gradient by the factors, or by
    those of `in_backward`. A factor of 0 also stops a NaN. The entropies, nats, get the gradient
    that `in_backward` adds to them."""
    if in_backward is None and factors.dtype == torch.bool:
        return torch.where(factors, logprobs, logprobs.detach())
    return _Gated.apply(logprobs, entropies, factors, in_backward)  # type: ignore[no-any-return, no-untyped-call]


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logprobs: Tensor,
        entropies: Tensor | None,
        factors: Tensor,
        in_backward: DecisionOfGradient | None,
    ) -> Tensor:
        ctx.save_for_backward(factors.to(logprobs.dtype))
        ctx.in_backward = in_backward
        return logprobs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (factors,) = ctx.saved_tensors
        decision = None
        if ctx.in_backward is not None:
            decision = ctx.in_backward(gradient.detach())
        if decision is not None:
            factors = decision.factors.to(gradient.dtype)
        passed = torch.where(factors == 0, 0.0, gradient * factors)
        if decision is not None and decision.added is not None:
            passed = passed + decision.added.to(gradient.dtype)
        if decision is None or decision.added_to_entropies is None:
            return passed, None, None, None
        return passed, decision.added_to_entropies.to(gradient.dtype), None, None
