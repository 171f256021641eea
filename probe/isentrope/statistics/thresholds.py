"""The sigmas and the centre that thresholds are counted from, out of sums that merge exactly.

The sums from which `isentrope_wire.what_if` answers for any thresholds, counted on the device.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import compress
from math import inf
from operator import neg

import torch
from torch import Tensor

from isentrope.plain_state import Plain, plain
from isentrope.scores import TokenScores
from isentrope.statistics.sums import device_constant, device_moments
from isentrope.statistics.tokens import CODES, StepTokens, flat
from isentrope_wire.what_if import CELLS, CHANGING_GROUPS, EDGES, SIDES, BinSums, TokenGroup, WhatIfSums

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


_CHANGING_CELLS = CHANGING_GROUPS * SIDES * len(EDGES)
_CELLS_PER_SIGMA = 20
"""The finest edges lie a twentieth apart."""
_GRID_CELLS = int(EDGES[-1] * _CELLS_PER_SIGMA) + 1
_FIRST_BIN = len(EDGES)
"""Of the middle one of three sides."""
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
    # Where they are of no token, anything finite may stand in their place: `reached` takes all away again.
    means = statistics.discriminator_mean.nan_to_num()
    spreads = torch.stack([statistics.discriminator_std, statistics.vocab_centered_std]).unsqueeze(1).to(tokens.values)
    reached = (spreads * EDGES[-1]).isfinite()
    centred = torch.stack([tokens["S*"] - means, tokens["S_c"]])
    cells = _bins(centred.abs(), spreads).add_(centred.sign_(), alpha=len(EDGES)).add_(_FIRST_BIN)
    cells = cells.add_(tokens.codes, alpha=3 * len(EDGES)).long()
    sources = tokens.values[-2:].unsqueeze(1).expand(2, 2, -1)
    table = sources.new_zeros(2, 2, CODES * 3 * len(EDGES)).scatter_add_(2, cells.expand(2, 2, -1), sources)
    table = torch.where(reached, table, 0.0).reshape(2, 2, CODES, 3, len(EDGES))
    # What lies in the centre, the middle one of three sides, is beyond nothing.
    counts, effects = table[:, :, :, ::2].index_select(2, _groups(centred.device)).reshape(2, 2, CELLS)
    effects = effects[:, :_CHANGING_CELLS]
    return torch.cat([tokens.sums[-2:], counts[0], effects[0], counts[1], effects[1]])


def thresholds_of(tokens: StepTokens) -> ThresholdStatistics:
    """Counted from the tokens themselves."""
    return ThresholdStatistics.of_sums(torch.stack([*tokens.moments("S*"), *tokens.moments("S_c")]).unsqueeze(0))


def read_what_if(numbers: Sequence[float]) -> WhatIfSums | None:
    """The sums in the vector that `measure_what_if` made, once it is on the host; None for a step without tokens."""
    if not numbers[0]:
        return None
    method = CELLS + _CHANGING_CELLS
    return WhatIfSums(
        tokens=int(numbers[0]),
        change_sum=-numbers[1],
        clip_b=_read_bins(numbers[2 : 2 + method]),
        clip_v=_read_bins(numbers[2 + method : 2 + 2 * method]),
    )


def _bins(distances: Tensor, spreads: Tensor) -> Tensor:
    """The bin of each distance, float64: of the last edge times the spread that is less."""
    last_edge, next_edge = _grid(distances.device)
    # The place on a grid so fine that no two edges share a cell; a hair too low, so that only the next edge is in doubt.
    scale = (_CELLS_PER_SIGMA * (1 - 1e-9) / spreads).nan_to_num(nan=0.0)
    place = (distances * scale).clamp_(max=len(last_edge) - 1).long()
    # The products mu sigma, as the gate compares with them: dividing the scores instead would round elsewhere.
    is_beyond_next = next_edge.take(place).mul_(spreads) < distances
    return last_edge.take(place).add_(is_beyond_next)


@cache
def _grid(device: torch.device) -> tuple[Tensor, Tensor]:
    """Of each cell of a grid over |u|: the last edge that lies before all of it, by number, and the next one's value."""
    last = [max(bisect_right(EDGES, cell / _CELLS_PER_SIGMA + 1e-6) - 1, 0) for cell in range(_GRID_CELLS)]
    following = [(*EDGES, inf)[edge + 1] for edge in last]
    return device_constant(last, device), device_constant(following, device)


@cache
def _groups(device: torch.device) -> Tensor:
    """The code of each TokenGroup, in their order: 3 (sign of A) + (sign of A S_c) + 4."""
    codes = {
        TokenGroup.NEGATIVE_DECREASING: 2,
        TokenGroup.NEGATIVE_INCREASING: 0,
        TokenGroup.POSITIVE_DECREASING: 8,
        TokenGroup.POSITIVE_INCREASING: 6,
        TokenGroup.NEGATIVE_NEUTRAL: 1,
        TokenGroup.POSITIVE_NEUTRAL: 7,
        TokenGroup.ZERO: 4,
    }
    return device_constant([codes[group] for group in TokenGroup], device).long()


def _read_bins(numbers: Sequence[float]) -> BinSums:
    # By iterators alone: the writer thread, which reads them, holds up the training thread as long as Python runs there.
    counts, effects = numbers[:CELLS], [*numbers[CELLS:], *[-0.0] * (CELLS - _CHANGING_CELLS)]
    return BinSums(
        cells=tuple(compress(range(CELLS), counts)),
        counts=tuple(map(int, compress(counts, counts))),
        change_sums=tuple(map(neg, compress(effects, counts))),
    )
