"""The equations once more, in float64, in the plainest words there are."""

from __future__ import annotations

import torch
from torch import Tensor


def scores64(
    logits: Tensor, token_ids: Tensor, temperature: float | Tensor = 1.0
) -> dict[str, Tensor]:
    """log p, H, S*, E[S], S_c and sum S^2 of every token, two passes over a float64 copy."""
    logprobs = (logits.double() / temperature).log_softmax(-1)
    p = logprobs.exp()
    p_log_p = torch.where(p > 0, p * logprobs, 0.0)
    entropies = -p_log_p.sum(-1, keepdim=True)
    every_score = p * entropies + p_log_p
    expected = (p * every_score).sum(-1)
    chosen = every_score.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return {
        "logprobs": logprobs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1),
        "entropies": entropies.squeeze(-1),
        "discriminator_scores": chosen,
        "expected_scores": expected,
        "vocab_centered_scores": chosen - expected,
        "squared_scores": every_score.square().sum(-1),
    }


def entropy(logits: Tensor) -> Tensor:
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)
