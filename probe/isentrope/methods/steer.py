"""STEER: weigh each token down by how much its update would change the entropy, whichever way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Intervention, Selection
from isentrope_wire.control import Control

if TYPE_CHECKING:
    from jaxtyping import Float64

SMALLEST_LARGEST_CHANGE = 0.02
"""Where no token's estimated change is larger, weights are counted as if one were of this size."""


def estimated_changes(control: Control, tokens: GatedTokens) -> Float64[Tensor, "*tokens"]:
    """|Omega| of each token, the size of the entropy change that its update is estimated to make, per unit of step size.

        Omega = A / p_old p (1 - p) (log p + H)      estimate `authors`, the code released with arXiv:2510.10150
        Omega = r A S_c                              estimate `exact`, Theorem 2 of arXiv:2602.03392

    with r = p / p_old, 1 where the loop passes no log-probs of the old policy. 0 where a number is not finite.
    """
    scores = tokens.scores
    if control.value("estimate") == "exact":
        changes = scores.vocab_centered_scores.double()
    else:
        logprobs = scores.logprobs.double()
        changes = -logprobs.expm1() * (logprobs + scores.entropies.double())
    changes = changes * tokens.advantages.double()
    if tokens.importance_ratios is not None:
        changes = changes * tokens.importance_ratios.double()
    return changes.abs().nan_to_num(nan=0.0, posinf=0.0)


def largest_change(control: Control, tokens: GatedTokens, centres: Centres) -> Float64[Tensor, ""]:
    """max |Omega| over the tokens that count."""
    changes = estimated_changes(control, tokens) * tokens.mask
    return torch.zeros_like(centres.mean_advantage) if not changes.numel() else changes.max()


def select_steer(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Multiply the gradient by

        w = exp(-kappa |Omega|),   kappa = -log(w_min) / max(max_B |Omega|, 0.02)                arXiv:2510.10150

    but by no less than w_min, `minimum_weight`: the token that changes the entropy most gets that weight, one that does
    not change it gets 1. The authors take the maximum over each micro-batch.
    """
    assert cutoff is not None, "STEER counts the largest change"
    kappa = -math.log(control.number("minimum_weight")) / cutoff.clamp(min=SMALLEST_LARGEST_CHANGE)
    weights = (-kappa * estimated_changes(control, tokens)).exp().clamp(min=control.number("minimum_weight"))
    lowered = tokens.mask & (weights < 1) & tokens.in_scope(control.scope)
    return Selection(torch.where(lowered, weights, 1.0).to(tokens.scores.logprobs.dtype), lowered)


STEER = Intervention(select=select_steer, count_cutoff=largest_change)
