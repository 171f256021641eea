"""How much a token adds to the covariance of log p and advantage, which is what drives the entropy down."""

from __future__ import annotations

from torch import Tensor

from isentrope.interventions.gated_tokens import Centres, GatedTokens


def covariance_scores(tokens: GatedTokens, centres: Centres) -> Tensor:
    """c_t = (log p_t - mean_B(log p)) (A_t - mean_B(A))                        arXiv:2505.22617, eq. 10

    The means are those of the whole batch: over one micro-batch of one sequence with one advantage c_t would be 0
    everywhere.

    Returns: nats times the advantage's unit, float64; NaN where log p or A is not finite.
    """
    logprobs, advantages = tokens.scores.logprobs.detach().double(), tokens.advantages.double()
    return (logprobs - centres.mean_logprob) * (advantages - centres.mean_advantage)
