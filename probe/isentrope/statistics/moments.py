"""Count, mean and spread of a stream: values that merge exactly on the host, and the same computed
on the device.

`ThresholdStatistics` is what thresholds are counted from; it stays on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.scores import TokenScores
from isentrope_wire.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Bool, Float64, Shaped


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and spread of a stream; `merge` is exact, so ranks and chunks may be joined in
    any order."""

    count: int = 0
    mean: float = 0.0
    sum_squares: float = 0.0
    """Sum of squared deviations from the mean, not of the values."""

    def merge(self, other: Moments) -> Moments:
        count = self.count + other.count
        if count == 0:
            return self
        shift = other.mean - self.mean
        return Moments(
            count,
            self.mean + shift * other.count / count,
            self.sum_squares + other.sum_squares + shift * shift * self.count * other.count / count,
        )

    @property
    def standard_deviation(self) -> float:
        """Population standard deviation; NaN when empty."""
        if self.count:
            return math.sqrt(self.sum_squares / self.count)
        return math.nan

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; NaN with fewer than two values."""
        if self.count > 1:
            return math.sqrt(self.sum_squares / (self.count - 1) / self.count)
        return math.nan


@dataclass(frozen=True, slots=True)
class Covariance:
    """Co-moment of two streams; `merge` is exact."""

    count: int = 0
    mean_left: float = 0.0
    mean_right: float = 0.0
    sum_products: float = 0.0
    """Sum of products of deviations from the means."""

    def merge(self, other: Covariance) -> Covariance:
        count = self.count + other.count
        if count == 0:
            return self
        left, right = other.mean_left - self.mean_left, other.mean_right - self.mean_right
        share = other.count / count
        return Covariance(
            count,
            self.mean_left + left * share,
            self.mean_right + right * share,
            self.sum_products + other.sum_products + left * right * self.count * share,
        )

    @property
    def value(self) -> float:
        """Population covariance; NaN when empty."""
        if self.count:
            return self.sum_products / self.count
        return math.nan


def device_moments(
    values: Float64[Tensor, "*rows tokens"], valid: Bool[Tensor, " tokens"]
) -> tuple[Float64[Tensor, ""], Float64[Tensor, "*rows"], Float64[Tensor, "*rows"]]:
    """Count, mean and sum of squared deviations of the valid values, in each row; zeros where there
    are none. The others may be anything, NaN included."""
    count = valid.sum(dtype=torch.float64)
    mean = torch.where(valid, values, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)
    return count, mean.squeeze(-1), torch.where(valid, values - mean, 0.0).square().sum(-1)


def device_constant(numbers: Sequence[float], device: torch.device) -> Float64[Tensor, " numbers"]:
    """Numbers on the device, from pinned memory, so that the training thread does not wait.

    Call it once for a constant and keep the result.
    """
    numbers_here = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    if device.type == "cuda":
        return numbers_here.pin_memory().to(device, non_blocking=True)
    return numbers_here.to(device)


@lru_cache(256)
def zeros(size: int, device: torch.device) -> Float64[Tensor, " size"]:
    """Zeros for a statistic that was not measured. Cached: must not be changed in place."""
    return torch.zeros(size, dtype=torch.float64, device=device)


@lru_cache(256)
def device_number(number: float, device: torch.device) -> Float64[Tensor, ""]:
    """A number that comes again with every step; kept, and not to be changed in place."""
    return torch.full((), number, dtype=torch.float64, device=device)


def finite(values: Shaped[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """As `isfinite`, in two operations instead of four."""
    return values - values == 0


def flat(parts: Sequence[Shaped[Tensor, ...]]) -> Shaped[Tensor, " all"]:
    """One vector in the order of the parts; a view of the only one."""
    if len(parts) == 1:
        return parts[0].reshape(-1)
    return torch.cat([part.reshape(-1) for part in parts])


THRESHOLD_SUMS = 6
"""How many numbers a part adds: count, mean and sum of squared deviations of S*, then the same of
S_c."""


@dataclass(frozen=True, slots=True)
class ThresholdStatistics:
    """Over all valid tokens of a batch, both signs of the advantage; scalars that stay on the
    device, or one number for each token (`expand_by_token`).

    Without a valid token both deviations are NaN, and no token lies outside a threshold counted
    from NaN."""

    count: Float64[Tensor, ...]
    discriminator_mean: Float64[Tensor, ...]
    """mean_B(S*) in nats."""
    discriminator_std: Float64[Tensor, ...]
    """sigma: population standard deviation of S*."""
    vocab_centered_std: Float64[Tensor, ...]
    """sigma': population standard deviation of S_c."""

    @classmethod
    def merge_sums(cls, parts: Float64[Tensor, "parts 6"]) -> ThresholdStatistics:
        """Merge the sums of micro-batches or ranks, one row each. The same parts in the same order
        give the same bits everywhere."""
        # [parts, score]: of S* and of S_c.
        counts, means, squares = parts.reshape(-1, 2, 3).unbind(dim=-1)
        if len(parts) == 1:
            count, mean, square = counts[0], means[0], squares[0]
        else:
            count = counts.sum(0)
            mean = (counts * means).sum(0) / count
            square = (squares + counts * (means - mean).square()).sum(0)
        deviations = (square / count).sqrt()
        return cls(count[0], mean[0], deviations[0], deviations[1])

    def write_plain(self) -> list[float | str]:
        """As a checkpoint takes it, in the order of the fields. Waits for the device."""
        numbers = torch.stack([values.double() for values in self._tensors()]).tolist()
        return list(map(number, numbers))

    @classmethod
    def read_plain(cls, numbers: Sequence[float | str]) -> ThresholdStatistics:
        """The statistics that `write_plain` wrote, on the CPU: scalars from there join with tensors
        of any device."""
        return cls(
            *(torch.tensor(float(one), dtype=torch.float64, device="cpu") for one in numbers)
        )

    def to(self, like: Tensor) -> ThresholdStatistics:
        """Move them to the device and type of a tensor."""
        return ThresholdStatistics(*(values.to(like) for values in self._tensors()))

    @classmethod
    def expand_by_token(
        cls, parts: Sequence[ThresholdStatistics], sizes: Sequence[int]
    ) -> ThresholdStatistics:
        """One number for each token, from the statistics of micro-batches of these sizes."""
        expanded = [
            [values.expand(size) for values in part._tensors()]
            for part, size in zip(parts, sizes, strict=True)
        ]
        return cls(*map(torch.cat, zip(*expanded, strict=True)))

    def or_else(self, earlier: ThresholdStatistics | None) -> ThresholdStatistics:
        """`self`, or `earlier` if `self` counts no token. Decided on the device."""
        if earlier is None:
            return self
        counted, pairs = self.count > 0, zip(self._tensors(), earlier._tensors(), strict=True)
        return ThresholdStatistics(
            *(torch.where(counted, now, before.to(counted.device)) for now, before in pairs)
        )

    def _tensors(self) -> tuple[Tensor, ...]:
        return self.count, self.discriminator_mean, self.discriminator_std, self.vocab_centered_std


def threshold_sums(
    scores: Sequence[TokenScores], masks: Sequence[Bool[Tensor, ...]]
) -> Float64[Tensor, " 6"]:
    """THRESHOLD_SUMS numbers of micro-batches taken together, on the device. The masks say which
    tokens count; those whose scores are not finite do not."""
    both = [
        flat([getattr(part, name).detach() for part in scores])
        for name in ("discriminator_scores", "vocab_centered_scores")
    ]
    values = torch.stack(both).double()
    count, means, squares = device_moments(values, flat(masks) & finite(values.sum(0)))
    return torch.stack([count.expand(2), means, squares], 1).reshape(-1)


def no_threshold_sums(device: torch.device | None) -> Float64[Tensor, " 6"]:
    """The sums of a rank without tokens."""
    return torch.zeros(THRESHOLD_SUMS, dtype=torch.float64, device=device)


def threshold_statistics(
    scores: Sequence[TokenScores], masks: Sequence[Bool[Tensor, ...]]
) -> ThresholdStatistics:
    """Statistics from the `threshold_sums` of scores."""
    return ThresholdStatistics.merge_sums(threshold_sums(scores, masks).unsqueeze(0))
