"""The covariance of a sequence's log-prob and its advantage, within each group, by how hard the group was.

    Cov over y in the group of (log pi(y|x) / |y|, A(y, x))                        arXiv:2505.22617, eq. 8, 9, Figure 8

log pi(y|x) / |y| is the mean log p of the sequence's tokens, the length-normalised log-prob, in nats. A group are the
rollouts of one prompt; which they are the loop says (`Probe.gate(..., groups=)`). The share of a group's sequences with
A > 0 is that of its correct answers where an answer is right or wrong: `hard` up to a third, `easy` from two thirds on.
A group whose advantages are all 0 has a covariance of 0 and no difficulty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.statistics.step_tokens import StepTokens
from isentrope.statistics.token_ledger import TokenBatch
from isentrope_wire.metrics import ADVANTAGE_ZERO_GROUP_FRACTION, COVARIANCE_GROUP, GROUP_COUNT

MOST_GROUPS = 256
"""That a rank tells of in a step; of more, it tells of those with the lowest ids."""

HARD_UP_TO, EASY_FROM = 1 / 3, 2 / 3
"""Share of a group's sequences with A > 0."""

_ADVANTAGE_ROUND_OFF = 1e-6
"""What is left of an advantage of 0 after a loop's own arithmetic."""

_FIELDS = 7
"""Of each group: id, sequences, sums of log-prob, of A and of their product, sequences with A > 0 and with A < 0."""

NUMBERS = 1 + MOST_GROUPS * _FIELDS
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
        return tokens.values.new_zeros(NUMBERS)
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
