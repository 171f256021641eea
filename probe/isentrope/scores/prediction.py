"""What one policy-gradient step does to the entropy, to first order and per unit of step strength."""

from __future__ import annotations

import torch
from torch import Tensor


def importance_ratios(trainer_logprobs: Tensor, sampler_logprobs: Tensor) -> Tensor:
    """r = p_trainer / p_sampler per token.

    Args:
        trainer_logprobs, sampler_logprobs: log-probs of the sampled tokens in nats, same shape.
    """
    return (trainer_logprobs - sampler_logprobs).exp()


def entropy_contributions(
    vocab_centered_scores: Tensor, advantages: Tensor, importance_ratios: Tensor | float, keep_mask: Tensor
) -> Tensor:
    """-keep r A S_c per token; its mean over the step's tokens is the unit prediction  arXiv:2602.03392, Cor. 4, 4.1

    Multiply by the (unknown) gain of optimiser and model to get nats. A token whose gradient does not take part
    contributes 0. One whose gradient is weighted contributes as much more: multiply by its factor.

    Args:
        vocab_centered_scores: S_c in nats.
        advantages: A, same shape.
        importance_ratios: r, same shape; 1 when strictly on-policy.
        keep_mask: True where the token's gradient takes part.
    """
    return torch.where(keep_mask, -(importance_ratios * advantages * vocab_centered_scores), 0.0)
