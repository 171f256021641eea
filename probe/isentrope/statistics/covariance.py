"""How log p and advantage move together: over the step's tokens, in its most covariant ones, and
within groups.

    c_t = (log p_t - mean(log p)) (A_t - mean(A))   arXiv:2505.22617, eq. 10; top shares: Table 1

The means are those of the whole step, which no rank of several knows before the numbers are
gathered. So each rank adds its tokens to bins by c_t about the means of the step before (one rank
alone: about its own), and each bin keeps the sums from which its sum of c_t about any other means
    follows:

    sum (log p - m)(A - a) = sum A log p - a sum log p - m sum A + n m a

Sums of whole bins are exact. The bin in which a share ends contributes its own mean for the part
that belongs to the share, and a bin's values differ by a factor of BIN_RATIO at most; so the mean
of a share is off by less than BIN_RATIO - 1 = 9 %, and of shares of many tokens by less than 1 %.
With several ranks that holds while the means move little from step to step: in the first step the
bins lie about each rank's own.

Within groups it is the covariance of whole sequences, by how hard the group was:

    Cov over y in the group of (log pi(y|x) / |y|, A(y, x))   arXiv:2505.22617, eq. 8, 9

log pi(y|x) / |y| is the mean log p of the sequence's tokens, the length-normalised log-prob, in
nats. A group is the rollouts of one prompt, named by the loop (`Probe.gate(..., groups=)`). The
share of a group's sequences with A > 0 is that of its correct answers where an answer is right or
wrong: `hard` up to a third, `easy` from two thirds on. A group whose advantages are all 0 has no
difficulty and is not averaged, as in the paper, which filters such groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from isentrope.statistics.histogram import LogBins
from isentrope.statistics.moments import Covariance, finite, zeros
from isentrope.statistics.sums import Metrics, StepSums, Sum, covariance
from isentrope.statistics.tokens import StepTokens, TokenBatch
from isentrope_wire import metrics

if TYPE_CHECKING:
    from jaxtyping import Float64

ADVANTAGE_LOGPROB = covariance(
    "A", "log p", lambda value, step: {metrics.COVARIANCE_ADVANTAGE_LOGPROB: value.value}
)
"""Covariance of A and log p over tokens; its means are the centre that the next step's covariances
are counted about."""

ADVANTAGE_SCORE = covariance(
    "A", "r S_c", lambda value, step: {metrics.COVARIANCE_ADVANTAGE_SCORE: value.value}
)

ADVANTAGE_DISCRIMINATOR = covariance(
    "A",
    "S*",
    lambda value, step: {
        metrics.COVARIANCE_ADVANTAGE_DISCRIMINATOR: value.value + value.mean_left * value.mean_right
    },
)
"""Covariance of A and S*. mean(A S*) is what Cov(log pi, pi A) over the vocabulary is on average
over the sampled tokens (arXiv:2505.22617, Theorem 1): E_p[A p (log p - E_p[log p])], and log p -
E_p[log p] = H + log p."""

_BY_SIZE = LogBins(lowest_octave=-14, highest_octave=18)
"""Of |c_t| in nats times the advantage's unit."""
_BINS = _BY_SIZE.count
_SUMS = 4
"""Sums of each bin: tokens, log p, A, A log p."""


def covariance_bins(tokens: StepTokens) -> Tensor:
    """Each of the four sums of all bins, one sum after the other."""
    logprobs, advantages = tokens["log p"], tokens["A"]
    bins = _BY_SIZE.places(tokens.covariances)
    # A token that is not valid has 0 in every row.
    columns = torch.stack([tokens.ones, logprobs, advantages, logprobs * advantages])
    sums = columns.new_zeros(_SUMS, _BINS).scatter_add_(1, bins.expand_as(columns), columns)
    return sums.reshape(-1)


def means_from_bins(sums: Sequence[float], covariance: Covariance) -> tuple[float, ...]:
    """Means of the largest c_t, by COVARIANCE_TOP, from the `covariance_bins` of all ranks, added
    up, and the covariance of A and log p over the same tokens; empty without tokens."""
    counts, logprobs, advantages, products = (
        sums[row * _BINS : (row + 1) * _BINS] for row in range(_SUMS)
    )
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
        return ()
    return tuple(
        _top_mean(bins, max(1, math.floor(tokens * share + 0.5)))
        for share in metrics.COVARIANCE_TOP.values()
    )


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


COVARIANCE_BINS = Sum[Sequence[float]](
    size=_BINS * _SUMS,
    measure=covariance_bins,
    read=lambda numbers, _: numbers,
    merge=None,
    metrics=lambda sums, step: dict(
        zip(metrics.COVARIANCE_TOP, means_from_bins(sums, step[ADVANTAGE_LOGPROB]), strict=False)
    ),
)


MOST_GROUPS = 256
"""That a rank reports of a step; of more, it reports those with the lowest ids."""

HARD_UP_TO, EASY_FROM = 1 / 3, 2 / 3
"""Share of a group's sequences with A > 0."""

_ID_ROUND_OFF = 1e-12
_REWARD_ROUND_OFF = 1e-9
_ADVANTAGE_ROUND_OFF = 1e-6
"""An advantage of 0 may come out this large of a loop's own arithmetic."""


class Group(NamedTuple):
    """Sums over the sequences of a group."""

    sequences: float
    logprob: float
    advantage: float
    product: float
    """Mean product of log-prob and advantage."""
    positive: float
    negative: float
    ids: float
    id_squares: float
    """Of one number that the token ids of a sequence make, and of its square."""
    rewarded: float
    """Sequences whose reward is known; the sums of rewards are theirs."""
    reward: float
    reward_square: float
    reward_length: float
    length: float
    length_square: float

    @property
    def has_rewards(self) -> bool:
        """Whether the rewards of all its sequences are known and finite."""
        return self.rewarded == self.sequences and math.isfinite(self.reward_square)

    @property
    def reward_variance(self) -> float:
        """0 where all have one reward."""
        square = self.reward_square / self.sequences
        variance = square - (self.reward / self.sequences) ** 2
        if variance <= _REWARD_ROUND_OFF * max(1.0, square):
            return 0.0
        return variance

    @property
    def length_variance(self) -> float:
        return self.length_square / self.sequences - (self.length / self.sequences) ** 2

    @property
    def reward_length_covariance(self) -> float:
        return (self.reward_length - self.reward * self.length / self.sequences) / self.sequences

    @property
    def is_identical(self) -> bool:
        """Whether all sequences have the same tokens."""
        scatter = self.id_squares / self.sequences - (self.ids / self.sequences) ** 2
        return abs(scatter) <= _ID_ROUND_OFF * max(1.0, self.id_squares / self.sequences)

    @property
    def covariance(self) -> float:
        return (self.product - self.logprob * self.advantage / self.sequences) / self.sequences

    @property
    def difficulty(self) -> metrics.Metric | None:
        """The metric that its covariance counts in."""
        if not self.positive and not self.negative:
            return None
        share = self.positive / self.sequences
        # Ten of thirty are a third, whatever their quotient in floating point.
        if share <= HARD_UP_TO + 1e-9:
            return metrics.COVARIANCE_GROUP_HARD
        if share >= EASY_FROM - 1e-9:
            return metrics.COVARIANCE_GROUP_EASY
        return metrics.COVARIANCE_GROUP_MIDDLE


_FIELDS = 1 + len(Group._fields)
"""Fields of each group in the vector: its id, then its sums."""


class Groups(NamedTuple):
    """The groups of a step."""

    of_id: dict[float, Group]
    highest: float = math.inf
    """The largest id that every rank reports."""

    def merge(self, other: Groups) -> Groups:
        merged = dict(self.of_id)
        for group_id, group in other.of_id.items():
            before = merged.get(group_id)
            if before is None:
                merged[group_id] = group
            else:
                merged[group_id] = Group(*map(add, before, group))
        return Groups(merged, min(self.highest, other.highest))

    @property
    def complete_groups(self) -> list[Group]:
        """The groups of two sequences and more that are known in full."""
        # An id below 0 stands for rows that follow each other: such a group lies on one rank, which
        # reports all of it.
        return [
            group
            for group_id, group in self.of_id.items()
            if (group_id < 0 or group_id <= self.highest) and group.sequences > 1
        ]


def groups(most: int) -> Sum[Groups]:
    """The groups of a step; a group may lie on several ranks.

    Sequences of `gate` calls whose groups are not known, and sequences without a valid token, are
    in no group. Where a rank has more groups than it reports, those with higher ids than its last
    are dropped on all ranks, for no group may be counted in part. (Of ids from 0 on, that is: a
    group named by its size lies on one rank.)"""

    def measure(tokens: StepTokens) -> Tensor:
        columns, first = [], 0
        for batch in tokens.batches:
            last = first + batch.mask.numel()
            if batch.group_ids is not None and batch.mask.numel():
                columns.append(_sequences(tokens, slice(first, last), batch, batch.group_ids))
            first = last
        if not columns:
            return zeros(1 + most * _FIELDS, tokens.ones.device)
        return _sum_groups(columns[0] if len(columns) == 1 else torch.cat(columns, dim=1), most)

    def read(numbers: Sequence[float], rank: int) -> Groups:
        found, *rest = numbers
        rows = [rest[row * _FIELDS :][:_FIELDS] for row in range(min(int(found), most))]
        of_id = {group_id: Group(*sums) for group_id, *sums in rows}
        return Groups(of_id, rows[-1][0] if found > most else math.inf)

    return Sum(
        size=1 + most * _FIELDS,
        measure=measure,
        read=read,
        merge=Groups.merge,
        metrics=_group_metrics,
    )


def _group_metrics(found: Groups, step: StepSums) -> Metrics:
    """Over the groups of two sequences and more; nothing where there is none."""
    several = found.complete_groups
    if not several:
        return {}
    varied = [group.covariance for group in several if group.difficulty is not None]
    scalars: dict[str, float] = {
        metrics.GROUP_COUNT: float(len(several)),
        metrics.ADVANTAGE_ZERO_GROUP_FRACTION: 1 - len(varied) / len(several),
        metrics.GROUP_IDENTICAL: sum(group.is_identical for group in several) / len(several),
    }
    if varied:
        scalars[metrics.COVARIANCE_GROUP] = sum(varied) / len(varied)
    for difficulty in (
        metrics.COVARIANCE_GROUP_EASY,
        metrics.COVARIANCE_GROUP_MIDDLE,
        metrics.COVARIANCE_GROUP_HARD,
    ):
        covariances = [group.covariance for group in several if group.difficulty == difficulty]
        if covariances:
            scalars[difficulty] = sum(covariances) / len(covariances)
    return scalars | _reward_metrics([group for group in several if group.has_rewards])


def _reward_metrics(several: Sequence[Group]) -> dict[str, float]:
    """What the rewards within groups say: their spread, whether they follow the length, and which
    groups have one reward, the highest or the lowest that there is."""
    if not several:
        return {}
    variances = [group.reward_variance for group in several]
    means = [group.reward / group.sequences for group in several]
    lowest, highest = 0.0, max(1.0, *means)
    if highest > 1 or min(means) < 0:
        lowest, highest = min(0.0, *means), max(means)
    alike = [mean for mean, variance in zip(means, variances, strict=True) if not variance]
    slack = _REWARD_ROUND_OFF + 1e-6 * (highest - lowest)
    scalars: dict[str, float] = {
        metrics.REWARD_GROUP_STD: sum(map(math.sqrt, variances)) / len(several),
        metrics.GROUP_ALL_RIGHT: sum(mean >= highest - slack for mean in alike) / len(several),
        metrics.GROUP_ALL_WRONG: sum(mean <= lowest + slack for mean in alike) / len(several),
    }
    spread = sum(variances) * sum(group.length_variance for group in several)
    if spread > 0:
        together = sum(group.reward_length_covariance for group in several)
        scalars[metrics.COMPLETION_REWARD_OF_LENGTH] = together / math.sqrt(spread)
    return scalars


GROUPS = groups(MOST_GROUPS)


def _sequences(tokens: StepTokens, place: slice, batch: TokenBatch, group_ids: Tensor) -> Tensor:
    """One column for each sequence of a micro-batch: its group, then what it adds to the fields of
    `Group`."""
    length, *sums = (batch.sequence_sums(tokens[name][place]) for name in ("valid", "log p", "A"))
    logprob, advantage = torch.stack(sums) / length.clamp(min=1)
    # Without ids the log-probs tell sequences apart.
    ids = logprob
    if batch.token_ids is not None:
        # Sines of ids have no common measure: other tokens make another sum.
        ids = batch.sequence_sums(
            torch.sin(batch.token_ids.reshape(-1).double() + 1) * tokens["valid"][place]
        )
    return torch.stack(
        [
            group_ids,
            (length > 0).double(),
            logprob,
            advantage,
            logprob * advantage,
            (advantage > _ADVANTAGE_ROUND_OFF).double(),
            (advantage < -_ADVANTAGE_ROUND_OFF).double(),
            ids,
            ids * ids,
            *_rewards(batch, length),
        ]
    )


def _rewards(batch: TokenBatch, length: Tensor) -> list[Tensor]:
    """What each sequence adds to the sums of rewards and lengths, 0 without a reward."""
    reward = batch.completions.get("reward")
    if reward is None:
        reward, has_reward = torch.zeros_like(length), torch.zeros_like(length)
    else:
        reward, has_reward = reward.double(), torch.ones_like(length)
    return [has_reward, reward, reward * reward, reward * length, length, length * length]


def _sum_groups(
    sequences: Float64[Tensor, "fields sequences"], most: int
) -> Float64[Tensor, " numbers"]:
    """How many groups there are, then `_FIELDS` numbers of each, in the order of their ids. The
    shapes are known beforehand; the number of groups stays on the device."""
    # A sequence that does not count comes last, whatever its group, and adds nothing.
    sequences = torch.where(sequences[1] > 0, sequences, torch.inf)
    sequences = sequences.index_select(1, sequences[0].argsort(stable=True))
    counts = finite(sequences[0])
    begins = counts.clone()
    begins[1:] &= sequences[0, 1:] != sequences[0, :-1]
    rows = (begins.cumsum(0) - 1).clamp(0, most)
    sums = torch.where(counts, sequences, 0.0)
    sums[0].mul_(begins)
    table = sums.new_zeros(most + 1, _FIELDS).index_add_(0, rows, sums.T)
    return torch.cat([begins.sum(dtype=torch.float64).reshape(1), table[:most].reshape(-1)])
