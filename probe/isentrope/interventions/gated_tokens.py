"""What a method looks at, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from isentrope.interventions.threshold_statistics import ThresholdStatistics
from isentrope.scores import TokenScores
from isentrope_wire.control import Control


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


class Intervention(Protocol):
    """One method; the module of that name is one."""

    def count_cutoff(self, control: Control, tokens: GatedTokens, centres: Centres) -> Tensor | None:
        """The value above which the share of tokens lies that the control names, counted over `tokens`.

        A scalar on the device that may be used for other tokens than it was counted from: those of the next step.
        None: the method, as the control asks for it, ranks no tokens.
        """

    def select(self, control: Control, tokens: GatedTokens, centres: Centres, cutoff: Tensor | None) -> Selection:
        """Decide on each token.

        Args:
            cutoff: of this method, over the tokens the thresholds refer to.
        """
