"""The tokens of the step that is open: references to detached tensors, freed when the step closes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isentrope.scores import TokenScores

logger = logging.getLogger(__name__)

THRESHOLD_SOURCES = ("first_pass", "previous_step", "micro_batch")
"""Where the thresholds of a keep-mask may come from, from the best to the one that is always there."""

MAX_TOKENS = 1 << 25
"""More than a rank sees in a step; what is held of them is about a gigabyte."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """One micro-batch; every tensor has the token ids' shape and is detached."""

    scores: TokenScores
    advantages: Tensor
    mask: Tensor
    """True where the token counts: no padding, prompt or tool token."""
    keep_mask: Tensor
    """True where the token's gradient takes part, with whatever weight. The very mask where nothing was in force."""
    importance_ratios: Tensor | None
    """None when the loop did not give the sampler's log-probs; predictions then take the ratio as 1."""
    threshold_source: str | None = None
    """Which of THRESHOLD_SOURCES the keep-mask was counted from; None when it was counted from nothing."""
    gradient_factors: Tensor | None = None
    """By what the token's gradient is multiplied; None: by 1 where it takes part."""
    candidates: Tensor | None = None
    """True where the intervention asked for the token; None when none was in force."""
    token_ids: Tensor | None = None
    """None when the loop scored its tokens elsewhere and did not name them."""
    loss_weights: Tensor | None = None
    """By what the loop's own loss multiplies the plain surrogate's r A: 0 where its clip silences the token. None: not
    known, and taken as 1."""
    kl_strengths: Tensor | None = None
    """What the KL term of the loop's loss adds to r A; None: not known."""
    group_ids: Tensor | None = None
    """[sequences], float64: the same number for the rollouts of one prompt. None: not known."""


@dataclass(slots=True)
class TokenLedger:
    """What `gate` saw since the last optimiser step; holds up to fourteen numbers per token, never logits.

    A loop that closes no step must not fill the memory: the tokens of a step with more than MAX_TOKENS are let go.
    """

    batches: list[TokenBatch] = field(default_factory=list)
    tokens: int = 0
    """Of the step that is open, padding and what was let go included."""
    _told: bool = False

    @property
    def overflowed(self) -> bool:
        return self.tokens > MAX_TOKENS

    def add(self, batch: TokenBatch) -> None:
        self.tokens += batch.mask.numel()
        if not self.overflowed:
            self.batches.append(batch)
            return
        self.batches = []
        if not self._told:
            self._told = True
            logger.warning(
                "A step of more than %d tokens is not measured. Call probe.step() after each optimiser update.",
                MAX_TOKENS,
            )

    def take(self) -> tuple[TokenBatch, ...]:
        """Hand over the step's batches, none if it overflowed, and start the next step empty."""
        batches, self.batches, self.tokens = tuple(self.batches), [], 0
        return batches


def detached(scores: TokenScores) -> TokenScores:
    """The same scores with no tie to the graph, so that keeping them does not keep the logits alive.

    Log-probs and entropies are copies: loops change theirs in place.
    """
    return TokenScores(
        logprobs=scores.logprobs.detach().clone(),
        entropies=scores.entropies.detach().clone(),
        discriminator_scores=scores.discriminator_scores.detach(),
        expected_scores=scores.expected_scores.detach(),
        vocab_centered_scores=scores.vocab_centered_scores.detach(),
    )


def flat(parts: list[Tensor]) -> Tensor:
    """One vector in the order of the batches; a view of the only one."""
    return parts[0].reshape(-1) if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])
