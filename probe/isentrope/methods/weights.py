"""Weigh a token's gradient up or down instead of dropping it.

What right answers count: `unlikely` weighs tokens by their own probability, `rank_reward` whole
answers by how likely they were among their group, `positive_advantage` all tokens with A > 0 alike,
which are what lowers the entropy most. `steer` weighs each token down by how much its update would
change the entropy, whichever way."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.methods.base import Centres, Intervention, Selection
from isentrope.statistics.tokens import TokenBatch
from isentrope_wire.control import Control

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64


def select_unlikely(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Multiply the gradient of the tokens with A > 0 by

        w = 1 + strength max(0, 1 - p / below)

    the token-wise counterpart of the unlikeliness reward (arXiv:2506.02355), which pays a correct
    answer more the less likely it was. Rewarding a token with S_c < 0 raises the entropy, and
    improbable tokens are such. w lies between 1 and 1 + strength, falls with p and is 1 from
    `below` on; the log-prob keeps its value."""
    probabilities = tokens.scores.logprobs.exp()
    distance = (1 - probabilities / control.number("below")).clamp_min(0.0)
    raised = (
        tokens.mask & (tokens.advantages > 0) & (distance > 0) & tokens.is_in_scope(control.scope)
    )
    return Selection(torch.where(raised, 1 + control.number("strength") * distance, 1.0), raised)


UNLIKELY = Intervention(select=select_unlikely)


def select_positive_advantage(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Multiply the gradient of the tokens with A > 0 by lambda, from 0 to 1        arXiv:2511.05993

    The paper moves lambda during the run, by stages or epochs, or by a fixed step up while the
    entropy lies above a target and down while it lies below. Here it stays what the control has; a
    new one can be pushed at any step."""
    chosen = tokens.mask & (tokens.advantages > 0) & tokens.is_in_scope(control.scope)
    factors = torch.ones_like(tokens.scores.logprobs)
    return Selection(torch.where(chosen, control.number("weight"), factors), chosen)


POSITIVE_ADVANTAGE = Intervention(select=select_positive_advantage)


def select_rank_reward(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Give each sequence y_i of a group of G the advantage that follows from the reward

        R'_i = R_i (1 - beta (G - rank_i) / G)                 arXiv:2506.02355, unlikeliness reward

    rank_i is 1 for the group's most likely sequence and G for its least likely one, by the mean
    log-prob of its tokens under the old policy, as in the authors' code; of equals the later one
    counts as more likely. R_i is read from the
    advantages: 0 at the group's smallest, 1 at its largest. That is exact where an answer is right
        or wrong.

    The new advantages keep their group's spread where the loop divides by it (`normalise=std`),
    else the loop's scale:

        A'_i = (R'_i - mean R') std(A) / std(R')         or  A'_i = (R'_i - mean R') (max A - min A)

    and every token's gradient is multiplied by A'_i / A_i. A group all of whose answers are right
    has advantages of 0 and nothing to multiply, though the authors' reward tells its answers apart.
    A group must lie in one `gate` call: of one that is split, each part counts as a group.
    Advantages are one number per sequence. Rows of no known group, or alone in theirs, keep their
    gradient."""
    unchanged = torch.ones_like(tokens.scores.logprobs)
    if tokens.group_ids is None or not unchanged.numel():
        return Selection(unchanged, torch.zeros_like(tokens.mask))
    counted = tokens.sequence_sums(tokens.mask.double())
    length = counted.clamp(min=1)

    def expand_by_sequence(values: Tensor) -> Float64[Tensor, " sequences"]:
        return tokens.sequence_sums(torch.where(tokens.mask, values.double(), 0.0)) / length

    logprobs = tokens.scores.logprobs.double()
    if tokens.importance_ratios is not None:
        logprobs = logprobs - tokens.importance_ratios.double().log()
    advantages, likelihoods = expand_by_sequence(tokens.advantages), expand_by_sequence(logprobs)
    counts = (counted > 0) & (advantages + likelihoods).isfinite()
    same = (
        (tokens.group_ids.unsqueeze(0) == tokens.group_ids.unsqueeze(1))
        & counts.unsqueeze(0)
        & counts.unsqueeze(1)
    )
    factors = _advantages_by_rank(advantages, likelihoods, same, control) / advantages
    changed = (same.sum(1) > 1) & (advantages != 0) & factors.isfinite()
    chosen = tokens.spread_sequences(changed) & tokens.mask & tokens.is_in_scope(control.scope)
    return Selection(
        torch.where(chosen, tokens.spread_sequences(factors), unchanged).to(unchanged.dtype), chosen
    )


def _advantages_by_rank(
    advantages: Float64[Tensor, " sequences"],
    likelihoods: Float64[Tensor, " sequences"],
    same: Bool[Tensor, "sequences sequences"],
    control: Control,
) -> Float64[Tensor, " sequences"]:
    """A' of each sequence, from A, its mean log-prob under the old policy in nats, and which
    sequences are of one group."""
    size = same.sum(1).clamp(min=1)

    def sum_over_group(values: Tensor) -> Float64[Tensor, " sequences"]:
        return torch.where(same, values, 0.0).sum(1)

    def spread(values: Tensor) -> Float64[Tensor, " sequences"]:
        mean = sum_over_group(values.expand_as(same)) / size
        return sum_over_group((values.unsqueeze(0) - mean.unsqueeze(1)).square()).sqrt()

    lowest = torch.where(same, advantages, torch.inf).amin(1)
    width = torch.where(same, advantages, -torch.inf).amax(1) - lowest
    order = torch.arange(len(advantages), device=advantages.device)
    less_likely = likelihoods.unsqueeze(0) < likelihoods.unsqueeze(1)
    less_likely |= (likelihoods.unsqueeze(0) == likelihoods.unsqueeze(1)) & (
        order.unsqueeze(0) < order.unsqueeze(1)
    )
    # G - rank: how many of the group are less likely.
    likely = sum_over_group(less_likely.double())
    rewards = (advantages - lowest) / width * (1 - control.number("beta") * likely / size)
    centred = rewards - sum_over_group(rewards.expand_as(same)) / size
    return centred * (
        spread(advantages) / spread(rewards) if control.value("normalise") == "std" else width
    )


RANK_REWARD = Intervention(select=select_rank_reward)


SMALLEST_LARGEST_CHANGE = 0.02
"""Where no token's estimated change is larger, weights are counted as if one were of this size."""


def estimated_changes(control: Control, tokens: TokenBatch) -> Float64[Tensor, "*tokens"]:
    """|Omega| of each token, the size of the entropy change that its update is estimated to make,
    per unit of step size.

        Omega = A / p_old p (1 - p) (log p + H)  estimate `authors`, code of arXiv:2510.10150
        Omega = r A S_c                          estimate `exact`, Theorem 2 of arXiv:2602.03392

    with r = p / p_old, 1 where the loop passes no log-probs of the old policy. 0 where a number is
    not finite."""
    scores = tokens.scores
    if control.value("estimate") == "exact":
        changes = scores.vocab_centered_scores.double()
    else:
        logprobs = scores.logprobs.double()
        changes = -logprobs.expm1() * (logprobs + scores.entropies.double())
    changes = changes * tokens.advantages.double()
    if tokens.importance_ratios is not None:
        changes = changes * tokens.importance_ratios.double()
    return changes.abs().nan_to_num(nan=0.0, posinf=0.0)


def largest_change(control: Control, tokens: TokenBatch, centres: Centres) -> Float64[Tensor, ""]:
    """max |Omega| over the tokens that count."""
    changes = estimated_changes(control, tokens) * tokens.mask
    if not changes.numel():
        return torch.zeros_like(centres.mean_advantage)
    return changes.max()


def select_steer(
    control: Control, tokens: TokenBatch, centres: Centres, cutoff: Tensor | None
) -> Selection:
    """Multiply the gradient by

        w = exp(-kappa |Omega|),   kappa = -log(w_min) / max(max_B |Omega|, 0.02)   arXiv:2510.10150

    but by no less than w_min, `minimum_weight`: the token that changes the entropy most gets that
    weight, one that does not change it gets 1. The authors take the maximum over each micro-batch.
    """
    assert cutoff is not None, "STEER counts the largest change"
    kappa = -math.log(control.number("minimum_weight")) / cutoff.clamp(min=SMALLEST_LARGEST_CHANGE)
    weights = (
        (-kappa * estimated_changes(control, tokens))
        .exp()
        .clamp(min=control.number("minimum_weight"))
    )
    lowered = tokens.mask & (weights < 1) & tokens.is_in_scope(control.scope)
    return Selection(torch.where(lowered, weights, 1.0).to(tokens.scores.logprobs.dtype), lowered)


STEER = Intervention(select=select_steer, count_cutoff=largest_change)
