"""What one policy-gradient step does to the entropy, to first order and per unit of step strength: scores of sampled
tokens, how they are centred, and the contributions that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def importance_ratios(
    trainer_logprobs: Float[Tensor, "*tokens"], sampler_logprobs: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """r = p_trainer / p_sampler per token.

    Args:
        trainer_logprobs: Log-probs of the sampled tokens under the current policy, in nats.
        sampler_logprobs: Those the tokens were drawn with, in nats.
    """
    return (trainer_logprobs - sampler_logprobs).exp()


def entropy_contributions(
    vocab_centered_scores: Float[Tensor, "*tokens"],
    advantages: Float[Tensor, "*tokens"],
    importance_ratios: Float[Tensor, "*tokens"] | float,
    keep_mask: Bool[Tensor, "*tokens"],
) -> Float[Tensor, "*tokens"]:
    """-keep r A S_c per token; its mean over the step's tokens is the unit prediction  arXiv:2602.03392, Cor. 4, 4.1

    Multiply by the (unknown) gain of optimiser and model to get nats. A token whose gradient does not take part
    contributes 0. One whose gradient is weighted contributes as much more: multiply by its factor.

    Args:
        vocab_centered_scores: S_c in nats.
        advantages: A.
        importance_ratios: r; 1 when strictly on-policy.
        keep_mask: True where the token's gradient takes part.

    Returns:
        In nats per unit gain.
    """
    return torch.where(keep_mask, -(importance_ratios * advantages * vocab_centered_scores), 0.0)


def entropy_discriminator(
    token_logprobs: Float[Tensor, "*tokens"], token_entropies: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """S* = p (H + log p)                                                     arXiv:2602.03392, Theorem 1

    Raising the sampled token's logit by eps changes the entropy by -eps S*: positive S* means that rewarding the token
    lowers entropy. It never lies below -0.22388.

    Args:
        token_logprobs: log p of the sampled tokens, in nats.
        token_entropies: H of the same distributions, in nats.

    Returns:
        S* in nats, of the same dtype (upcast before calling; `token_scores` is the accurate way).
    """
    return token_logprobs.exp() * (token_entropies + token_logprobs)


def vocab_centered_scores(
    discriminator_scores: Float[Tensor, "*tokens"], expected_scores: Float[Tensor, "*tokens"]
) -> Float[Tensor, "*tokens"]:
    """S_c = S* - E_p[S]                                                      arXiv:2602.03392, Corollary 1

    Its mean over tokens sampled from p is exactly 0, and a policy-gradient step of strength alpha on the token changes
    the entropy by -alpha S_c.

    Args:
        discriminator_scores: S* in nats.
        expected_scores: E[S] in nats.
    """
    return discriminator_scores - expected_scores


def batch_centered_scores(
    discriminator_scores: Float[Tensor, "*tokens"], batch_mean: Float[Tensor, ...] | float
) -> Float[Tensor, "*tokens"]:
    """S* - mean_B(S*): what thresholds on S* are compared with               arXiv:2602.03392, eq. 15"""
    return discriminator_scores - batch_mean
