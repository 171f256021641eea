"""How two streams move together.

How much of the covariance of log p and advantage a few tokens carry.

    c_t = (log p_t - mean(log p)) (A_t - mean(A))        arXiv:2505.22617, eq. 10; its Table 1 is the mean of the top shares

The means are those of the whole step. Tokens of several ranks are not ranked here: `covariance_sketch.py`.

The covariance of log p and advantage in bins, from which the means of its top shares follow with several ranks.

c_t needs the means of all ranks, which nobody knows before the ranks have met. So the tokens are sorted into bins by
c_t about the means of the step before, and each bin keeps what its sum of c_t about any other means follows from:

    sum (log p - m)(A - a) = sum A log p - a sum log p - m sum A + n m a

Sums of whole bins are exact. The bin in which a share ends gives its own mean for the part of it that belongs, and a
bin's values differ by a factor of BIN_RATIO at most; so the mean of a share is off by less than BIN_RATIO - 1 = 9 %,
and of shares of many tokens by less than 1 %. That holds while the means move little from step to step. In the first
step the bins lie about each rank's own means, and the order of the bins is less sharp. c_t whose size lies outside
[SMALLEST, LARGEST] counts to the nearest bin.

The covariance of a sequence's log-prob and its advantage, within each group, by how hard the group was.

    Cov over y in the group of (log pi(y|x) / |y|, A(y, x))                        arXiv:2505.22617, eq. 8, 9, Figure 8

log pi(y|x) / |y| is the mean log p of the sequence's tokens, the length-normalised log-prob, in nats. A group are the
rollouts of one prompt; which they are the loop says (`Probe.gate(..., groups=)`). The share of a group's sequences with
A > 0 is that of its correct answers where an answer is right or wrong: `hard` up to a third, `easy` from two thirds on.
A group whose advantages are all 0 has a covariance of 0 and no difficulty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from isentrope.statistics.sums import Covariance, device_constant
from isentrope.statistics.tokens import StepTokens, TokenBatch
from isentrope_wire.metrics import ADVANTAGE_ZERO_GROUP_FRACTION, COVARIANCE_GROUP, GROUP_COUNT

TOP_SHARES = {
    "covariance/top_0_02": 0.0002,
    "covariance/top_0_2": 0.002,
    "covariance/top_2": 0.02,
    "covariance/top_20": 0.2,
    "covariance/top_50": 0.5,
    "covariance/top_100": 1.0,
}
"""Metric names, the share in per cent, and the share of the step's tokens."""


def top_means(tokens: StepTokens) -> Tensor:
    """Minus the mean of the largest c_t, by TOP_SHARES; nats times the advantage's unit, float64, on the device.

    A share is rounded to whole tokens, but at least one. Without a token what it says is of no use.
    """
    rising = _sorted(tokens.behind_all - tokens.covariances)
    wanted = (tokens.count * _shares(rising.device) + 0.5).long().clamp(min=1)
    # Gathered: an index read from the device would wait for it.
    return rising.cumsum(0).gather(0, wanted - 1) / wanted


def _sorted(values: Tensor) -> Tensor:
    """Rising. On the CPU by keys of whole numbers, which torch sorts five times as fast as floating point."""
    if values.device.type != "cpu":
        return values.sort().values
    bits = values.view(torch.int64)
    # The order of the bits is that of the numbers; of negative ones, whose highest bit is the sign, it is turned round.
    keys = bits ^ ((bits >> 63) & torch.iinfo(torch.int64).max)
    return values.gather(0, keys.sort().indices)


@cache
def _shares(device: torch.device) -> Tensor:
    return device_constant(tuple(TOP_SHARES.values()), device)


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

SKETCH_NUMBERS = _BINS * _SUMS
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


MOST_GROUPS = 256
"""That a rank tells of in a step; of more, it tells of those with the lowest ids."""

HARD_UP_TO, EASY_FROM = 1 / 3, 2 / 3
"""Share of a group's sequences with A > 0."""

_ADVANTAGE_ROUND_OFF = 1e-6
"""What is left of an advantage of 0 after a loop's own arithmetic."""

_FIELDS = 7
"""Of each group: id, sequences, sums of log-prob, of A and of their product, sequences with A > 0 and with A < 0."""

GROUP_NUMBERS = 1 + MOST_GROUPS * _FIELDS
"""Length of the vector of `measure_groups`."""


@dataclass(slots=True)
class _Group:
    sequences: float = 0.0
    logprob: float = 0.0
    advantage: float = 0.0
    product: float = 0.0
    positive: float = 0.0
    negative: float = 0.0

    def add(self, sums: Sequence[float]) -> None:
        for name, value in zip(self.__slots__, sums, strict=True):
            setattr(self, name, getattr(self, name) + value)

    @property
    def covariance(self) -> float:
        return (self.product - self.logprob * self.advantage / self.sequences) / self.sequences

    @property
    def difficulty(self) -> str | None:
        if not self.positive and not self.negative:
            return None
        share = self.positive / self.sequences
        # Ten of thirty are a third, whatever their quotient in floating point.
        return "hard" if share <= HARD_UP_TO + 1e-9 else "easy" if share >= EASY_FROM - 1e-9 else "middle"


def measure_groups(tokens: StepTokens, batches: Sequence[TokenBatch]) -> Tensor:
    """This rank's groups as one float64 vector: how many there are, then `_FIELDS` of each; on the device.

    Sequences of `gate` calls whose groups are not known, and sequences without a valid token, are in no group.
    """
    columns, first = [], 0
    for batch in batches:
        last = first + batch.mask.numel()
        if batch.group_ids is not None and batch.mask.numel():
            columns.append(_sequences(tokens, slice(first, last), batch.mask, batch.group_ids))
        first = last
    if not columns:
        return tokens.values.new_zeros(GROUP_NUMBERS)
    return _by_group(columns[0] if len(columns) == 1 else torch.cat(columns, dim=1))


def group_scalars(ranks: Sequence[Sequence[float]]) -> dict[str, float]:
    """What all ranks say of the groups together; nothing where no group of two sequences is known.

    Args:
        ranks: the vectors of `measure_groups`. A group may lie on several ranks. Where a rank had more groups than it
            tells of, those with higher ids than its last are left out on all, for no group may be counted in part. (Of
            ids from 0 on, that is: a group named by its size lies on one rank.)
    """
    groups: dict[float, _Group] = {}
    highest = float("inf")
    for numbers in ranks:
        told = min(int(numbers[0]), MOST_GROUPS)
        rows = [numbers[1 + _FIELDS * row : 1 + _FIELDS * (row + 1)] for row in range(told)]
        for group_id, *sums in rows:
            groups.setdefault(group_id, _Group()).add(sums)
        if numbers[0] > MOST_GROUPS:
            highest = min(highest, rows[-1][0])
    # An id below 0 stands for rows that follow each other: such a group lies on one rank, which tells of it in full.
    several = [group for one, group in groups.items() if (one < 0 or one <= highest) and group.sequences > 1]
    if not several:
        return {}
    flat = sum(group.difficulty is None for group in several)
    scalars: dict[str, float] = {
        GROUP_COUNT: float(len(several)),
        COVARIANCE_GROUP: sum(group.covariance for group in several) / len(several),
        ADVANTAGE_ZERO_GROUP_FRACTION: flat / len(several),
    }
    for difficulty in ("easy", "middle", "hard"):
        covariances = [group.covariance for group in several if group.difficulty == difficulty]
        scalars[f"group/{difficulty}_fraction"] = len(covariances) / len(several)
        if covariances:
            scalars[f"covariance/group_{difficulty}"] = sum(covariances) / len(covariances)
    return scalars


def _sequences(tokens: StepTokens, place: slice, mask: Tensor, group_ids: Tensor) -> Tensor:
    """[_FIELDS, sequences]: of each its group, whether it counts, its log-prob, A, their product, and the sign of A."""
    length, *sums = (values[place].reshape(mask.shape).sum(1) for values in (tokens.ones, tokens["log p"], tokens["A"]))
    logprob, advantage = torch.stack(sums) / length.clamp(min=1)
    return torch.stack(
        [
            group_ids,
            length > 0,
            logprob,
            advantage,
            logprob * advantage,
            advantage > _ADVANTAGE_ROUND_OFF,
            advantage < -_ADVANTAGE_ROUND_OFF,
        ]
    )


def _by_group(sequences: Tensor) -> Tensor:
    """The vector of `measure_groups`, with the shapes known beforehand: how many groups there are is on the device."""
    # The group of a sequence that does not count is of no interest: it comes last, and adds nothing.
    sequences = torch.where(sequences[1] > 0, sequences, torch.inf)
    sequences = sequences.index_select(1, sequences[0].argsort(stable=True))
    counts = sequences[0].isfinite()
    begins = counts.clone()
    begins[1:] &= sequences[0, 1:] != sequences[0, :-1]
    rows = (begins.cumsum(0) - 1).clamp(0, MOST_GROUPS)
    sums = torch.where(counts, sequences, 0.0)
    sums[0].mul_(begins)
    table = sums.new_zeros(MOST_GROUPS + 1, _FIELDS).index_add_(0, rows, sums.T)
    return torch.cat([begins.sum().reshape(1), table[:MOST_GROUPS].reshape(-1)])
