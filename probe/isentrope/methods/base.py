"""What a method is given beside a `TokenBatch`, what it returns, and how it finds the top share of
the tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.scores import TokenScores
from isentrope.statistics.moments import ThresholdStatistics
from isentrope.statistics.tokens import StepTokens, TokenBatch
from isentrope_wire.control import Control

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Shaped


@dataclass(frozen=True, slots=True)
class Centres:
    """Means and spreads that methods count from: of a whole step or batch. Scalars that stay on the
    device; NaN where the method needs none."""

    thresholds: ThresholdStatistics
    mean_logprob: Float[Tensor, ""]
    """mean_B(log p), for the covariance of log p and A."""
    mean_advantage: Float[Tensor, ""]
    """mean_B(A)."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A method's decision; both tensors have the tokens' shape."""

    factors: Shaped[Tensor, "*tokens"]
    """Factor of the gradient of each token's log-prob. Bool where all are 0 or 1: True = takes
    part."""
    selected: Bool[Tensor, "*tokens"]
    """The tokens the method asks for. It acts on no others; a cap or a draw may keep some of
    them."""
    in_backward: Callable[[Tensor], Selection] | None = None
    """Decides again once the gradient of the loss by the gated log-probs is known; None: this
    decision stands."""
    added: Float[Tensor, "*tokens"] | None = None
    """What is added to the gradient behind its factors, of tokens that have none of their own.
    None: nothing."""
    added_to_entropies: Float[Tensor, "*tokens"] | None = None
    """What is added to the gradient of each token's entropy. None: nothing."""


ThresholdScore = Callable[[TokenScores, ThresholdStatistics], tuple[Tensor, Tensor]]
"""The score that thresholds are compared with, less its centre, and its sigma, both in nats: of any
tokens, which the statistics were not necessarily counted from."""


CovarianceEffects = Callable[[StepTokens], tuple[Tensor, Tensor]]
"""Which tokens of a step a method may choose by their covariance, bool; and what acting on one
takes from the entropy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """One method: how it selects tokens and, where it ranks them, how the cutoff of its rank is
    counted."""

    select: Callable[[Control, TokenBatch, Centres, Tensor | None], Selection]
    """Its decision about tokens. The last argument is the cutoff, None where the control ranks no
    tokens."""
    count_cutoff: Callable[[Control, TokenBatch, Centres], Tensor] | None = None
    """The value above which the control's share of these tokens lies, for the tokens of the next
    step: a scalar on the device, or a vector of what the method counts. None: the method never
    ranks."""
    follow: Callable[[Control, TokenBatch, Tensor | None], Tensor] | None = None
    """In place of the cutoff, in a method that remembers: a vector on the device, from the step
    before and its own vector; None: it had nothing, or of another control."""
    ranks_with: str = ""
    """The parameter without which the method ranks no tokens; empty: it always does."""
    uses_means: bool = False
    threshold_score: ThresholdScore | None = None
    """What mu_low and mu_high count, for the what-if: of a method whose row has thresholds."""
    covariance_effects: CovarianceEffects | None = None

    def ranks(self, control: Control) -> bool:
        """Whether it ranks tokens, or remembers them, as the control asks for it."""
        if self.follow is None and self.count_cutoff is None:
            return False
        return not self.ranks_with or control.value(self.ranks_with) is not None

    def cutoff(self, control: Control, tokens: TokenBatch, centres: Centres) -> Tensor | None:
        """The cutoff over these tokens; None where no tokens are ranked."""
        if self.count_cutoff is None or not self.ranks(control):
            return None
        return self.count_cutoff(control, tokens, centres)


def top_share_cutoff(
    values: Float[Tensor, "*tokens"],
    mask: Bool[Tensor, "*tokens"],
    fraction: float,
    *,
    among: Bool[Tensor, "*tokens"] | None = None,
    at_most: bool = False,
) -> Float64[Tensor, ""]:
    """The least value that belongs to the top share, a scalar: `values >= cutoff` holds on so many
    tokens, ties apart; +inf when the share is of no token. The share is of the tokens in `mask`,
    rounded to whole tokens, or down but to at least one with `at_most`. Values that are not
    finite count as the least. `among` are the tokens that are ranked; when they are fewer than the
    share, all of them belong to it, and the cutoff is -inf. It does not wait for the device."""
    if not values.numel():
        return torch.full((), torch.inf, dtype=torch.float64, device=values.device)
    values = values.double()
    ranked = mask & values.isfinite()
    if among is not None:
        ranked &= among
    # 0.29 of 100 tokens is 28.999999999999996.
    wanted = (mask.sum().double() * fraction + (1e-9 if at_most else 0.5)).floor()
    if at_most and fraction > 0:
        wanted = wanted.clamp(min=1)
    ordered = torch.where(ranked, values, -torch.inf).flatten().sort(descending=True).values
    # Gathered, for indexing with a number on the device waits for it.
    last = ordered.gather(0, (wanted.long() - 1).clamp(0, values.numel() - 1).reshape(1))
    return torch.where(wanted > 0, last, torch.inf).squeeze(0)
