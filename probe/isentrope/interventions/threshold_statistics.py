"""The sigmas and the centre that thresholds are counted from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isentrope.scores import TokenScores


@dataclass(frozen=True, slots=True)
class ThresholdStatistics:
    """Over all valid tokens of a batch, both signs of the advantage; scalars that stay on the device.

    Without a valid token all are NaN, and no token lies outside a threshold counted from NaN.
    """

    discriminator_mean: Tensor
    """mean_B(S*) in nats."""
    discriminator_std: Tensor
    """sigma of Clip_B: population standard deviation of S*."""
    vocab_centered_std: Tensor
    """sigma' of Clip_V: population standard deviation of S_c."""


def threshold_statistics(scores: list[TokenScores], masks: list[Tensor]) -> ThresholdStatistics:
    """Statistics over micro-batches taken together.

    Args:
        scores: one per micro-batch.
        masks: bool, True where the token counts; of the scores' shapes. Tokens whose scores are not finite are left out.
    """
    discriminator = torch.cat([part.discriminator_scores.detach().reshape(-1) for part in scores]).double()
    centred = torch.cat([part.vocab_centered_scores.detach().reshape(-1) for part in scores]).double()
    valid = torch.cat([mask.reshape(-1) for mask in masks]) & (discriminator + centred).isfinite()
    mean, std = _mean_and_std(discriminator, valid)
    return ThresholdStatistics(mean, std, _mean_and_std(centred, valid)[1])


def _mean_and_std(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    count = valid.sum()
    mean = torch.where(valid, values, 0.0).sum() / count
    return mean, (torch.where(valid, values - mean, 0.0).square().sum() / count).sqrt()
