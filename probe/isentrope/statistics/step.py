"""Everything reported about the tokens of a step, from one pass on the device and one copy to the host.

Which mechanism changes the unit prediction by how much: the loop's ratio clip, the intervention, the KL term.

    unit = (-mean(r A S_c)) + by_ratio_clip + by_intervention

    by_ratio_clip   = -mean((w - 1) r A S_c)            w: what the loop's own loss makes of r A, 0 where it clips
    by_intervention = -mean((f - 1) w r A S_c)          f: the factors of the control in force, 0 where it drops
    by_kl_penalty   = -mean(f alpha_KL S_c)             alpha_KL: what the loss's KL term adds to w r A

The last comes on top of the unit prediction, which is of the advantages alone. Each is the first-order change of the
mean entropy per unit of gain (arXiv:2602.03392, Cor. 4.1), in nats per unit gain. What a loop does not say is not known.

The metric names promised to users, from the sums of a step. What was not measured is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from isentrope.statistics.calibration import CalibratedPrediction
from isentrope.statistics.covariance import TOP_SHARES, top_means
from isentrope.statistics.histogram import BINS, SMALLEST_EXPONENT, Histogram, bin_counts
from isentrope.statistics.sums import Covariance, Moments, device_moments
from isentrope.statistics.tokens import CODES, THRESHOLD_SOURCES, StepTokens, TokenBatch, flat, step_tokens
from isentrope_wire.metrics import (
    CHANGE_BY_INTERVENTION,
    CHANGE_BY_KL_PENALTY,
    CHANGE_BY_RATIO_CLIP,
    CHANGE_WITH_NOTHING_IN_FORCE,
    CLIP_CANDIDATE_FRACTION,
    CLIP_FRACTION,
    CLIP_FRACTION_NEGATIVE,
    CLIP_FRACTION_POSITIVE,
    COVARIANCE_ADVANTAGE_LOGPROB,
    COVARIANCE_ADVANTAGE_SCORE,
    DISCRIMINATOR_SCORES,
    ENTROPY_GAIN,
    ENTROPY_INTERVAL_COVERAGE,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_PREDICTED_CHANGE,
    ENTROPY_PREDICTED_CHANGE_HIGH,
    ENTROPY_PREDICTED_CHANGE_LOW,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
    ENTROPY_UNIT_PREDICTED_CHANGE,
    RATIO_MEAN,
    SCORE_DISCRIMINATOR_MEAN,
    SCORE_DISCRIMINATOR_STD,
    SCORE_SELF_CHECK_Z,
    SCORE_VOCAB_CENTERED_MEAN,
    SCORE_VOCAB_CENTERED_STD,
    TOKEN_COUNT,
    TOKEN_EFFECTIVE_FRACTION,
    TOKEN_ENTROPIES,
    TOKEN_NOT_FINITE,
    TOKEN_PROBABILITIES,
    VOCAB_CENTERED_SCORES,
)
from isentrope_wire.reports import ScoreHistogram


@dataclass(frozen=True, slots=True)
class MechanismSums:
    """Sums over the valid tokens of a step; `merge` is exact."""

    with_nothing_in_force: float = 0.0
    """Of -r A S_c."""
    after_ratio_clip: float = 0.0
    """Of -w r A S_c."""
    ratio_clip_known: int = 0
    """Tokens of which the loop said w."""
    kl_penalty: float = 0.0
    """Of -f alpha_KL S_c."""
    kl_known: int = 0
    """Tokens of which the loop said alpha_KL."""
    pushed: int = 0
    """Tokens whose w r A is not 0: the loop's loss has a gradient there."""

    def merge(self, other: MechanismSums) -> MechanismSums:
        return MechanismSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @classmethod
    def read(cls, numbers: Iterable[float]) -> MechanismSums:
        """What `mechanism_sums` made, from the host."""
        unclipped, clipped, knows_loss, penalty, knows_kl, pushed = numbers
        # What the update takes from the entropy is what it changes with the sign turned round.
        return cls(-unclipped, -clipped, int(knows_loss), -penalty, int(knows_kl), int(pushed))


def mechanism_sums(tokens: StepTokens, factors: Tensor | None) -> tuple[Tensor, ...]:
    """The fields of `MechanismSums`, sums with the opposite sign, on the device.

    Args:
        factors: by what each token's gradient is multiplied under the control in force; None: by 1.
    """
    penalty = tokens.none
    if "kl" in tokens:
        pull = tokens["kl"] * tokens["S_c"]
        penalty = (pull if factors is None else torch.where(tokens.valid, factors, 0.0) * pull).sum()
    return (
        tokens.unclipped_effect_sum,
        tokens.sums[-1],
        tokens.known_loss,
        penalty,
        tokens.known_kl,
        tokens.pushed,
    )


def mechanism_scalars(sums: MechanismSums, tokens: int, unit_sum: float, *, intervening: bool) -> dict[str, float]:
    """The change of each mechanism, as means over the step's tokens; what is not known of every token is left out.

    Args:
        tokens: valid ones of the step, at least one.
        unit_sum: of the unit prediction.
        intervening: whether a control was in force. Without one it changed nothing, and nothing is said of it.
    """
    scalars: dict[str, float] = {}
    if sums.ratio_clip_known in (0, tokens):
        scalars[CHANGE_WITH_NOTHING_IN_FORCE] = sums.with_nothing_in_force / tokens
    if sums.ratio_clip_known == tokens:
        scalars[CHANGE_BY_RATIO_CLIP] = (sums.after_ratio_clip - sums.with_nothing_in_force) / tokens
    if intervening:
        scalars[CHANGE_BY_INTERVENTION] = (unit_sum - sums.after_ratio_clip) / tokens
    if sums.kl_known == tokens:
        scalars[CHANGE_BY_KL_PENALTY] = sums.kl_penalty / tokens
    return scalars


QUADRANTS = ("positive_high", "positive_low", "negative_high", "negative_low")
"""Sign of A, and whether S_c > 0 (high) or S_c <= 0 (low)."""

HISTOGRAMS = {
    VOCAB_CENTERED_SCORES: True,
    DISCRIMINATOR_SCORES: True,
    TOKEN_ENTROPIES: False,
    TOKEN_PROBABILITIES: False,
}
"""Names in the order `measure` counts them, and whether their range is symmetric about 0."""


_MOMENTS = ("count", "mean", "sum_squares")
_COVARIANCE = ("count", "mean_left", "mean_right", "sum_products")
_SCALARS = (
    *(f"S* {one}" for one in _MOMENTS),
    *(f"S_c {one}" for one in _MOMENTS),
    *(f"A, log p {one}" for one in _COVARIANCE),
    *(f"A, u S_c {one}" for one in _COVARIANCE),
    *(f"{quantity} {one}" for quantity in ("H", "r", "change") for one in _MOMENTS),
    *("not_finite", "largest_entropy", "largest_expected_score"),
    *(f"mechanism {one.name}" for one in fields(MechanismSums)),
    *THRESHOLD_SOURCES,
)
"""What the vector of `measure` begins with. Then come the tokens and sums by code, see `_by_code`, the top shares and the
histograms."""

THRESHOLD_COLUMNS = slice(0, 6)
"""Where in it the moments of S* and S_c stand: what the next step's thresholds may be made from."""

MEANS_COLUMNS = slice(6, 9)
"""Where in it the number of tokens, mean A and mean log p stand: the centre of the tokens' covariance scores."""

_CODES_FROM = len(_SCALARS)
_TOP_FROM = _CODES_FROM + 5 * CODES
_HISTOGRAMS_FROM = _TOP_FROM + len(TOP_SHARES)

NUMBERS = _HISTOGRAMS_FROM + len(HISTOGRAMS) * (1 + BINS)
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
    factors = _factors(batches)
    sources = [batch.threshold_source for batch in batches]
    scalars = [
        *tokens.moments("S*"),
        *tokens.moments("S_c"),
        *_covariance(tokens, "A", "log p"),
        *_covariance(tokens, "A", "u S_c"),
        *tokens.moments("H"),
        *tokens.moments("r"),
        *_observed_change(tokens, entropies_after),
        tokens.not_finite,
        tokens["H"].max(),
        (tokens["S*"] - tokens["S_c"]).max(),
        *mechanism_sums(tokens, factors),
        *(
            # A fill on the device; copying a Python number there would wait for it.
            torch.full_like(tokens.count, sources.count(source)) if source in sources else tokens.none
            for source in THRESHOLD_SOURCES
        ),
    ]
    return torch.cat(
        [
            torch.stack(scalars),
            _by_code(tokens, batches, factors),
            top_means(tokens),
            bin_counts(tokens.values[:4], tokens.ones, HISTOGRAMS.values()).reshape(-1),
        ]
    )


def nothing_measured(device: torch.device | None = None) -> Tensor:
    """The vector of a rank without tokens: merged with another it changes nothing."""
    return torch.zeros(NUMBERS, dtype=torch.float64, device=device)


def read_measurement(vector: Sequence[float]) -> StepSummary:
    """The summary in the vector that `measure` made, once it is on the host."""
    numbers = dict(zip(_SCALARS, vector, strict=False))
    tokens = int(numbers["S* count"])
    codes = [vector[_CODES_FROM + CODES * row :][:CODES] for row in range(5)]
    return StepSummary(
        not_finite=int(numbers["not_finite"]),
        entropies=_read_moments(numbers, "H"),
        discriminator_scores=_read_moments(numbers, "S*"),
        vocab_centered_scores=_read_moments(numbers, "S_c"),
        importance_ratios=_read_moments(numbers, "r"),
        advantage_score=_read_covariance(numbers, "A, u S_c"),
        advantage_logprob=_read_covariance(numbers, "A, log p"),
        change_sums=tuple(-sum(codes[1][code] for code in _codes) for _codes in _QUADRANT_CODES),
        sign_counts=_sign_counts(*([int(count) for count in counts] for counts in (codes[0], *codes[2:]))),
        observed_change=_read_moments(numbers, "change"),
        threshold_sources=tuple(int(numbers[source]) for source in THRESHOLD_SOURCES),
        mechanisms=MechanismSums.read(numbers[f"mechanism {field.name}"] for field in fields(MechanismSums)),
        largest_entropy=max(numbers["largest_entropy"], 0.0),
        largest_expected_score=max(numbers["largest_expected_score"], 0.0),
        covariance_top=tuple(-mean for mean in vector[_TOP_FROM:_HISTOGRAMS_FROM])
        if tokens
        else (0.0,) * len(TOP_SHARES),
        histograms={
            name: _read_histogram(vector[_HISTOGRAMS_FROM + row * (1 + BINS) :][: 1 + BINS], symmetric, tokens)
            for row, (name, symmetric) in enumerate(HISTOGRAMS.items())
        },
    )


_NEGATIVE, _POSITIVE = (0, 1, 2), (6, 7, 8)
_INCREASING, _DECREASING = (0, 3, 6), (2, 5, 8)
_QUADRANT_CODES = ((8,), (6, 7), (0,), (1, 2))
"""Of `StepTokens.codes`, those of each of QUADRANTS: the sign of S_c is that of A S_c times that of A."""


def _by_code(tokens: StepTokens, batches: Sequence[TokenBatch], factors: Tensor | None) -> Tensor:
    """Of the tokens of each of `StepTokens.codes`: how many, the sum of f u A S_c, how many were dropped, how many an
    intervention asked for, and how many of these it spared."""
    if factors is None:
        table = tokens.values.new_zeros(5, CODES)
        table[:2].scatter_add_(1, tokens.codes.expand(2, -1), tokens.values[-2:])
        return table.reshape(-1)
    kept = flat([batch.keep_mask for batch in batches])
    candidates = flat([_candidates(batch) for batch in batches])
    pulled = torch.where(kept, tokens.effects * factors, 0.0)
    rows = torch.stack([tokens.ones, pulled, ~kept, candidates, candidates & kept])
    rows[2:].mul_(tokens.ones)
    return rows.new_zeros(5, CODES).scatter_add_(1, tokens.codes.expand(5, -1), rows).reshape(-1)


def _sign_counts(all_: list[int], dropped: list[int], candidates: list[int], spared: list[int]) -> SignCounts:
    def of(counts: list[int], codes: Sequence[int]) -> int:
        return sum(counts[code] for code in codes)

    return SignCounts(
        positive=of(all_, _POSITIVE),
        negative=of(all_, _NEGATIVE),
        dropped_positive=of(dropped, _POSITIVE),
        dropped_negative=of(dropped, _NEGATIVE),
        dropped=sum(dropped),
        candidates=sum(candidates),
        spared=sum(spared),
        decreasing=of(all_, _DECREASING),
        increasing=of(all_, _INCREASING),
    )


def _factors(batches: Sequence[TokenBatch]) -> Tensor | None:
    """By what each token's gradient is multiplied; None: nobody touched any."""
    if all(batch.keep_mask is batch.mask and batch.gradient_factors is None for batch in batches):
        return None
    return flat(
        [batch.keep_mask if batch.gradient_factors is None else batch.gradient_factors for batch in batches]
    ).double()


def _candidates(batch: TokenBatch) -> Tensor:
    return torch.zeros_like(batch.mask) if batch.candidates is None else batch.candidates


def _covariance(tokens: StepTokens, left: str, right: str) -> tuple[Tensor, ...]:
    return tokens.count, tokens.mean(left), tokens.mean(right), tokens.product_sum(left, right)


def _observed_change(tokens: StepTokens, entropies_after: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    if entropies_after is None:
        return tokens.none, tokens.none, tokens.none
    after = flat(list(entropies_after)).double()
    return device_moments(after - tokens["H"], tokens.valid & after.isfinite())


def _read_moments(numbers: Mapping[str, float], name: str) -> Moments:
    count, *others = (numbers[f"{name} {one}"] for one in _MOMENTS)
    return Moments(int(count), *others)


def _read_covariance(numbers: Mapping[str, float], name: str) -> Covariance:
    count, *others = (numbers[f"{name} {one}"] for one in _COVARIANCE)
    return Covariance(int(count), *others)


def _read_histogram(numbers: Sequence[float], symmetric: bool, tokens: int) -> Histogram:
    exponent, *counts = map(int, numbers)
    # Of no token at all: it must not widen another's bins.
    return Histogram(symmetric, exponent if tokens else SMALLEST_EXPONENT, tuple(counts))


def unit_prediction(summary: StepSummary) -> float | None:
    """-mean(keep r A S_c) over the step's tokens, None without tokens       arXiv:2602.03392, Cor. 4"""
    return sum(summary.change_sums) / summary.tokens if summary.tokens else None


def summary_scalars(summary: StepSummary, *, intervening: bool = False) -> dict[str, float]:
    """Everything measured on the step's tokens; entropies and scores in nats.

    Args:
        intervening: whether a control was in force.
    """
    if not summary.tokens:
        return {TOKEN_COUNT: 0.0, TOKEN_NOT_FINITE: float(summary.not_finite)}
    counts, centred = summary.sign_counts, summary.vocab_centered_scores
    scalars: dict[str, float] = {
        TOKEN_COUNT: float(summary.tokens),
        TOKEN_EFFECTIVE_FRACTION: summary.mechanisms.pushed / summary.tokens,
        ENTROPY_MEAN: summary.entropies.mean,
        SCORE_DISCRIMINATOR_MEAN: summary.discriminator_scores.mean,
        SCORE_DISCRIMINATOR_STD: summary.discriminator_scores.standard_deviation,
        SCORE_VOCAB_CENTERED_MEAN: centred.mean,
        SCORE_VOCAB_CENTERED_STD: centred.standard_deviation,
        COVARIANCE_ADVANTAGE_SCORE: summary.advantage_score.value,
        COVARIANCE_ADVANTAGE_LOGPROB: summary.advantage_logprob.value,
        CLIP_FRACTION: counts.dropped / summary.tokens,
    }
    for quadrant, change_sum in zip(QUADRANTS, summary.change_sums, strict=True):
        scalars[f"change/{quadrant}"] = change_sum / summary.tokens
    unit_sum = sum(summary.change_sums)
    scalars[ENTROPY_UNIT_PREDICTED_CHANGE] = unit_sum / summary.tokens
    scalars |= mechanism_scalars(summary.mechanisms, summary.tokens, unit_sum, intervening=intervening)
    if centred.standard_error > 0:
        scalars[SCORE_SELF_CHECK_Z] = centred.mean / centred.standard_error
    if counts.positive:
        scalars[CLIP_FRACTION_POSITIVE] = counts.dropped_positive / counts.positive
    if counts.negative:
        scalars[CLIP_FRACTION_NEGATIVE] = counts.dropped_negative / counts.negative
    if summary.covariance_top is not None:
        scalars |= dict(zip(TOP_SHARES, summary.covariance_top, strict=True))
    if summary.importance_ratios.count:
        scalars[RATIO_MEAN] = summary.importance_ratios.mean
    if summary.observed_change.count:
        scalars[ENTROPY_OBSERVED_CHANGE] = summary.observed_change.mean
    if summary.not_finite:
        scalars[TOKEN_NOT_FINITE] = float(summary.not_finite)
    return scalars


def selection_scalars(summary: StepSummary) -> dict[str, float]:
    """What an intervention asked for; more than it left out where a cap binds, a draw spares, or a token is weighted."""
    if not summary.tokens:
        return {}
    return {CLIP_CANDIDATE_FRACTION: summary.sign_counts.candidates / summary.tokens}


def calibration_scalars(prediction: CalibratedPrediction) -> dict[str, float]:
    """The calibrated prediction and how far to trust it."""
    scalars: dict[str, float | None] = {
        ENTROPY_PREDICTED_CHANGE: prediction.predicted_change,
        ENTROPY_PREDICTED_CHANGE_LOW: prediction.low,
        ENTROPY_PREDICTED_CHANGE_HIGH: prediction.high,
        ENTROPY_INTERVAL_COVERAGE: prediction.interval_coverage,
        ENTROPY_GAIN: prediction.gain,
        ENTROPY_PREDICTION_R2: prediction.r2,
        ENTROPY_PREDICTION_SIGN_AGREEMENT: prediction.sign_agreement,
    }
    return {name: value for name, value in scalars.items() if value is not None}


def report_histograms(summary: StepSummary) -> tuple[ScoreHistogram, ...]:
    """The step's distributions in the wire's words; none without tokens."""
    if not summary.tokens:
        return ()
    return tuple(
        ScoreHistogram(
            name=name, low=histogram.low, high=histogram.high, counts=histogram.counts, not_finite=summary.not_finite
        )
        for name, histogram in summary.histograms.items()
    )
