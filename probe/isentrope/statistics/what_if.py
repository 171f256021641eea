"""The sums from which `isentrope_wire.what_if` answers for any thresholds, counted on the device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from isentrope.interventions.threshold_statistics import ThresholdStatistics
from isentrope.scores import batch_centered_scores, entropy_contributions
from isentrope.statistics.moments import device_moments
from isentrope.statistics.step_tokens import StepTokens
from isentrope_wire.what_if import CELLS, CHANGING_GROUPS, EDGES, SIDES, BinSums, TokenGroup, WhatIfSums

_CHANGING_CELLS = CHANGING_GROUPS * SIDES * len(EDGES)
WHAT_IF_NUMBERS = 2 + 2 * (CELLS + _CHANGING_CELLS)
"""Length of the vector of `measure_what_if`."""


def measure_what_if(tokens: StepTokens, thresholds: ThresholdStatistics | None) -> Tensor:
    """All sums as one float64 vector [WHAT_IF_NUMBERS], still on the device. Vectors of ranks add up.

    A token lies beyond an edge exactly when Clip_B or Clip_V with that mu, and thresholds counted from these statistics,
    would have left it out. Whether the control in force kept it plays no part.

    Args:
        thresholds: NaN where they are of no token: nothing lies beyond any threshold then. None: counted from these
            tokens.
    """
    statistics = thresholds_of(tokens) if thresholds is None else thresholds
    valid, centred = tokens.valid, tokens.vocab_centered_scores
    changes = entropy_contributions(centred, tokens.advantages, tokens.update_ratios, valid)
    groups = _groups(tokens.advantages, centred)
    batch_centred = batch_centered_scores(tokens.discriminator_scores, statistics.discriminator_mean)
    return torch.cat(
        [
            torch.stack([valid.sum().double(), changes.sum()]),
            *_binned(batch_centred, statistics.discriminator_std, groups, changes, valid),
            *_binned(centred, statistics.vocab_centered_std, groups, changes, valid),
        ]
    )


def thresholds_of(tokens: StepTokens) -> ThresholdStatistics:
    """Counted from the tokens themselves."""
    sums = (
        *device_moments(tokens.discriminator_scores, tokens.valid),
        *device_moments(tokens.vocab_centered_scores, tokens.valid),
    )
    return ThresholdStatistics.of_sums(torch.stack([number.double() for number in sums]).unsqueeze(0))


def nothing_to_ask(device: torch.device | None = None) -> Tensor:
    """The vector of a rank without tokens."""
    return torch.zeros(WHAT_IF_NUMBERS, dtype=torch.float64, device=device)


def read_what_if(numbers: Sequence[float]) -> WhatIfSums | None:
    """The sums in the vector that `measure_what_if` made, once it is on the host; None for a step without tokens."""
    if not numbers[0]:
        return None
    method = CELLS + _CHANGING_CELLS
    return WhatIfSums(
        tokens=int(numbers[0]),
        change_sum=numbers[1],
        clip_b=_read_bins(numbers[2 : 2 + method]),
        clip_v=_read_bins(numbers[2 + method : 2 + 2 * method]),
    )


def _groups(advantages: Tensor, vocab_centered_scores: Tensor) -> Tensor:
    """Each token's TokenGroup, int64."""
    effects = advantages * vocab_centered_scores

    def by_effect(decreasing: int, increasing: int, neutral: int) -> Tensor:
        return torch.where(effects > 0, decreasing, torch.where(effects < 0, increasing, neutral))

    of_negative = by_effect(TokenGroup.NEGATIVE_DECREASING, TokenGroup.NEGATIVE_INCREASING, TokenGroup.NEGATIVE_NEUTRAL)
    of_positive = by_effect(TokenGroup.POSITIVE_DECREASING, TokenGroup.POSITIVE_INCREASING, TokenGroup.POSITIVE_NEUTRAL)
    return torch.where(advantages < 0, of_negative, torch.where(advantages > 0, of_positive, int(TokenGroup.ZERO)))


def _binned(
    centred: Tensor, standard_deviation: Tensor, groups: Tensor, changes: Tensor, valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Tokens of all cells, and changes of those cells that can hold any."""
    # The products mu sigma, as the gate compares with them: dividing the scores instead would round elsewhere.
    edges = _edges(centred.device) * standard_deviation
    edges_passed = torch.searchsorted(edges, centred.abs().contiguous())
    beyond_some = valid & (edges_passed > 0) & edges[-1].isfinite()
    bins = (edges_passed - 1).clamp(min=0)
    cells = (groups * SIDES + (centred > 0).long()) * len(EDGES) + bins
    counts = torch.zeros(CELLS, dtype=torch.float64, device=centred.device)
    sums = torch.zeros_like(counts)
    counts.scatter_add_(0, cells, beyond_some.double())
    sums.scatter_add_(0, cells, torch.where(beyond_some, changes, 0.0))
    return counts, sums[:_CHANGING_CELLS]


@cache
def _edges(device: torch.device) -> Tensor:
    """Copied to each device once, from pinned memory, so that the training thread does not wait for it."""
    edges = torch.tensor(EDGES, dtype=torch.float64)
    return edges.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else edges.to(device)


def _read_bins(numbers: Sequence[float]) -> BinSums:
    occupied = tuple(cell for cell, count in enumerate(numbers[:CELLS]) if count)
    return BinSums(
        cells=occupied,
        counts=tuple(int(numbers[cell]) for cell in occupied),
        change_sums=tuple(numbers[CELLS + cell] if cell < _CHANGING_CELLS else 0.0 for cell in occupied),
    )
