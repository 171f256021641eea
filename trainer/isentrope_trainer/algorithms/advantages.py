"""Advantages: how much better each completion, or each of its tokens, did than could be expected.

Pure functions of tensors, and the table that names them. Rewards are [prompts, group size], one row
for the rollouts of a prompt; what belongs to tokens is [rollouts, tokens], where rollout i * group
size + j is the j-th of prompt i. R is a reward, G the group size.

    group          (R - mean) / std of the group                     GRPO, arXiv:2402.03300, 4.1
    group_centred  R - mean of the group                             Dr. GRPO, arXiv:2503.20783
    leave_one_out  R - mean of the others of the group               RLOO, arXiv:2402.14740
    batch          R as a standard score over the batch's tokens     REINFORCE++, arXiv:2501.03262
    gae            sum over s >= t of (discount lambda)^(s-t) delta_sPPO, arXiv:1707.06347, eq. 11
    process        leave_one_out of R + centred token rewards        PRIME, arXiv:2502.01456
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def alone(sums: Tensor) -> Tensor:
    """Sums over all ranks, where there is one."""
    return sums


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JudgedRollouts:
    """What advantages are computed from."""

    rewards: Tensor
    """[prompts, group size]."""
    mask: Tensor
    """bool [rollouts, tokens], False on padding."""
    values: Tensor | None = None
    """[rollouts, tokens], the value head's estimate before each token; for `gae`."""
    token_rewards: Tensor | None = None
    """[rollouts, tokens], beside the rewards of whole completions; for `process`."""
    discount: float = 1.0
    gae_lambda: float = 1.0
    sum_over_ranks: Callable[[Tensor], Tensor] = alone
    """Where the batch is shared out, its normalisation is over all of it."""


def zero_advantage_groups(rewards: Tensor) -> Tensor:
    """Which groups of rewards [prompts, group size] give no gradient because all are equal: bool
    [prompts]."""
    return (rewards == rewards[:, :1]).all(dim=1)


def group_advantages(rewards: Tensor) -> Tensor:
    """Standard scores within each group; exactly 0 in a group whose rewards are all equal. Shapes
    as above."""
    spread = rewards.std(dim=1, keepdim=True)
    return torch.where(
        zero_advantage_groups(rewards)[:, None],
        0.0,
        centred_advantages(rewards) / spread.clamp_min(1e-12),
    )


def centred_advantages(rewards: Tensor) -> Tensor:
    """Rewards less the mean of their group. Shapes as above."""
    return rewards - rewards.mean(dim=1, keepdim=True)


def leave_one_out_advantages(rewards: Tensor) -> Tensor:
    """Rewards less the mean of the others of their group. Shapes as above."""
    others = rewards.shape[1] - 1
    return rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / others


def normalised(
    values: Tensor, mask: Tensor, sum_over_ranks: Callable[[Tensor], Tensor] = alone
) -> Tensor:
    """Standard scores over all tokens of the batch, whose sums are taken over all ranks that share
    it. Values and bool mask are [rollouts, tokens], and so is the result: 0 on padding, and
    everywhere where all values are equal."""
    counted = torch.where(mask, values, 0.0).double()
    count, total = sum_over_ranks(torch.stack([mask.sum().double(), counted.sum()]))
    centred = torch.where(mask, values.double() - total / count, 0.0)
    variance = sum_over_ranks(centred.square().sum()) / (count - 1).clamp_min(1.0)
    scores: Tensor = centred / (variance.sqrt() + 1e-8)
    return scores.to(values.dtype)


def rewards_at_end(rewards: Tensor, mask: Tensor) -> Tensor:
    """Rewards [prompts, group size] of completions as those of their last tokens, [rollouts,
    tokens]. The mask is bool [rollouts, tokens], with at least one token in each row."""
    ends = torch.zeros(mask.shape, dtype=rewards.dtype, device=rewards.device)
    return ends.scatter(1, mask.sum(dim=1, keepdim=True) - 1, rewards.reshape(-1, 1))


def returns(token_rewards: Tensor, mask: Tensor, discount: float = 1.0) -> Tensor:
    """What a token and those after it are rewarded with: sum over s >= t of discount^(s-t) r_s, 0
    on padding. Rewards and bool mask are [rollouts, tokens], as is the result; padding comes
    last."""
    kept = torch.where(mask, token_rewards, 0.0)
    sums, following = [], torch.zeros_like(kept[:, 0])
    for rewards in kept.flip(1).unbind(dim=1):
        following = rewards + discount * following
        sums.append(following)
    return torch.where(mask, torch.stack(sums, dim=1).flip(1), 0.0)


def generalised_advantages(
    token_rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    discount: float = 1.0,
    gae_lambda: float = 1.0,
) -> Tensor:
    """Generalised advantage estimation: A_t = delta_t + discount lambda A_(t+1).

        delta_t = r_t + discount V_(t+1) - V_t

    All are [rollouts, tokens]: rewards, V before each token (0 after the last), bool mask with
    padding last, and the result, 0 on padding. Advantages plus values are the targets of the value
    head."""
    known = torch.where(mask, values, 0.0)
    following = torch.cat([known[:, 1:], torch.zeros_like(known[:, :1])], dim=1)
    return returns(token_rewards + discount * following - known, mask, discount * gae_lambda)


def process_advantages(
    rewards: Tensor, token_rewards: Tensor, mask: Tensor, discount: float = 1.0
) -> Tensor:
    """PRIME's sum of two leave-one-out advantages: of the outcome, and of the token rewards'
    return.

        A_t = leave_one_out(R) + sum over s >= t of discount^(s-t) (r_s - b), b the mean over the
        others of the group of their mean token reward

    The rewards of the outcome are [prompts, group size]. Token rewards, bool mask and the result
    are [rollouts, tokens]; padding comes last, and the result is 0 on it."""
    means = (token_rewards * mask).sum(dim=1).div(mask.sum(dim=1)).reshape(rewards.shape)
    baselines = means - leave_one_out_advantages(means)
    of_tokens = returns(token_rewards - baselines.reshape(-1, 1), mask, discount)
    return torch.where(mask, of_tokens + leave_one_out_advantages(rewards).reshape(-1, 1), 0.0)


def _spread_over_tokens(
    advantages: Callable[[Tensor], Tensor],
) -> Callable[[JudgedRollouts], Tensor]:
    return lambda judged: advantages(judged.rewards).reshape(-1, 1).expand_as(judged.mask)


def _center_on_batch(judged: JudgedRollouts) -> Tensor:
    of_tokens = returns(rewards_at_end(judged.rewards, judged.mask), judged.mask, judged.discount)
    return normalised(of_tokens, judged.mask, judged.sum_over_ranks)


def unnormalised_gae(judged: JudgedRollouts) -> Tensor:
    """`generalised_advantages` of rewards that come with the last token, [rollouts, tokens]."""
    assert judged.values is not None, "the algorithm has a value head"
    token_rewards = rewards_at_end(judged.rewards, judged.mask)
    return generalised_advantages(
        token_rewards,
        judged.values,
        judged.mask,
        discount=judged.discount,
        gae_lambda=judged.gae_lambda,
    )


def _process(judged: JudgedRollouts) -> Tensor:
    assert judged.token_rewards is not None, "the algorithm has a process reward"
    return process_advantages(judged.rewards, judged.token_rewards, judged.mask, judged.discount)


ADVANTAGES: dict[str, Callable[[JudgedRollouts], Tensor]] = {
    "group": _spread_over_tokens(group_advantages),
    "group_centred": _spread_over_tokens(centred_advantages),
    "leave_one_out": _spread_over_tokens(leave_one_out_advantages),
    "batch": _center_on_batch,
    "gae": lambda judged: normalised(unnormalised_gae(judged), judged.mask, judged.sum_over_ranks),
    "process": _process,
}
"""Advantages [rollouts, tokens] by name; `settings.ALGORITHMS` says which algorithm uses which."""
