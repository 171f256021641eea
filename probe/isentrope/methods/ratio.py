"""Ratio clip: PPO's clip with a bound of its own on each side, alone or on top of another method."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Selection, in_scope
from isentrope_wire.control import Control


def select_ratio_clip(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Leave out the tokens that

        min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A)              arXiv:2503.14476, Clip-Higher

    gives no gradient: A > 0 and r > 1 + epsilon_high, or A < 0 and r < 1 - epsilon_low. Clip-higher is
    epsilon_high > epsilon_low. A mask can take gradient away and never give back what the loop's own clip took: to
    choose the bounds here, let the loop clip wider. Without sampler log-probs r is not known and every token is kept.
    """
    outside = outside_ratios(tokens, control.value("epsilon_low"), control.value("epsilon_high"))
    outside &= in_scope(control.scope, tokens.advantages, tokens.scores.vocab_centered_scores)
    return Selection(~outside, outside)


def outside_ratios(tokens: GatedTokens, epsilon_low: object, epsilon_high: object) -> Tensor:
    """True where the clip takes the gradient; a bound that is None does not clip."""
    outside = torch.zeros_like(tokens.mask)
    ratios = tokens.importance_ratios
    if ratios is None:
        return outside
    if isinstance(epsilon_high, float):
        outside |= (tokens.advantages > 0) & (ratios > 1 + epsilon_high)
    if isinstance(epsilon_low, float):
        outside |= (tokens.advantages < 0) & (ratios < 1 - epsilon_low)
    return outside
