"""The tokens of the step that is open: references to detached tensors, freed when the step closes.

The tokens of a step, all micro-batches in one matrix, with nothing left in it that may not enter a sum.

A row is one quantity of all tokens. What several statistics need is computed here, once: on an accelerator every small
operation is a launch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

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
    """None where the loop made its scores without them."""
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
    """The same scores, without token ids and with no tie to the graph: keeping them does not keep the logits alive.

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


ROWS = ("S_c", "S*", "H", "p", "log p", "A")
"""Of the matrix; then, where the loop gave them, r and the strength of the KL term, and u S_c where u is not 1; the last two
are 1 and u A S_c. u is what stands before A in a token's gradient: r times what the loop's own loss makes of it."""

CODES = 9
"""How many numbers `StepTokens.codes` has; two of them, 3 and 5, belong to no token."""


class StepTokens:
    """Float64, 0 where a token is not valid; everything stays on the device."""

    def __init__(
        self,
        mask: Tensor,
        rows: Sequence[Tensor],
        ratios: Tensor | None,
        weights: Tensor | None,
        kl_strengths: Tensor | None,
        knows_loss: Tensor | None = None,
        knows_kl: Tensor | None = None,
    ) -> None:
        """
        Args:
            mask: bool, the tokens that count.
            rows: one vector each of `ROWS`.
            ratios: r; None: the loop gave no sampler log-probs.
            weights: what the loop's own loss makes of r A; None: it did not give them.
            kl_strengths: what the loss's KL term adds to u A; None: it did not give them.
            knows_loss, knows_kl: of which tokens it gave them; None: of all, or of none.
        """
        update_ratios = ratios if weights is None else weights if ratios is None else ratios * weights
        optional = {"r": ratios, "kl": kl_strengths, "u S_c": update_ratios}
        given = {name: row for name, row in optional.items() if row is not None}
        self._row = {name: row for row, name in enumerate((*ROWS, *given))}
        # The last two are overwritten below; here they say in float64 which tokens the mask names.
        values = torch.stack([*rows, *given.values(), mask, mask])
        self.valid = mask & values.sum(0).isfinite()
        """True where the mask says so and all numbers are finite."""
        # Padding may hold anything, NaN included: nothing outside `valid` enters a sum.
        self.values = values.masked_fill_(~self.valid, 0.0)
        self._pushed: Tensor | None = None
        if update_ratios is not None:
            updates = values[self._row["u S_c"]]
            self._pushed = (updates * self["A"] != 0).sum()
            updates.mul_(self["S_c"])
        self._row.setdefault("u S_c", self._row["S_c"])
        torch.mul(self["A"], self["u S_c"], out=self.effects)
        self.sums = values.sum(1)
        self.count = self.sums[-2]
        """Of valid tokens."""
        self.not_finite = mask.sum() - self.count
        """How many tokens the mask names that are not valid."""
        self.means = self.sums / self.count.clamp(min=1)
        # Not kept: with what is made of them later they would be the most that a step needs.
        deviations = (values[:-2] - self.means[:-2].unsqueeze(1)).mul_(self.ones)
        self._products = deviations @ deviations.T
        self.covariances = deviations[self._row["log p"]] * deviations[self._row["A"]]
        """(log p - mean) (A - mean) of each token."""
        self._has_weights, self._knows_loss, self._knows_kl = weights is not None, knows_loss, knows_kl

    def __contains__(self, name: str) -> bool:
        return name in self._row

    def __getitem__(self, name: str) -> Tensor:
        """A row of the matrix."""
        return self.values[self._row[name]]

    @property
    def ones(self) -> Tensor:
        """1 where a token is valid."""
        return self.values[-2]

    @property
    def effects(self) -> Tensor:
        """u A S_c: what a token's update takes from the entropy, per unit of gain."""
        return self.values[-1]

    @cached_property
    def plain_effects(self) -> Tensor:
        """A S_c."""
        return self.effects if self._pushed is None else self["A"] * self["S_c"]

    @cached_property
    def codes(self) -> Tensor:
        """3 (sign of A) + (sign of A S_c) + 4 of each token, int64."""
        return (torch.add(self.plain_effects.sign(), self["A"].sign(), alpha=3) + 4).long()

    @cached_property
    def behind_all(self) -> Tensor:
        """Infinite where a token is not valid, else 0."""
        return torch.where(self.valid, 0.0, torch.inf)

    def mean(self, name: str) -> Tensor:
        return self.means[self._row[name]]

    def product_sum(self, left: str, right: str) -> Tensor:
        """Sum of the products of two rows' deviations from their means."""
        return self._products[self._row[left], self._row[right]]

    def moments(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Count, mean and sum of squared deviations; zeros where the loop did not give the row."""
        if name not in self:
            return self.none, self.none, self.none
        return self.count, self.mean(name), self.product_sum(name, name)

    @cached_property
    def none(self) -> Tensor:
        return torch.zeros_like(self.count)

    @property
    def pushed(self) -> Tensor:
        """How many tokens' u A is not 0."""
        return (self["A"] != 0).sum() if self._pushed is None else self._pushed

    @property
    def unclipped_effect_sum(self) -> Tensor:
        """The sum of r A S_c."""
        if not self._has_weights:
            return self.sums[-1]
        return ((self.plain_effects * self["r"]) if "r" in self else self.plain_effects).sum()

    @property
    def known_loss(self) -> Tensor:
        """For how many tokens the loop gave what its loss makes of them."""
        return self._known(self._knows_loss, given=self._has_weights)

    @property
    def known_kl(self) -> Tensor:
        """For how many it gave the strength of its KL term."""
        return self._known(self._knows_kl, given="kl" in self)

    def _known(self, known: Tensor | None, *, given: bool) -> Tensor:
        if known is not None:
            return (known & self.valid).sum()
        return self.count if given else self.none


def step_tokens(batches: Sequence[TokenBatch]) -> StepTokens | None:
    """Of all micro-batches, in their order; None when they hold no token at all, padding included."""
    if not any(batch.mask.numel() for batch in batches):
        return None
    logprobs = flat([batch.scores.logprobs for batch in batches]).double()
    rows = [
        flat([batch.scores.vocab_centered_scores for batch in batches]),
        flat([batch.scores.discriminator_scores for batch in batches]),
        flat([batch.scores.entropies for batch in batches]),
        logprobs.exp(),
        logprobs,
        flat([batch.advantages for batch in batches]),
    ]
    # A ratio that one call did not give is not 1 for the others' sake: then there is none.
    given = [batch.importance_ratios for batch in batches if batch.importance_ratios is not None]
    ratios = flat(given).double() if len(given) == len(batches) else None
    weights, knows_loss = _joined([batch.loss_weights for batch in batches], batches, unknown=1.0)
    kl_strengths, knows_kl = _joined([batch.kl_strengths for batch in batches], batches, unknown=0.0)
    return StepTokens(
        flat([batch.mask for batch in batches]), rows, ratios, weights, kl_strengths, knows_loss, knows_kl
    )


def _joined(
    parts: Sequence[Tensor | None], batches: Sequence[TokenBatch], *, unknown: float
) -> tuple[Tensor | None, Tensor | None]:
    """One vector of what the loop gave for each token, None where it gave nothing; and, where it gave some, for which tokens."""
    given = [part for part in parts if part is not None]
    if not given:
        return None, None
    if len(given) == len(batches):
        return flat(given).double(), None
    filled = [
        torch.full_like(batch.mask, unknown, dtype=torch.float64) if part is None else part.double()
        for part, batch in zip(parts, batches, strict=True)
    ]
    return flat(filled), flat(
        [torch.full_like(b.mask, part is not None) for part, b in zip(parts, batches, strict=True)]
    )
