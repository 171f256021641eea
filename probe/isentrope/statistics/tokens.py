"""The tokens of a step: the micro-batches collected while it is open, and the matrix they become when it closes.

The ledger holds references to detached tensors, freed when the step closes. `StepTokens` is what every declared sum
measures: one row per quantity, zeros where a token does not count. Whatever several sums need is computed there, once:
on an accelerator every small operation is a launch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.scores import TokenScores
from isentrope.statistics.moments import ThresholdStatistics, flat

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Float64, Int, Shaped

logger = logging.getLogger(__name__)

THRESHOLD_SOURCES = ("first_pass", "previous_step", "micro_batch")
"""What the thresholds of a keep-mask may be counted from: the best first, the one that always exists last."""

MAX_TOKENS = 1 << 25
"""More than a rank gates in a step; they take about a gigabyte."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """One micro-batch; every tensor has the token ids' shape and is detached."""

    scores: TokenScores
    advantages: Float[Tensor, "*tokens"]
    mask: Bool[Tensor, "*tokens"]
    """True where the token counts: no padding, prompt or tool token."""
    keep_mask: Bool[Tensor, "*tokens"]
    """True where the token's gradient takes part, with whatever weight. The same object as `mask` with no intervention."""
    importance_ratios: Float[Tensor, "*tokens"] | None
    """None when the loop did not pass the sampler's log-probs; predictions then take the ratio as 1."""
    threshold_source: str | None = None
    """Which of THRESHOLD_SOURCES the keep-mask was counted from; None when it was counted from nothing."""
    gradient_factors: Shaped[Tensor, "*tokens"] | None = None
    """Factor of the token's gradient; None: 1 where it takes part."""
    selected: Bool[Tensor, "*tokens"] | None = None
    """True where the intervention selected the token; None with no intervention."""
    token_ids: Int[Tensor, "*tokens"] | None = None
    """None where the loop made its scores without them."""
    loss_weights: Shaped[Tensor, "*tokens"] | None = None
    """Factor that the loop's own loss puts on the plain surrogate's r A: 0 where its clip silences the token. None: not
    known, and taken as 1."""
    kl_strengths: Float[Tensor, "*tokens"] | None = None
    """What the KL term of the loop's loss adds to r A; None: not known."""
    group_ids: Float64[Tensor, " sequences"] | None = None
    """The same number for the rollouts of one prompt. None: not known."""


@dataclass(slots=True)
class TokenLedger:
    """The micro-batches gated since the last optimiser step; up to fourteen numbers per token, never logits.

    A loop that closes no step must not fill the memory: the tokens of a step with more than MAX_TOKENS are dropped.
    """

    batches: list[TokenBatch] = field(default_factory=list)
    tokens: int = 0
    """Of the open step, with padding and with what was dropped."""
    _warned: bool = False

    @property
    def overflowed(self) -> bool:
        return self.tokens > MAX_TOKENS

    def add(self, batch: TokenBatch) -> None:
        self.tokens += batch.mask.numel()
        if not self.overflowed:
            self.batches.append(batch)
            return
        self.batches = []
        if not self._warned:
            self._warned = True
            logger.warning(
                "A step of more than %d tokens is not measured. Call probe.step() after each optimiser update.",
                MAX_TOKENS,
            )

    def take(self) -> tuple[TokenBatch, ...]:
        """The step's batches, none if it overflowed; the next step starts empty."""
        batches, self.batches, self.tokens = tuple(self.batches), [], 0
        return batches


def detached(scores: TokenScores) -> TokenScores:
    """The same scores outside the graph and without token ids: keeping them does not keep the logits in memory.

    Log-probs and entropies are copies: loops change theirs in place.
    """
    return TokenScores(
        logprobs=scores.logprobs.detach().clone(),
        entropies=scores.entropies.detach().clone(),
        discriminator_scores=scores.discriminator_scores.detach(),
        expected_scores=scores.expected_scores.detach(),
        vocab_centered_scores=scores.vocab_centered_scores.detach(),
        squared_scores=None if scores.squared_scores is None else scores.squared_scores.detach(),
        temperature=scores.temperature,
    )


ROWS = ("S_c", "S*", "H", "p", "log p", "A")
"""Of the matrix; then, where the loop passed them, r, the strength of the KL term, and u S_c where u is not 1; the last
two are "valid", 1 or 0, and u A S_c. u is the factor of A in a token's gradient: r times the weight of the loop's own
loss."""

CODES = 9
"""How many values `StepTokens.codes` has; no token has 3 or 5."""


class StepTokens:
    """The tokens of a step on this rank, one column each, float64, 0 where a token does not count. Never waits for the
    device."""

    def __init__(
        self,
        batches: Sequence[TokenBatch],
        entropies_after: Sequence[Tensor] | None = None,
        *,
        thresholds: ThresholdStatistics | None = None,
        centre: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """
        Args:
            batches: The step's micro-batches, with at least one token between them, padding included.
            entropies_after: H of the same tokens after the update, nats, one tensor per batch; None: not scored again.
            thresholds: What the what-if sums are counted from; NaN where it is of no token: nothing lies beyond any
                threshold then. None: these tokens.
            centre: Mean log p and mean A of the step before over all ranks, scalars; None, or NaN: these tokens' own.
        """
        self.batches, self.entropies_after = batches, entropies_after
        self.thresholds, self.centre = thresholds, centre
        mask = flat([batch.mask for batch in batches])
        logprobs = flat([batch.scores.logprobs for batch in batches]).double()
        rows = [
            flat([batch.scores.vocab_centered_scores for batch in batches]),
            flat([batch.scores.discriminator_scores for batch in batches]),
            flat([batch.scores.entropies for batch in batches]),
            logprobs.exp(),
            logprobs,
            flat([batch.advantages for batch in batches]),
        ]
        # A ratio missing from one call must not count as 1 beside those of the others: then there is none.
        passed = [batch.importance_ratios for batch in batches if batch.importance_ratios is not None]
        ratios = flat(passed).double() if len(passed) == len(batches) else None
        weights, self._weights_known = _joined([batch.loss_weights for batch in batches], batches, unknown=1.0)
        strengths, self._strengths_known = _joined([batch.kl_strengths for batch in batches], batches, unknown=0.0)
        update_ratios = ratios if weights is None else weights if ratios is None else ratios * weights
        optional = {"r": ratios, "kl": strengths, "u S_c": update_ratios}
        passed_rows = {name: row for name, row in optional.items() if row is not None}
        self._row = {name: row for row, name in enumerate((*ROWS, *passed_rows, "valid", "u A S_c"))}
        # The last two are overwritten below; until then they are the mask in float64.
        values = torch.stack([*rows, *passed_rows.values(), mask, mask])
        self.valid = mask & values.sum(0).isfinite()
        """True where the mask is and all numbers are finite."""
        # Padding may hold anything, NaN included: nothing outside `valid` enters a sum.
        self._values = values.masked_fill_(~self.valid, 0.0)
        self._rows = dict(zip(self._row, values.unbind(), strict=True))
        self.ones, self.effects = self["valid"], self["u A S_c"]
        """1 where a token is valid; and u A S_c: what a token's update takes from the entropy, per unit of gain."""
        self._pushed: Tensor | None = None
        if update_ratios is not None:
            updates = self["u S_c"]
            self._pushed = (updates * self["A"] != 0).sum(dtype=torch.float64)
            updates.mul_(self["S_c"])
        else:
            self._row["u S_c"], self._rows["u S_c"] = self._row["S_c"], self["S_c"]
        torch.mul(self["A"], self["u S_c"], out=self.effects)
        sums = values.sum(1)
        self._totals = sums.unbind()
        self.count = self.total("valid")
        """Of valid tokens."""
        self.not_finite = mask.sum() - self.count
        """How many tokens the mask names that are not valid."""
        means = sums / self.count.clamp(min=1)
        self._means = means.unbind()
        # Not kept: with what is computed from them later they would be the most that a step needs.
        deviations = (values[:-2] - means[:-2].unsqueeze(1)).mul_(self.ones)
        self._products = deviations @ deviations.T
        self.covariances = deviations[self._row["log p"]] * deviations[self._row["A"]]
        """(log p - mean) (A - mean) of each token."""

    def __contains__(self, name: str) -> bool:
        return name in self._row

    def __getitem__(self, name: str) -> Float64[Tensor, " tokens"]:
        """A row of the matrix."""
        return self._rows[name]

    def rows(self, first: str, last: str) -> Float64[Tensor, "rows tokens"]:
        """The rows from one to another, both included; a view."""
        return self._values[self._row[first] : self._row[last] + 1]

    def of(self, chosen: Int[Tensor, " chosen"]) -> dict[str, Float64[Tensor, " chosen"]]:
        """The rows of some tokens alone, by name.

        Args:
            chosen: Which columns.
        """
        rows = self._values.index_select(1, chosen).unbind()
        return {name: rows[row] for name, row in self._row.items()}

    @cached_property
    def plain_effects(self) -> Float64[Tensor, " tokens"]:
        """A S_c."""
        return self.effects if self._pushed is None else self["A"] * self["S_c"]

    @cached_property
    def codes(self) -> Int[Tensor, " tokens"]:
        """3 (sign of A) + (sign of A S_c) + 4 of each token."""
        return (torch.add(self.plain_effects.sign(), self["A"].sign(), alpha=3) + 4).long()

    @cached_property
    def behind_all(self) -> Float[Tensor, " tokens"]:
        """Infinite where a token is not valid, else 0."""
        return torch.where(self.valid, 0.0, torch.inf)

    @cached_property
    def factors(self) -> Float64[Tensor, " tokens"] | None:
        """Factor of each token's gradient; None where no intervention was active."""
        if all(batch.keep_mask is batch.mask and batch.gradient_factors is None for batch in self.batches):
            return None
        return flat([b.keep_mask if b.gradient_factors is None else b.gradient_factors for b in self.batches]).double()

    @cached_property
    def kept(self) -> Bool[Tensor, " tokens"]:
        """True where the token's gradient takes part, whether or not the token is valid."""
        return flat([batch.keep_mask for batch in self.batches])

    @cached_property
    def none(self) -> Float64[Tensor, ""]:
        """0, a scalar."""
        return torch.zeros_like(self.count)

    def total(self, name: str) -> Float64[Tensor, ""]:
        """Sum of a row."""
        return self._totals[self._row[name]]

    def mean(self, name: str) -> Float64[Tensor, ""]:
        return self._means[self._row[name]]

    def product_sum(self, left: str, right: str) -> Float64[Tensor, ""]:
        """Sum of the products of two rows' deviations from their means."""
        return self._products[self._row[left], self._row[right]]

    def moments(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Count, mean and sum of squared deviations; zeros where the loop did not pass the row."""
        if name not in self:
            return self.none, self.none, self.none
        return self.count, self.mean(name), self.product_sum(name, name)

    @property
    def pushed(self) -> Tensor:
        """How many tokens' u A is not 0."""
        return (self["A"] != 0).sum(dtype=torch.float64) if self._pushed is None else self._pushed

    @property
    def unclipped_effect(self) -> Tensor:
        """The sum of r A S_c."""
        if all(batch.loss_weights is None for batch in self.batches):
            return self.total("u A S_c")
        return ((self.plain_effects * self["r"]) if "r" in self else self.plain_effects).sum()

    @property
    def weights_known(self) -> Tensor:
        """For how many tokens the loop passed the weights of its own loss."""
        return self._count(self._weights_known)

    @property
    def strengths_known(self) -> Tensor:
        """For how many it passed the strength of its KL term."""
        return self._count(self._strengths_known)

    def _count(self, known: Tensor | bool) -> Tensor:
        if isinstance(known, Tensor):
            return (known & self.valid).sum(dtype=torch.float64)
        return self.count if known else self.none


def _joined(
    parts: Sequence[Tensor | None], batches: Sequence[TokenBatch], *, unknown: float
) -> tuple[Tensor | None, Tensor | bool]:
    """One vector of what the loop passed for each token, None where it passed nothing; and for which tokens it did."""
    passed = [part for part in parts if part is not None]
    if not passed:
        return None, False
    if len(passed) == len(batches):
        return flat(passed).double(), True
    filled = [
        torch.full_like(batch.mask, unknown, dtype=torch.float64) if part is None else part.double()
        for part, batch in zip(parts, batches, strict=True)
    ]
    known = [torch.full_like(b.mask, part is not None) for part, b in zip(parts, batches, strict=True)]
    return flat(filled), flat(known)
