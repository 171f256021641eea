"""Quantiles of a step's tokens, and its numbers by the sign of the advantage.

Quantiles come from bins by size, eight to an octave, each with its count and its sum: they merge over ranks by
addition. A quantile is the mean of the bin it lies in, so off by less than 9 %; sums of whole bins are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add

import torch
from torch import Tensor

from isentrope.statistics.moments import zeros
from isentrope.statistics.sums import Metrics, StepSums, Sum
from isentrope.statistics.tokens import StepTokens
from isentrope_wire.metrics import (
    COMPLETION_LENGTH_NEGATIVE,
    COMPLETION_LENGTH_POSITIVE,
    COMPLETION_REPETITION_NEGATIVE,
    COMPLETION_REPETITION_POSITIVE,
    COMPLETION_TRUNCATED_NEGATIVE,
    COMPLETION_TRUNCATED_POSITIVE,
    ENTROPY_QUANTILES,
    ENTROPY_TOP_20_SHARE,
)

BINS_PER_OCTAVE = 8
TOP = 0.2
"""Share of the tokens whose entropy is compared with that of all: the forking tokens of arXiv:2506.01939."""


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

    def top_sum(self, share: float) -> float:
        """Sum of the values of the largest tokens."""
        left, total = share * sum(self.counts), 0.0
        for count, of_bin in zip(reversed(self.counts), reversed(self.sums), strict=True):
            taken = min(left, count)
            if taken:
                total += of_bin * taken / count
            left -= taken
        return total


def binned(
    values: Callable[[StepTokens], tuple[Tensor, Tensor] | None],
    lowest: int,
    highest: int,
    metrics: Callable[[Bins, StepSums], Metrics],
    *,
    signed: bool = False,
) -> Sum[Bins]:
    """Bins of some value of each token.

    Args:
        values: The values, and 1 where one counts, else 0, both float64 [tokens]; None: not known.
        lowest: Sizes up to 2^lowest are in the first bin.
        highest: Sizes from 2^highest on are in the last one.
        metrics: What comes of the bins of a step.
        signed: Whether there are values below 0. They have as many bins again, and 0 one of its own.
    """
    side = (highest - lowest) * BINS_PER_OCTAVE
    bins = 2 * side + 1 if signed else side

    def measure(tokens: StepTokens) -> Tensor:
        found = values(tokens)
        if found is None:
            return zeros(2 * bins, tokens.ones.device)
        value, counts = found
        place = (value.abs() if signed else value).clamp(2.0**lowest, 2.0**highest * (1 - 1e-12)).log2()
        place = place.sub_(lowest).mul_(BINS_PER_OCTAVE).long()
        if signed:
            place = place.add_(1).mul_(value.sign().long()).add_(side)
        table = value.new_zeros(2, bins)
        table[0].scatter_add_(0, place, counts)
        table[1].scatter_add_(0, place, value)
        return table.reshape(-1)

    return Sum(
        size=2 * bins,
        measure=measure,
        read=lambda numbers, _: Bins(tuple(numbers[:bins]), tuple(numbers[bins:])),
        merge=None,
        metrics=metrics,
    )


def _entropy_metrics(bins: Bins, step: StepSums) -> Metrics:
    quantiles = {name: bins.quantile(share) for name, share in ENTROPY_QUANTILES.items()}
    metrics: dict[str, float] = {name: value for name, value in quantiles.items() if value is not None}
    total = sum(bins.sums)
    return metrics | ({ENTROPY_TOP_20_SHARE: bins.top_sum(TOP) / total} if total > 0 else {})


ENTROPY_BINS = binned(lambda tokens: (tokens["H"], tokens.ones), -20, 5, _entropy_metrics)


def _by_sign(names: tuple[str, str]) -> Callable[[Sequence[float], StepSums], Metrics]:
    """Means of the tokens or sequences with A > 0 and A < 0, from their counts and sums; a name without any is absent."""

    def metrics(sums: Sequence[float], step: StepSums) -> Metrics:
        counts, totals = sums[:2], sums[2:]
        return {name: total / count for name, count, total in zip(names, counts, totals, strict=True) if count}

    return metrics


def _sequences(tokens: StepTokens, of: str | None) -> Tensor:
    """How many sequences have a positive and a negative mean advantage, and the sums of a number of each over them.

    Args:
        of: Which of the loop's own numbers of a sequence; None: how many of its tokens count.
    """
    sums: Tensor | None = None
    first = 0
    for batch in tokens.batches:
        last = first + batch.mask.numel()
        given = None if of is None else batch.completions.get(of)
        if batch.mask.dim() == 2 and batch.mask.numel() and (of is None or given is not None):
            lengths, advantages = (tokens[name][first:last].reshape(batch.mask.shape).sum(1) for name in ("valid", "A"))
            # Rows: all, and a number of each; columns: positive, negative.
            numbers = torch.stack([torch.ones_like(lengths), lengths if given is None else given.double()])
            found = numbers @ torch.stack([advantages > 0, advantages < 0], dim=1).double()
            sums = found if sums is None else sums + found
        first = last
    return zeros(4, tokens.ones.device) if sums is None else sums.reshape(-1)


def _of_sequences(of: str | None, names: tuple[str, str]) -> Sum[Sequence[float]]:
    return Sum(
        size=4,
        measure=lambda tokens: _sequences(tokens, of),
        read=lambda numbers, _: tuple(numbers),
        merge=lambda left, right: tuple(map(add, left, right)),
        metrics=_by_sign(names),
    )


COMPLETIONS: Mapping[str, tuple[str, str]] = {
    "truncated": (COMPLETION_TRUNCATED_POSITIVE, COMPLETION_TRUNCATED_NEGATIVE),
    "repetition": (COMPLETION_REPETITION_POSITIVE, COMPLETION_REPETITION_NEGATIVE),
}
"""Numbers of a sequence that the loop may pass, and the metrics that come of them."""

SPREAD_SUMS = (
    ENTROPY_BINS,
    _of_sequences(None, (COMPLETION_LENGTH_POSITIVE, COMPLETION_LENGTH_NEGATIVE)),
    *(_of_sequences(name, names) for name, names in COMPLETIONS.items()),
)
