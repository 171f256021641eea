"""Which way the entropy moves when a sampled token's logit rises, and how that is centred."""

from __future__ import annotations

from torch import Tensor


def entropy_discriminator(token_logprobs: Tensor, token_entropies: Tensor) -> Tensor:
    """S* = p (H + log p)                                                     arXiv:2602.03392, Theorem 1

    Raising the sampled token's logit by eps changes the entropy by -eps S*: positive S* means that rewarding the token
    lowers entropy. It never lies below -0.22388.

    Args:
        token_logprobs: log p of the sampled tokens, in nats, any shape.
        token_entropies: H of the same distributions, in nats, same shape.
    Returns: S* in nats, of the same shape and dtype (upcast before calling; `token_scores` is the accurate way).
    """
    return token_logprobs.exp() * (token_entropies + token_logprobs)


def vocab_centered_scores(discriminator_scores: Tensor, expected_scores: Tensor) -> Tensor:
    """S_c = S* - E_p[S]                                                      arXiv:2602.03392, Corollary 1

    Its mean over tokens sampled from p is exactly 0, and a policy-gradient step of strength alpha on the token changes
    the entropy by -alpha S_c.

    Args:
        discriminator_scores, expected_scores: S* and E[S] in nats, same shape.
    """
    return discriminator_scores - expected_scores


def batch_centered_scores(discriminator_scores: Tensor, batch_mean: Tensor | float) -> Tensor:
    """S* - mean_B(S*): what Clip_B compares with its thresholds              arXiv:2602.03392, eq. 15"""
    return discriminator_scores - batch_mean
