"""The sigmas and the centre that thresholds are counted from, out of sums that merge exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from isentrope.plain_state import Plain, plain
from isentrope.scores import TokenScores
from isentrope.statistics.moments import device_moments
from isentrope.statistics.token_ledger import flat

SUMS = 6
"""How many numbers a part adds: count, mean and sum of squared deviations of S*, then the same of S_c."""


@dataclass(frozen=True, slots=True)
class ThresholdStatistics:
    """Over all valid tokens of a batch, both signs of the advantage; float64 scalars that stay on the device.

    Without a valid token both deviations are NaN, and no token lies outside a threshold counted from NaN.
    """

    count: Tensor
    """Of valid tokens."""
    discriminator_mean: Tensor
    """mean_B(S*) in nats."""
    discriminator_std: Tensor
    """sigma of Clip_B: population standard deviation of S*."""
    vocab_centered_std: Tensor
    """sigma' of Clip_V: population standard deviation of S_c."""

    @classmethod
    def of_sums(cls, parts: Tensor) -> ThresholdStatistics:
        """Merge the sums of micro-batches or ranks. The same parts in the same order give the same bits everywhere.

        Args:
            parts: [parts, SUMS], float64.
        """
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

    def to_plain(self) -> Plain:
        """As a checkpoint takes it, in the order of the fields. Waits for the device."""
        return plain(torch.stack([getattr(self, field.name).double() for field in fields(self)]).tolist())

    @classmethod
    def of_plain(cls, numbers: Sequence[float | str]) -> ThresholdStatistics:
        """What `to_plain` gave, on the CPU: scalars from there join with tensors of any device."""
        return cls(*(torch.tensor(float(number), dtype=torch.float64) for number in numbers))

    def or_else(self, earlier: ThresholdStatistics | None) -> ThresholdStatistics:
        """These, or the earlier ones where these are of no token. Decided on the device."""
        if earlier is None:
            return self
        counted = self.count > 0
        return ThresholdStatistics(
            *(
                torch.where(counted, getattr(self, field.name), getattr(earlier, field.name).to(counted.device))
                for field in fields(self)
            )
        )


def threshold_sums(scores: Sequence[TokenScores], masks: Sequence[Tensor]) -> Tensor:
    """The sums of micro-batches taken together, [SUMS], float64, on the device.

    Args:
        scores: one per micro-batch, at least one.
        masks: bool, True where the token counts; of the scores' shapes. Tokens whose scores are not finite are left out.
    """
    discriminator = flat([part.discriminator_scores.detach() for part in scores]).double()
    centred = flat([part.vocab_centered_scores.detach() for part in scores]).double()
    valid = flat(list(masks)) & (discriminator + centred).isfinite()
    sums = (*device_moments(discriminator, valid), *device_moments(centred, valid))
    return torch.stack([number.double() for number in sums])


def no_threshold_sums(device: torch.device | None) -> Tensor:
    """The sums of a rank without tokens."""
    return torch.zeros(SUMS, dtype=torch.float64, device=device)


def threshold_statistics(scores: Sequence[TokenScores], masks: Sequence[Tensor]) -> ThresholdStatistics:
    """What `threshold_sums` of the same arguments says."""
    return ThresholdStatistics.of_sums(threshold_sums(scores, masks).unsqueeze(0))
