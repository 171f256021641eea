"""What a method looks at, and what it answers.

On which tokens a method acts.

The value above which a share of the tokens lies, found without waiting for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.scores import TokenScores
from isentrope.statistics.moments import ThresholdStatistics
from isentrope_wire.control import Control, Scope


@dataclass(frozen=True, slots=True)
class GatedTokens:
    """The tokens of one `gate` call; every tensor has the token ids' shape and is detached."""

    scores: TokenScores
    advantages: Tensor
    mask: Tensor
    """True where the token counts."""
    importance_ratios: Tensor | None = None
    """r = p / p_old. None: the loop did not give the log-probs the tokens were sampled with."""
    loss_weights: Tensor | None = None
    """By what the loop's own loss multiplies r A: 0 where its clip silences the token. None: not known."""
    step: int = 0
    rank: int = 0
    first_position: int = 0
    """How many tokens of this step, padding included, this rank gated before."""


@dataclass(frozen=True, slots=True)
class Centres:
    """Where counting starts: means and spreads of the tokens the thresholds refer to. Scalars that stay on the device."""

    thresholds: ThresholdStatistics
    mean_logprob: Tensor
    """mean_B(log p), for the covariance of log p and A."""
    mean_advantage: Tensor
    """mean_B(A)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a method makes of the tokens; both of their shape."""

    factors: Tensor
    """What the gradient of a token's log-prob is multiplied by. Bool where that is 0 or 1 alone: True = takes part."""
    candidates: Tensor
    """Bool: the tokens the method asks for. Those it acts on are among them: a cap or a draw may leave some in peace."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """One method: how it selects tokens, and, where it ranks them, how the cutoff of its rank is counted."""

    select: Callable[[Control, GatedTokens, Centres, Tensor | None], Selection]
    """The factor of each token. The last argument is the cutoff, over the tokens the thresholds refer to."""
    count_cutoff: Callable[[Control, GatedTokens, Centres], Tensor | None] = lambda control, tokens, centres: None
    """The value above which the share of tokens lies that the control names, counted over these tokens.

    A scalar on the device that may be used for other tokens than it was counted from: those of the next step.
    None: the method, as the control asks for it, ranks no tokens.
    """


def in_scope(scope: Scope, advantages: Tensor, vocab_centered_scores: Tensor) -> Tensor:
    """True where the method acts. The update of a token lowers entropy where A S_c > 0 and raises it where A S_c < 0."""
    match scope:
        case Scope.ALL:
            return torch.ones_like(advantages, dtype=torch.bool)
        case Scope.NEGATIVE:
            return advantages < 0
        case Scope.POSITIVE:
            return advantages > 0
        case Scope.DECREASING:
            return advantages * vocab_centered_scores > 0
        case Scope.INCREASING:
            return advantages * vocab_centered_scores < 0


def top_share_cutoff(
    values: Tensor, mask: Tensor, fraction: float, *, among: Tensor | None = None, at_most: bool = False
) -> Tensor:
    """The least value that belongs to the top share: `values >= cutoff` holds on so many tokens, ties apart.

    Args:
        values: to rank by, any shape; those that are not finite count as the least.
        mask: bool, the tokens whose share is meant.
        fraction: of the tokens in `mask`, rounded to the nearest whole number of tokens.
        among: bool, the tokens that are ranked, where they are fewer than those counted. When they are fewer than the
            share too, all of them belong to it: the cutoff is -inf.
        at_most: round down instead.
    Returns: float64 scalar; +inf when the share is less than a token.
    """
    if not values.numel():
        return torch.full((), torch.inf, dtype=torch.float64, device=values.device)
    values = values.double()
    ranked = mask & values.isfinite()
    if among is not None:
        ranked &= among
    # 0.29 of 100 tokens is 28.999999999999996.
    wanted = (mask.sum().double() * fraction + (1e-9 if at_most else 0.5)).floor()
    ordered = torch.where(ranked, values, -torch.inf).flatten().sort(descending=True).values
    # Gathered, for indexing with a number on the device waits for it.
    last = ordered.gather(0, (wanted.long() - 1).clamp(0, values.numel() - 1).reshape(1))
    return torch.where(wanted > 0, last, torch.inf).squeeze(0)
