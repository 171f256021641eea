"""Ratio clip: PPO's clip with a bound of its own on each side, alone or on top of another method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Intervention, Selection
from isentrope_wire.control import Control

if TYPE_CHECKING:
    from jaxtyping import Bool


def select_ratio_clip(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Clip the tokens to which

        min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A)              arXiv:2503.14476, Clip-Higher

    gives no gradient: A > 0 and r > 1 + epsilon_high, or A < 0 and r < 1 - epsilon_low. Clip-higher is
    epsilon_high > epsilon_low. A mask removes gradients and never restores those that the loop's own clip removed: to
    choose the bounds here, let the loop clip wider. Without sampler log-probs r is not known and every token is kept.
    """
    clipped = outside_ratios(control, tokens) & tokens.in_scope(control.scope)
    return Selection(~clipped, clipped)


def outside_ratios(control: Control, tokens: GatedTokens) -> Bool[Tensor, "*tokens"]:
    """True where the clip removes the gradient, in any scope; a bound that is None does not clip."""
    outside = torch.zeros_like(tokens.mask)
    ratios, low, high = tokens.importance_ratios, control.value("epsilon_low"), control.value("epsilon_high")
    if ratios is None:
        return outside
    if isinstance(high, float):
        outside |= (tokens.advantages > 0) & (ratios > 1 + high)
    if isinstance(low, float):
        outside |= (tokens.advantages < 0) & (ratios < 1 - low)
    return outside


RATIO_CLIP = Intervention(select=select_ratio_clip)
