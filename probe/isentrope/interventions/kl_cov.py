"""KL-Cov: the tokens with the highest covariance of log p and advantage are held near the policy they came from."""

from __future__ import annotations

import torch
from torch import Tensor

from isentrope.interventions.covariance_scores import covariance_scores
from isentrope.interventions.gated_tokens import Centres, GatedTokens, Selection
from isentrope.interventions.scope import in_scope
from isentrope.interventions.top_share import top_share_cutoff
from isentrope_wire.control import Control

LARGEST_LOG_RATIO = 20.0
"""Beyond it 1/r is no number to compute with."""


def count_cutoff(control: Control, tokens: GatedTokens, centres: Centres) -> Tensor | None:
    """The c_t above which the top k share of the tokens lies."""
    return top_share_cutoff(covariance_scores(tokens, centres), tokens.mask, control.number("k"))


def select(control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
    """On the tokens of the top share the loss becomes

        -A r + beta KL(pi_old || pi),   I_KL = {t : Rank(c_t) <= k N}             arXiv:2505.22617, eq. 13, 14

    The loop keeps its loss; the penalty comes in through the gradient. KL is estimated on the sampled token by
    r - 1 - log r, r = p / p_old, which is unbiased and never negative; its gradient is (r - 1) grad log p. A loss term
    of -A r has the gradient -A r grad log p, so that the sum of both is the loop's own gradient times

        1 - beta (1 - 1 / r) / (w A)

    with w what the loop's own loss makes of r A (1 where it did not say), in whatever way the loop averages, scales or accumulates. This holds for the surrogate -A r, and for -A log p to
    first order in r - 1. A token with A = 0, or one the loop's own clip has silenced, has no gradient to multiply and
    is not penalised. Strictly on-policy r is 1 and so is the factor: the method can't act. Nor can it when the loop
    gives no sampler log-probs.
    """
    assert cutoff is not None, "KL-Cov ranks tokens"
    chosen = tokens.mask & (covariance_scores(tokens, centres) >= cutoff)
    chosen &= in_scope(control.scope, tokens.advantages, tokens.scores.vocab_centered_scores)
    factors = torch.ones_like(tokens.scores.logprobs)
    if tokens.importance_ratios is None:
        return Selection(factors, chosen)
    weights = 1.0 if tokens.loss_weights is None else tokens.loss_weights.double()
    inverse = (-tokens.importance_ratios.double().log().clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)).exp()
    penalised = (1 - control.number("beta") * (1 - inverse) / (weights * tokens.advantages.double())).to(factors.dtype)
    return Selection(torch.where(chosen & penalised.isfinite(), penalised, factors), chosen)
