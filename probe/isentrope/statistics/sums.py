"""Declared sums: one declaration states how a statistic of a step is measured, merged over the
ranks and read, and which metrics come of it. A new statistic is a declaration in `step.py`, named
in the list at its end:

    SURPRISE = total(
        lambda tokens: -tokens["log p"].sum(),
        metrics=lambda surprise, step: {TOKEN_SURPRISE: surprise / step.tokens},
    )

A `Layout` packs the numbers of several sums into one float64 vector on the device, the only thing a
rank sends of its step, and reads the vectors of all ranks. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from isentrope.statistics.moments import Covariance, Moments, device_number, zeros
from isentrope.statistics.tokens import StepTokens
from isentrope_wire.metrics import TOKEN_GRADIENT_NOT_FINITE
from isentrope_wire.reports import ADVANTAGES, LOSS_GRADIENT

T_co = TypeVar("T_co", covariant=True)

Metrics = Mapping[str, float]


def no_metrics(value: object, step: StepSums) -> Metrics:
    return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Sum(Generic[T_co]):
    """One statistic of a step. It is its own key: `step[ENTROPIES].mean`."""

    size: int
    """How many numbers it takes in the vector. Those of a rank without tokens are zeros."""
    measure: Callable[[StepTokens], Tensor | Iterable[Tensor]]
    """Its numbers on the device, float64: a scalar, a vector, or several of them in order."""
    read: Callable[[Sequence[float], int], T_co]
    """Its value on the host, from its numbers and the rank they are of."""
    merge: Callable[[T_co, T_co], T_co] | None
    """Joins the values of two ranks, called in the ranks' order. None: the numbers add up on the
    device, and `read` is given their sum (and rank 0)."""
    metrics: Callable[[T_co, StepSums], Metrics] = no_metrics
    """The metrics that come of its value in a step with at least one token, by name."""


class StepSums:
    """The values of the sums of one step, over whichever ranks took part."""

    def __init__(self, values: Mapping[Sum[Any], Any], ranks: int = 1) -> None:
        """`ranks`: whose gradients the update averaged, those without tokens included."""
        self._values, self._ranks = values, ranks

    def __getitem__(self, statistic: Sum[T_co]) -> T_co:
        value: T_co = self._values[statistic]
        return value

    def __contains__(self, statistic: Sum[Any]) -> bool:
        return statistic in self._values

    @property
    def tokens(self) -> int:
        """How many tokens count: the mask names them and all their numbers are finite."""
        return self[TOKENS]

    @property
    def basis(self) -> str | None:
        """ADVANTAGES or LOSS_GRADIENT: what the changes were measured by. None: it differs between
        ranks, or a gradient is not finite, so that the update is skipped or the run lost."""
        if self[NOT_FINITE_GRADIENTS]:
            return None
        read = self[READ]
        if not read:
            return ADVANTAGES
        if read == self.tokens:
            return LOSS_GRADIENT
        return None

    @property
    def scale(self) -> float:
        """Factor that makes a token's change its part of a mean over tokens: a gradient carries the
        loss's own mean."""
        if self.basis == LOSS_GRADIENT:
            return self.tokens / self._ranks
        return 1.0

    def change(self, total: float) -> float:
        """The mean change that a sum over tokens stands for, in nats per unit of gain."""
        return total * self.scale / self.tokens

    def metrics(self) -> dict[str, float]:
        """Metrics of all sums; at least one token must count."""
        metrics: dict[str, float] = {}
        for statistic, value in self._values.items():
            metrics |= statistic.metrics(value, self)
        return metrics


class RankHeader(NamedTuple):
    """What a rank's vector begins with, before the sums."""

    step: float
    took_part: float
    """0: measuring failed, and all sums are zeros."""
    failures: float
    """Inside the probe so far."""
    gate_calls: float


class Layout:
    """Where the numbers of each sum are in a rank's vector: the header, the sums that are merged,
    those that add up."""

    def __init__(self, *sums: Sum[Any]) -> None:
        every = (TOKENS, READ, NOT_FINITE_GRADIENTS, *sums)
        merged = [statistic for statistic in every if statistic.merge is not None]
        self.sums = [*merged, *(statistic for statistic in every if statistic.merge is None)]
        self.size = len(RankHeader._fields)
        self.place: dict[Sum[Any], slice] = {}
        for statistic in self.sums:
            self.place[statistic] = slice(self.size, self.size + statistic.size)
            self.size += statistic.size
        self.additive_from = self.place[merged[-1]].stop
        """From this column on the vectors of ranks may be added up."""

    def pack(
        self, header: RankHeader, tokens: StepTokens | None, device: torch.device | None
    ) -> Tensor:
        """A rank's vector, float64, on the device; without tokens all sums are 0."""
        # Filled on the device; copying Python numbers there would wait for it.
        if device is None:
            device = torch.device("cpu")
        step, *others = header
        parts = [torch.full((), step, dtype=torch.float64, device=device)]
        parts += [device_number(number, device) for number in others]
        if tokens is None:
            parts.append(zeros(self.size - len(header), device))
        else:
            for statistic in self.sums:
                measured = statistic.measure(tokens)
                if isinstance(measured, Tensor):
                    parts += [measured]
                else:
                    parts += measured
        vector = torch.hstack(parts)
        assert len(vector) == self.size, "a sum measures as many numbers as it declares"
        return vector

    def read(
        self, rows: Mapping[int, Sequence[float]], added: Sequence[float], ranks: int = 1
    ) -> StepSums:
        """The sums of a step: from the vector of each rank that gated something up to
        `additive_from`, the rest of all vectors added up, and how many ranks took part in the
        update."""

        values: dict[Sum[Any], Any] = {}
        for statistic in self.sums:
            place = self.place[statistic]
            if statistic.merge is None:
                start = place.start - self.additive_from
                values[statistic] = statistic.read(added[start : start + statistic.size], 0)
            else:
                of_ranks = [statistic.read(row[place], rank) for rank, row in rows.items()]
                values[statistic] = reduce(statistic.merge, of_ranks)
        return StepSums(values, ranks)

    def columns(self, rows: Tensor, *sums: Sum[Any]) -> Tensor:
        """The numbers of some sums on each rank, still on the device."""
        return torch.cat([rows[:, self.place[statistic]] for statistic in sums], dim=1)


def total(
    measure: Callable[[StepTokens], Tensor],
    metrics: Callable[[float, StepSums], Metrics] = no_metrics,
) -> Sum[float]:
    """A number that adds up over the ranks."""
    return Sum(
        size=1, measure=measure, read=lambda numbers, _: numbers[0], merge=add, metrics=metrics
    )


def count(
    measure: Callable[[StepTokens], Tensor],
    metrics: Callable[[int, StepSums], Metrics] = no_metrics,
) -> Sum[int]:
    """A whole number that adds up over the ranks."""
    return Sum(
        size=1, measure=measure, read=lambda numbers, _: int(numbers[0]), merge=add, metrics=metrics
    )


def totals(
    kind: Callable[..., T_co],
    size: int,
    measure: Callable[[StepTokens], Tensor | Iterable[Tensor]],
    metrics: Callable[[T_co, StepSums], Metrics] = no_metrics,
) -> Sum[T_co]:
    """`size` numbers that add up over the ranks, passed to `kind`."""
    return Sum(
        size=size,
        measure=measure,
        read=lambda numbers, _: kind(*numbers),
        merge=None,
        metrics=metrics,
    )


def mean_of(
    measure: Callable[[StepTokens], Tensor | None],
    metrics: Callable[[float], Metrics] = lambda mean: {},
) -> Sum[float | None]:
    """A mean over all ranks of what `measure` gives as sum and weight; None where no rank has
    it."""

    def measure_or_zeros(tokens: StepTokens) -> Sequence[Tensor]:
        measured = measure(tokens)
        if measured is None:
            return tokens.none, tokens.none
        return measured.unbind()

    return totals(
        lambda total, weight: total / weight if weight else None,
        2,
        measure_or_zeros,
        lambda mean, step: {} if mean is None else metrics(mean),
    )


def largest(
    measure: Callable[[StepTokens], Tensor],
    metrics: Callable[[float, StepSums], Metrics] = no_metrics,
) -> Sum[float]:
    """Maximum over tokens of a value that is never negative."""
    return Sum(
        size=1,
        measure=measure,
        read=lambda numbers, _: max(numbers[0], 0.0),
        merge=max,
        metrics=metrics,
    )


def moments(
    measure: Callable[[StepTokens], tuple[Tensor, Tensor, Tensor]],
    metrics: Callable[[Moments, StepSums], Metrics] = no_metrics,
) -> Sum[Moments]:
    """Count, mean and sum of squared deviations of some of the tokens' values."""
    return Sum(
        size=3,
        measure=measure,
        read=lambda numbers, _: Moments(int(numbers[0]), numbers[1], numbers[2]),
        merge=Moments.merge,
        metrics=metrics,
    )


def covariance(
    left: str, right: str, metrics: Callable[[Covariance, StepSums], Metrics] = no_metrics
) -> Sum[Covariance]:
    """Count, both means and the sum of products of two rows of `StepTokens`."""
    return Sum(
        size=4,
        measure=lambda tokens: (
            tokens.count,
            tokens.mean(left),
            tokens.mean(right),
            tokens.product_sum(left, right),
        ),
        read=lambda numbers, _: Covariance(int(numbers[0]), *numbers[1:]),
        merge=Covariance.merge,
        metrics=metrics,
    )


TOKENS = count(lambda tokens: tokens.count)
READ = count(lambda tokens: tokens.count if tokens.basis == LOSS_GRADIENT else tokens.none)


def not_finite_gradients(tokens: int) -> dict[str, float]:
    """The metric of so many tokens; none without one."""
    if tokens:
        return {TOKEN_GRADIENT_NOT_FINITE: float(tokens)}
    return {}


NOT_FINITE_GRADIENTS = count(
    lambda tokens: tokens.gradient_not_finite, lambda value, step: not_finite_gradients(value)
)
"""All tokens, those of ranks on which the loss's gradient was read, and those whose gradient is not
finite. Every layout has them."""
