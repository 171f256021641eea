"""The covariance of log p and advantage in bins, from which the means of its top shares follow with several ranks.

c_t needs the means of all ranks, which nobody knows before the ranks have met. So the tokens are sorted into bins by
c_t about the means of the step before, and each bin keeps what its sum of c_t about any other means follows from:

    sum (log p - m)(A - a) = sum A log p - a sum log p - m sum A + n m a

Sums of whole bins are exact. The bin in which a share ends gives its own mean for the part of it that belongs, and a
bin's values differ by a factor of BIN_RATIO at most; so the mean of a share is off by less than BIN_RATIO - 1 = 9 %,
and of shares of many tokens by less than 1 %. That holds while the means move little from step to step. In the first
step the bins lie about each rank's own means, and the order of the bins is less sharp. c_t whose size lies outside
[SMALLEST, LARGEST] counts to the nearest bin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isentrope.statistics.covariance import Covariance
from isentrope.statistics.covariance_tail import TOP_SHARES
from isentrope.statistics.step_tokens import StepTokens

BINS_PER_OCTAVE = 8
BIN_RATIO = 2 ** (1 / BINS_PER_OCTAVE)
"""9 %: the largest by the smallest value of a bin."""

_LOWEST_OCTAVE, _HIGHEST_OCTAVE = -14, 18
SMALLEST, LARGEST = 2.0**_LOWEST_OCTAVE, 2.0**_HIGHEST_OCTAVE
"""|c_t| in nats times the advantage's unit."""

_SIDE = (_HIGHEST_OCTAVE - _LOWEST_OCTAVE) * BINS_PER_OCTAVE
_BINS = 2 * _SIDE + 1
_SUMS = 4
"""Of each bin: tokens, log p, A, A log p."""

NUMBERS = _BINS * _SUMS
"""Length of the vector of `measure_sketch`."""


def measure_sketch(tokens: StepTokens, centre: tuple[Tensor, Tensor] | None) -> Tensor:
    """The bins' sums as one float64 vector, on the device. Vectors of ranks add up.

    Args:
        centre: mean log p and mean A of the step before over all ranks, scalars. None, or NaN: these tokens' own.
    """
    logprobs, advantages = tokens["log p"], tokens["A"]
    own = (tokens.mean("log p"), tokens.mean("A"))
    mean_logprob, mean_advantage = (
        mine if known is None else torch.where(known.isfinite(), known, mine)
        for known, mine in zip(centre or (None, None), own, strict=True)
    )
    products = (logprobs - mean_logprob) * (advantages - mean_advantage)
    sizes = products.abs()
    step = (sizes.clamp(min=SMALLEST).log2() - _LOWEST_OCTAVE) * BINS_PER_OCTAVE
    distance = torch.where(sizes < SMALLEST, 0, step.floor().long().clamp(0, _SIDE - 1) + 1)
    bins = _SIDE + torch.where(products < 0, -distance, distance)
    # What is not valid holds 0 in every row.
    columns = torch.stack([tokens.ones, logprobs, advantages, logprobs * advantages])
    sums = columns.new_zeros(_SUMS, _BINS).scatter_add_(1, bins.expand_as(columns), columns)
    return sums.reshape(-1)


def read_sketch(sums: Sequence[float], covariance: Covariance) -> tuple[float, ...] | None:
    """Mean of the largest c_t, by TOP_SHARES; None without tokens.

    Args:
        sums: of all ranks, added up.
        covariance: of A and log p over the same tokens.
    """
    counts, logprobs, advantages, products = (sums[row * _BINS : (row + 1) * _BINS] for row in range(_SUMS))
    mean_advantage, mean_logprob = covariance.mean_left, covariance.mean_right
    bins = sorted(
        (
            (
                int(counts[i]),
                products[i]
                - mean_advantage * logprobs[i]
                - mean_logprob * advantages[i]
                + counts[i] * mean_logprob * mean_advantage,
            )
            for i in range(_BINS)
            if counts[i]
        ),
        key=lambda one: -one[1] / one[0],
    )
    tokens = sum(count for count, _ in bins)
    if not tokens:
        return None
    return tuple(_top_mean(bins, max(1, math.floor(tokens * share + 0.5))) for share in TOP_SHARES.values())


def _top_mean(bins: Sequence[tuple[int, float]], wanted: int) -> float:
    """Mean over the first `wanted` tokens of bins of (tokens, sum)."""
    left, total = wanted, 0.0
    for count, bin_sum in bins:
        taken = min(left, count)
        total += bin_sum * taken / count
        left -= taken
        if not left:
            break
    return total / wanted
