"""Positive-advantage reweighting: one weight for all tokens with A > 0, which are what lowers the entropy most."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Intervention, Selection
from isentrope_wire.control import Control


def select_positive_advantage(
    control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Multiply the gradient of the tokens with A > 0 by lambda, from 0 to 1                     arXiv:2511.05993

    The paper moves lambda during the run, by stages or epochs, or by a fixed step up while the entropy lies above a target
    and down while it lies below. Here it stays what the control has; a new one can be pushed at any step.
    """
    chosen = tokens.mask & (tokens.advantages > 0) & tokens.in_scope(control.scope)
    factors = torch.ones_like(tokens.scores.logprobs)
    return Selection(torch.where(chosen, control.number("weight"), factors), chosen)


POSITIVE_ADVANTAGE = Intervention(select=select_positive_advantage)
