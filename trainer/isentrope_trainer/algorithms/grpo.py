"""Group Relative Policy Optimisation, strictly on-policy: one optimiser step for each batch of rollouts."""

from __future__ import annotations

import torch
from torch import Tensor


def group_advantages(rewards: Tensor) -> Tensor:
    """How much better each rollout did than the others of its prompt.

        A = (R - mean_group(R)) / std_group(R)              arXiv:2402.03300, section 4.1

    Args:
        rewards: [prompts, group size].

    Returns:
        [prompts, group size]; exactly 0 in a group whose rewards are all equal.
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    spread = rewards.std(dim=1, keepdim=True)
    return torch.where(zero_advantage_groups(rewards)[:, None], 0.0, centred / spread.clamp_min(1e-12))


def zero_advantage_groups(rewards: Tensor) -> Tensor:
    """Which groups teach nothing, because all their rollouts were rewarded alike.

    Args:
        rewards: [prompts, group size].

    Returns:
        Bool [prompts].
    """
    return (rewards == rewards[:, :1]).all(dim=1)


def policy_gradient_loss(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The on-policy surrogate, averaged over the batch's tokens.

        L = -sum(A r) / tokens, with r = p / p_detached = 1 in value and grad log p in gradient

    Args:
        logprobs: [rollouts, tokens] of the sampled tokens, differentiable, in nats.
        advantages: [rollouts, tokens].
        mask: bool [rollouts, tokens], False on padding, which neither contributes nor counts.

    Returns:
        A scalar.
    """
    ratios = (logprobs - logprobs.detach()).exp()
    return -(advantages * ratios * mask).sum() / mask.sum()
