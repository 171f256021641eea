"""Everything reported about the tokens of a step, from one pass on the device and one copy to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from isentrope.scores import entropy_contributions
from isentrope.statistics.covariance import Covariance
from isentrope.statistics.covariance_tail import TOP_SHARES, top_means
from isentrope.statistics.histogram import BINS, Histogram, bin_counts, no_counts
from isentrope.statistics.mechanisms import MechanismSums, mechanism_sums
from isentrope.statistics.moments import Moments, device_moments
from isentrope.statistics.step_tokens import StepTokens, step_tokens
from isentrope.statistics.token_ledger import THRESHOLD_SOURCES, TokenBatch, flat

QUADRANTS = ("positive_high", "positive_low", "negative_high", "negative_low")
"""Sign of A, and whether S_c > 0 (high) or S_c <= 0 (low)."""

HISTOGRAMS = {
    "score/vocab_centered": True,
    "score/discriminator": True,
    "entropy/token": False,
    "token/probability": False,
}
"""Names in the order `measure` counts them, and whether their range is symmetric about 0."""


THRESHOLD_COLUMNS = slice(4, 10)
"""Where in the vector of `measure` the moments of S* and S_c stand: what the next step's thresholds may be made from."""

MEANS_COLUMNS = slice(17, 20)
"""Where in it the number of tokens, mean A and mean log p stand: the centre of the tokens' covariance scores."""

_SUMS = 48 + len(TOP_SHARES)
"""How many numbers stand before the histograms."""

NUMBERS = _SUMS + len(HISTOGRAMS) * (1 + BINS)
"""Length of the vector of `measure`."""


@dataclass(frozen=True, slots=True)
class SignCounts:
    """Tokens by the sign of their advantage, and how many of them an intervention dropped."""

    positive: int = 0
    negative: int = 0
    dropped_positive: int = 0
    dropped_negative: int = 0
    dropped: int = 0
    candidates: int = 0
    """Tokens the intervention asked for."""
    spared: int = 0
    """Of those the ones whose gradient took part all the same: weighted, or left in peace by a cap or a draw."""
    decreasing: int = 0
    """Tokens whose update lowers entropy: A S_c > 0."""
    increasing: int = 0

    def merge(self, other: SignCounts) -> SignCounts:
        return SignCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Sums over the valid tokens of one step; `merge` is exact over micro-batches and ranks.

    A token counts when the mask says so and all its numbers are finite; the others are counted in `not_finite`.
    """

    not_finite: int
    entropies: Moments
    discriminator_scores: Moments
    vocab_centered_scores: Moments
    importance_ratios: Moments
    """Empty when the loop gave no sampler log-probs."""
    advantage_score: Covariance
    """Of A and r S_c."""
    advantage_logprob: Covariance
    """Of A and log p."""
    change_sums: tuple[float, ...]
    """Sums of -w r A S_c by QUADRANTS, in nats per unit gain; w multiplies the gradient, 0 where it takes no part."""
    sign_counts: SignCounts
    observed_change: Moments
    """Of H after the update minus H before it on the same tokens; empty when nothing was re-scored."""
    threshold_sources: tuple[int, ...]
    """How many `gate` calls counted their thresholds from each of THRESHOLD_SOURCES; all 0 with no intervention."""
    mechanisms: MechanismSums
    largest_entropy: float
    """Of the step's tokens, nats; 0 without tokens."""
    largest_expected_score: float
    """The same of E[S], which is never negative."""
    histograms: dict[str, Histogram]
    covariance_top: tuple[float, ...] | None = None
    """Means of the largest c_t of A and log p by TOP_SHARES; None where it can't be told from the parts' own."""

    @property
    def tokens(self) -> int:
        return self.entropies.count

    def merge(self, other: StepSummary) -> StepSummary:
        return StepSummary(
            self.not_finite + other.not_finite,
            self.entropies.merge(other.entropies),
            self.discriminator_scores.merge(other.discriminator_scores),
            self.vocab_centered_scores.merge(other.vocab_centered_scores),
            self.importance_ratios.merge(other.importance_ratios),
            self.advantage_score.merge(other.advantage_score),
            self.advantage_logprob.merge(other.advantage_logprob),
            tuple(a + b for a, b in zip(self.change_sums, other.change_sums, strict=True)),
            self.sign_counts.merge(other.sign_counts),
            self.observed_change.merge(other.observed_change),
            tuple(a + b for a, b in zip(self.threshold_sources, other.threshold_sources, strict=True)),
            self.mechanisms.merge(other.mechanisms),
            max(self.largest_entropy, other.largest_entropy),
            max(self.largest_expected_score, other.largest_expected_score),
            {name: histogram.merge(other.histograms[name]) for name, histogram in self.histograms.items()},
            # Which tokens are at the top, the parts can't say of the whole.
            (self.covariance_top if not other.tokens else None) if self.tokens else other.covariance_top,
        )


def measure(batches: Sequence[TokenBatch], entropies_after: Sequence[Tensor] | None) -> Tensor:
    """All sums of a step as one float64 vector, still on the device; read it with `read_measurement`.

    Args:
        batches: the step's micro-batches, at least one.
        entropies_after: H of the same tokens after the optimiser step, one tensor per batch, or None.
    """
    tokens = step_tokens(batches)
    return (
        nothing_measured(batches[0].mask.device) if tokens is None else measure_tokens(tokens, batches, entropies_after)
    )


def measure_tokens(
    tokens: StepTokens, batches: Sequence[TokenBatch], entropies_after: Sequence[Tensor] | None
) -> Tensor:
    """`measure` of batches whose tokens were laid out already."""
    entropies, discriminator, centred = tokens.entropies, tokens.discriminator_scores, tokens.vocab_centered_scores
    logprobs, advantages, kept, valid = tokens.logprobs, tokens.advantages, tokens.kept, tokens.valid
    contributions = entropy_contributions(centred, advantages, tokens.update_ratios, kept & valid)
    factors = kept.double()
    if any(batch.gradient_factors is not None for batch in batches):
        factors = flat([_factors(batch) for batch in batches])
        contributions = contributions * factors
    effects = advantages * centred
    candidates = valid & flat([_candidates(batch) for batch in batches])
    positive, negative, dropped = valid & (advantages > 0), valid & (advantages < 0), valid & ~kept
    high = centred > 0
    sums = [
        tokens.not_finite,
        *device_moments(entropies, valid),
        *device_moments(discriminator, valid),
        *device_moments(centred, valid),
        *device_moments(tokens.importance_ratios, valid & tokens.has_ratios),
        *_covariance(advantages, tokens.update_ratios * centred, valid),
        *_covariance(advantages, logprobs, valid),
        *(
            torch.where(region, contributions, 0.0).sum()
            for region in (positive & high, positive & ~high, negative & high, negative & ~high)
        ),
        *(region.sum() for region in (positive, negative, positive & dropped, negative & dropped, dropped)),
        candidates.sum(),
        (candidates & kept).sum(),
        (effects > 0).sum(),
        (effects < 0).sum(),
        *_observed_change(entropies, valid, entropies_after),
        *(
            # A fill on the device; copying a Python number there would wait for it.
            torch.full_like(entropies[0], sum(batch.threshold_source == source for batch in batches))
            for source in THRESHOLD_SOURCES
        ),
        *mechanism_sums(tokens, factors),
        entropies.max().clamp(min=0.0),
        (discriminator - centred).max().clamp(min=0.0),
        *top_means(tokens),
    ]
    return torch.cat(
        [
            torch.stack([value.double() for value in sums]),
            bin_counts(centred, valid, symmetric=True),
            bin_counts(discriminator, valid, symmetric=True),
            bin_counts(entropies, valid, symmetric=False),
            bin_counts(torch.where(valid, logprobs.exp(), 0.0), valid, symmetric=False),
        ]
    )


def nothing_measured(device: torch.device | None = None) -> Tensor:
    """The vector of a rank without tokens: merged with another it changes nothing."""
    sums = torch.zeros(_SUMS, dtype=torch.float64, device=device)
    return torch.cat([sums, *(no_counts(device) for _ in HISTOGRAMS)])


def read_measurement(vector: Sequence[float]) -> StepSummary:
    """The summary in the vector that `measure` made, once it is on the host."""
    numbers = iter(vector)
    return StepSummary(
        not_finite=int(next(numbers)),
        entropies=_read_moments(numbers),
        discriminator_scores=_read_moments(numbers),
        vocab_centered_scores=_read_moments(numbers),
        importance_ratios=_read_moments(numbers),
        advantage_score=_read_covariance(numbers),
        advantage_logprob=_read_covariance(numbers),
        change_sums=tuple(next(numbers) for _ in QUADRANTS),
        sign_counts=SignCounts(*(int(next(numbers)) for _ in fields(SignCounts))),
        observed_change=_read_moments(numbers),
        threshold_sources=tuple(int(next(numbers)) for _ in THRESHOLD_SOURCES),
        mechanisms=MechanismSums.read(numbers),
        largest_entropy=next(numbers),
        largest_expected_score=next(numbers),
        covariance_top=tuple(next(numbers) for _ in TOP_SHARES),
        histograms={
            name: Histogram(symmetric, int(next(numbers)), tuple(int(next(numbers)) for _ in range(BINS)))
            for name, symmetric in HISTOGRAMS.items()
        },
    )


def _factors(batch: TokenBatch) -> Tensor:
    factors = batch.keep_mask if batch.gradient_factors is None else batch.gradient_factors
    return torch.where(batch.mask & factors.isfinite(), factors.double(), 1.0)


def _candidates(batch: TokenBatch) -> Tensor:
    return torch.zeros_like(batch.mask) if batch.candidates is None else batch.candidates


def _covariance(left: Tensor, right: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = valid.sum()
    mean_left, mean_right = left.sum() / count.clamp(min=1), right.sum() / count.clamp(min=1)
    products = torch.where(valid, (left - mean_left) * (right - mean_right), 0.0)
    return count, mean_left, mean_right, products.sum()


def _observed_change(
    entropies: Tensor, valid: Tensor, entropies_after: Sequence[Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    if entropies_after is None:
        return device_moments(entropies, torch.zeros_like(valid))
    after = flat(list(entropies_after)).double()
    both = valid & after.isfinite()
    return device_moments(torch.where(both, after - entropies, 0.0), both)


def _read_moments(numbers: Iterator[float]) -> Moments:
    return Moments(int(next(numbers)), next(numbers), next(numbers))


def _read_covariance(numbers: Iterator[float]) -> Covariance:
    return Covariance(int(next(numbers)), next(numbers), next(numbers), next(numbers))
