"""The tokens of the step that is open: references to detached tensors, freed when the step closes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isentrope.scores import TokenScores


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """One micro-batch; every tensor has the token ids' shape and is detached."""

    scores: TokenScores
    advantages: Tensor
    mask: Tensor
    """True where the token counts: no padding, prompt or tool token."""
    keep_mask: Tensor
    """True where the token's gradient takes part."""
    importance_ratios: Tensor | None
    """None when the loop did not give the sampler's log-probs; predictions then take the ratio as 1."""


@dataclass(slots=True)
class TokenLedger:
    """What `gate` saw since the last optimiser step; holds seven numbers per token, never logits."""

    batches: list[TokenBatch] = field(default_factory=list)

    def add(self, batch: TokenBatch) -> None:
        self.batches.append(batch)

    def take(self) -> tuple[TokenBatch, ...]:
        """Hand over the step's batches and start the next step empty."""
        batches, self.batches = tuple(self.batches), []
        return batches


def detached(scores: TokenScores) -> TokenScores:
    """The same scores with no tie to the graph, so that keeping them does not keep the logits alive."""
    return TokenScores(
        logprobs=scores.logprobs.detach(),
        entropies=scores.entropies.detach(),
        discriminator_scores=scores.discriminator_scores.detach(),
        expected_scores=scores.expected_scores.detach(),
        vocab_centered_scores=scores.vocab_centered_scores.detach(),
    )


def flat(parts: list[Tensor]) -> Tensor:
    """One vector in the order of the batches."""
    return torch.cat([part.reshape(-1) for part in parts])
