"""How far the policy is from the ones its tokens came from: the sampler, the loss's old policy, the
reference.

    d = log p - log q        r = p / q                     q: the sampler, or the old policy
    KL(q || p):  k1 = mean(-d),   k3 = mean(r - 1 - d)     both estimate it on tokens drawn from q
    effective sample size = (sum r)^2 / (n sum r^2)        as a share of n tokens, or of n sequences

d of a sequence is the sum over its tokens. No d is cut: sums of ratios are kept as their
logarithms, so that an effective sample size has no overflow, also over ranks. k3 needs the ratio
itself: it is missing where that is no float64 any more, from d = 709 nats on. What a cause looks
like in d, to first order:

    another temperature  -d = (T / T_sampler - 1)(log p + H)
    top-k or top-p      d <= 0 everywhere: what is left of the vocabulary shares all the probability
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from isentrope.statistics.alerts import TOP_K
from isentrope.statistics.histogram import LogBins
from isentrope.statistics.moments import finite, flat, zeros
from isentrope.statistics.sums import (
    NOT_FINITE_GRADIENTS,
    Metrics,
    StepSums,
    Sum,
    largest,
    mean_of,
    moments,
    totals,
)
from isentrope.statistics.tokens import StepTokens
from isentrope_wire import metrics
from isentrope_wire.reports import LOSS_GRADIENT

LARGEST_EXPONENT = 709.0
"""In nats: beyond it the exponential is no float64."""

REMEMBERED = 64

TRUNCATED = 0.003
"""Mean of -d from which on a vocabulary may be truncated, nats."""
EXPLAINED = 0.8
"""Share of the differences' squares that a temperature must explain."""
ROUND_OFF = 0.01
"""Nats that two engines' log-probs of one token differ by without a cause."""


@dataclass(frozen=True, slots=True)
class RatioSums:
    """Of some ratios r = exp(d), each kept as its logarithm: sum r and sum r^2."""

    count: float
    log_sum: float
    log_squares: float

    def merge(self, other: RatioSums) -> RatioSums:
        """Add two; one without ratios counts for nothing."""
        if not self.count or not other.count:
            if self.count:
                return self
            return other
        return RatioSums(
            self.count + other.count,
            _log_of_sum(self.log_sum, other.log_sum),
            _log_of_sum(self.log_squares, other.log_squares),
        )

    @property
    def effective(self) -> float:
        """(sum r)^2 / (n sum r^2), from 1 / n, where one has all the weight, to 1."""
        return math.exp(2 * self.log_sum - self.log_squares) / self.count


def _log_of_sum(left: float, right: float) -> float:
    """log(exp(left) + exp(right)) without overflow."""
    least, most = sorted((left, right))
    return most + math.log1p(math.exp(least - most))


@dataclass(frozen=True, slots=True)
class Ratios:
    """What a policy's log-probs d are apart from another's, over tokens and over whole
    sequences."""

    tokens: RatioSums
    sequences: RatioSums
    differences: float
    """Sum of d."""
    excess: float
    """Sum of r - 1 - d."""
    to_old: float
    """Tokens, where the other policy is the loop's old one."""

    @property
    def count(self) -> float:
        return self.tokens.count

    @classmethod
    def read(cls, numbers: Sequence[float], rank: int = 0) -> Ratios:
        """From the numbers that `_ratio_sums` measures."""
        return cls(RatioSums(*numbers[:3]), RatioSums(*numbers[3:6]), *numbers[6:])

    def merge(self, other: Ratios) -> Ratios:
        """Add those of another rank."""
        return Ratios(
            self.tokens.merge(other.tokens),
            self.sequences.merge(other.sequences),
            self.differences + other.differences,
            self.excess + other.excess,
            self.to_old + other.to_old,
        )

    @property
    def k3(self) -> float:
        """Infinite where a ratio is beyond float64."""
        return self.excess / self.count


def _ratio_sums(name: str, named: Callable[[Ratios, StepSums], Metrics]) -> Sum[Ratios]:
    """Ratio sums of the log-probs that the loop passed under this name; all 0 where it passed
    none."""

    def measure(tokens: StepTokens) -> Tensor | list[Tensor]:
        measured = tokens.differences(name)
        if measured is None:
            return [tokens.none] * 9
        differences, counts = measured
        to_old = name == "ratio" and all("old" in batch.differences for batch in tokens.batches)
        return [
            *_sums_of_logs(differences, counts > 0),
            *_sums_of_logs(*_sequence_differences(tokens, differences)),
            differences.sum(),
            _excess(differences).dot(counts),
            tokens.count if to_old else tokens.none,
        ]

    return Sum(
        size=9,
        measure=measure,
        read=Ratios.read,
        merge=Ratios.merge,
        metrics=lambda value, step: named(value, step) if value.count else {},
    )


def _excess(differences: Tensor) -> Tensor:
    """r - 1 - d of each, never negative; infinite from d = 709 on."""
    return differences.expm1() - differences


def _sums_of_logs(differences: Tensor, counts: Tensor) -> list[Tensor]:
    """The numbers of `RatioSums`, of those that count."""
    logs = torch.where(counts, differences, -torch.inf)
    both = torch.stack([logs, 2 * logs])
    return [counts.sum(dtype=torch.float64), *both.logsumexp(1)]


def _sequence_differences(tokens: StepTokens, differences: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of d over each sequence, and whether a token of it counts."""
    sums, counts, first = [differences.new_zeros(0)], [tokens.valid.new_zeros(0)], 0
    for batch in tokens.batches:
        last = first + batch.mask.numel()
        if batch.has_sequences and batch.mask.numel():
            sums.append(batch.sequence_sums(differences[first:last]))
            counts.append(batch.sequence_sums(tokens.ones[first:last]) > 0)
        first = last
    return torch.cat(sums), torch.cat(counts)


def _finite(scalars: dict[str, float]) -> Metrics:
    """Without those beyond float64: a number that can't be had is missing."""
    return {name: value for name, value in scalars.items() if math.isfinite(value)}


def _sampler_metrics(of: Ratios, step: StepSums) -> Metrics:
    scalars: dict[str, float] = {
        metrics.SAMPLER_KL_K1: -of.differences / of.count,
        metrics.SAMPLER_KL_K3: of.k3,
        metrics.SAMPLER_EFFECTIVE_SAMPLE_SIZE: of.tokens.effective,
    }
    if of.sequences.count:
        scalars[metrics.SAMPLER_EFFECTIVE_SEQUENCES] = of.sequences.effective
    return _finite(scalars)


def _ratio_metrics(of: Ratios, step: StepSums) -> Metrics:
    scalars: dict[str, float] = {metrics.RATIO_EFFECTIVE_SAMPLE_SIZE: of.tokens.effective}
    if of.to_old:
        scalars[metrics.KL_OLD] = of.k3
    if of.sequences.count:
        scalars[metrics.RATIO_EFFECTIVE_SEQUENCES] = of.sequences.effective
    return _finite(scalars)


SAMPLER = _ratio_sums("sampler", _sampler_metrics)
RATIO = _ratio_sums("ratio", _ratio_metrics)


def _reference_kl(tokens: StepTokens) -> Tensor | None:
    """Sum of the estimator of KL(p || p_ref) that is never negative, k3 with the ratio p_ref / p;
    and the tokens."""
    measured = tokens.differences("reference")
    if measured is None:
        return None
    differences, counts = measured
    return torch.stack([_excess(-differences).dot(counts), counts.sum()])


REFERENCE = mean_of(_reference_kl, lambda kl: _finite({metrics.KL_REFERENCE: kl}))


def _largest_difference(tokens: StepTokens) -> Tensor:
    measured = tokens.differences("sampler")
    if measured is None:
        return tokens.none
    return measured[0].abs().max()


LARGEST_DIFFERENCE = largest(
    _largest_difference,
    lambda value, step: (
        {metrics.SAMPLER_LOGPROB_DIFFERENCE_MAX: value} if step[SAMPLER].count else {}
    ),
)
LARGEST_RATIO = largest(
    lambda tokens: tokens["r"].max() if "r" in tokens else tokens.none,
    lambda value, step: {metrics.RATIO_MAX: value} if value else {},
)


_BY_SIZE = LogBins(lowest_octave=-14, highest_octave=10)
"""Bins by |d|. A quantile is the mean of the bin it lies in, so d is off by less than 9 %."""
_BINS = _BY_SIZE.count


@dataclass(frozen=True, slots=True)
class Bins:
    """Tokens by size, rising: how many lie in each bin, and the sum of their values."""

    counts: tuple[float, ...]
    sums: tuple[float, ...]

    def quantile(self, share: float) -> float | None:
        """The value below which this share of the tokens lies; None without tokens."""
        wanted, passed = share * sum(self.counts), 0.0
        value = None
        for count, total in zip(self.counts, self.sums, strict=True):
            if count:
                value, passed = total / count, passed + count
                if passed >= wanted:
                    break
        return value


def _ratio_bins(tokens: StepTokens) -> Tensor:
    """Tokens and sum of d in each bin."""
    measured = tokens.differences("ratio")
    if measured is None:
        return zeros(2 * _BINS, tokens.ones.device)
    value, counts = measured
    place = _BY_SIZE.places(value)
    table = value.new_zeros(2, _BINS)
    table[0].scatter_add_(0, place, counts)
    table[1].scatter_add_(0, place, value)
    return table.reshape(-1)


def _ratio_quantiles(bins: Bins, step: StepSums) -> Metrics:
    quantiles = {name: bins.quantile(share) for name, share in metrics.RATIO_QUANTILES.items()}
    return {
        name: math.exp(value)
        for name, value in quantiles.items()
        if value is not None and value < LARGEST_EXPONENT
    }


RATIO_BINS = Sum(
    size=2 * _BINS,
    measure=_ratio_bins,
    read=lambda numbers, _: Bins(tuple(numbers[:_BINS]), tuple(numbers[_BINS:])),
    merge=None,
    metrics=_ratio_quantiles,
)


def _clipped(tokens: StepTokens) -> list[Tensor]:
    """Tokens that the loss gives no gradient: A < 0 and r < 1, A > 0 and r > 1."""
    if "r" not in tokens or tokens.basis != LOSS_GRADIENT:
        return [tokens.none] * 3
    silent, advantages, ratios = tokens["g"] == 0, tokens["A"], tokens["r"]
    below, above = tokens.valid & (ratios < 1), ratios > 1
    sides = ((advantages < 0) & below, (advantages > 0) & above)
    return [tokens.count, *((silent & side).sum(dtype=torch.float64) for side in sides)]


def _clip_fractions(tokens: float, low: float, high: float) -> Metrics:
    if tokens:
        return {metrics.RATIO_CLIPPED_LOW: low / tokens, metrics.RATIO_CLIPPED_HIGH: high / tokens}
    return {}


CLIPPED = totals(
    _clip_fractions,
    3,
    _clipped,
    lambda fractions, step: {} if step[NOT_FINITE_GRADIENTS] else fractions,
)
"""By the side and the sign: what the loop's own clip silences."""


def _self_check(tokens: StepTokens) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of r S_c, whose mean over tokens drawn from q is 0:
    arXiv:2602.03392, Cor. 1 and App. D, Cor. 1.1."""
    measured = tokens.differences("sampler")
    if measured is None:
        return tokens.moments("r S_c")
    ratios = measured[0].exp() * measured[1]
    values = ratios * tokens["S_c"]
    mean = values.sum() / tokens.count.clamp(min=1)
    return tokens.count, mean, torch.where(tokens.valid, values - mean, 0.0).square().sum()


SELF_CHECK = moments(
    _self_check,
    lambda value, step: (
        _finite({metrics.SCORE_SELF_CHECK_Z: value.mean / value.standard_error})
        if value.standard_error > 0
        else {}
    ),
)


class Evidence(NamedTuple):
    """Sums that tell causes of a mismatch apart."""

    surprise_squares: float
    """Sum of squares of log p + H."""
    pulled: float
    """Sum of -d (log p + H)."""
    difference_squares: float
    not_above: float
    """Tokens with d up to ROUND_OFF."""
    outside: float
    """Tokens that the mask leaves out and the loss gives a gradient."""


def _evidence(tokens: StepTokens) -> list[Tensor]:
    gradient = tokens.gradient("gated")
    if gradient is None:
        outside = tokens.none
    else:
        outside = (finite(gradient) & (gradient != 0) & ~tokens.mask).sum(dtype=torch.float64)
    measured = tokens.differences("sampler")
    if measured is None:
        return [*[tokens.none] * 4, outside]
    differences, counts = measured
    surprise = tokens["log p"] + tokens["H"]
    return [
        surprise.dot(surprise),
        -differences.dot(surprise),
        differences.dot(differences),
        ((differences <= ROUND_OFF) * counts).sum(),
        outside,
    ]


EVIDENCE = totals(
    Evidence,
    5,
    _evidence,
    lambda value, step: (
        {metrics.TOKEN_GRADIENT_OUTSIDE_MASK: value.outside} if value.outside else {}
    ),
)


_ODD = -0x61C8864680B583EB
"""The golden ratio's bits, as an odd int64: what is added with it spreads over all bits."""
_HASH_BITS = (1 << 52) - 1
"""What a float64 holds to the last bit."""


def _hash(tokens: StepTokens) -> Tensor:
    """A number for the step's tokens that their order does not change; 0 where the loop's ids are
    not known."""
    ids = [batch.token_ids for batch in tokens.batches if batch.token_ids is not None]
    if len(ids) < len(tokens.batches):
        return tokens.none
    token_ids = flat(ids).long()
    return ((token_ids * (token_ids + _ODD) * tokens.valid).sum() & _HASH_BITS).double()


TOKEN_HASH = Sum[int](
    size=1,
    measure=_hash,
    read=lambda numbers, _: int(numbers[0]),
    merge=lambda left, right: (left + right) & _HASH_BITS,
)


@dataclass(slots=True)
class Epochs:
    """Counts how often a step's tokens were trained on: several updates of one batch are one epoch
    each."""

    _recent: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def step(self, token_hash: int) -> int:
        """1 for tokens not seen in the last REMEMBERED steps; 0 where the ids are not known."""
        if not token_hash:
            return 0
        self._recent.append(token_hash)
        return self._recent.count(token_hash)


def likely_cause(step: StepSums, *, learnt: bool) -> str:
    """What makes tokens and logits not belong together, in words; empty where nothing in the step
    suggests one."""
    evidence, sampler, tokens = step[EVIDENCE], step[SAMPLER], step.tokens
    if evidence.outside > 0.01 * tokens:
        return (
            f"mask: the loss gives a gradient to {evidence.outside:.0f} tokens that the mask leaves"
            " out. Pass gate the mask that the loss uses."
        )
    # A policy that has learnt is sharper than its sampler, as under a lower temperature.
    if sampler.count and not learnt:
        if (
            -sampler.differences > TRUNCATED * sampler.count
            and evidence.not_above > 0.995 * sampler.count
        ):
            return (
                "truncation: the sampler gives every token at least the probability that score"
                " finds, as top-k, top-p or min-p do. Switch it off, or score the truncated"
                f" logits. {TOP_K}"
            )
        squares = evidence.surprise_squares * evidence.difference_squares
        spread = math.sqrt(evidence.difference_squares / sampler.count)
        # Of a line through the origin: what part of the differences it explains, and its slope.
        if spread > 2 * ROUND_OFF and squares > 0 and evidence.pulled**2 / squares > EXPLAINED:
            slope = evidence.pulled / evidence.surprise_squares
            return (
                f"temperature: the sampler's is about {1 / max(1 + slope, 0.01):.2f} times the one"
                " that score was given. Pass score the sampler's temperature."
            )
    return ""


MISMATCH_SUMS = (
    SAMPLER,
    RATIO,
    REFERENCE,
    LARGEST_DIFFERENCE,
    LARGEST_RATIO,
    RATIO_BINS,
    CLIPPED,
    SELF_CHECK,
    EVIDENCE,
    TOKEN_HASH,
)
