"""Unlikely: an improbable token of a positive sample gets a larger gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.methods.base import Centres, GatedTokens, Intervention, Selection
from isentrope_wire.control import Control


def select_unlikely(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """Multiply the gradient of the tokens with A > 0 by

        w = 1 + strength max(0, 1 - p / below)

    the token-wise counterpart of the unlikeliness reward (arXiv:2506.02355), which pays a correct answer more the less
    likely it was. Rewarding a token with S_c < 0 raises the entropy, and improbable tokens are such. w lies between 1
    and 1 + strength, falls with p and is 1 from `below` on; the log-prob keeps its value.
    """
    probabilities = tokens.scores.logprobs.exp()
    distance = (1 - probabilities / control.number("below")).clamp_min(0.0)
    raised = tokens.mask & (tokens.advantages > 0) & (distance > 0) & tokens.in_scope(control.scope)
    return Selection(torch.where(raised, 1 + control.number("strength") * distance, 1.0), raised)


UNLIKELY = Intervention(select=select_unlikely)
