"""The sums from which `isentrope_wire.what_if` answers for any thresholds, counted on the
device."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import compress
from math import inf
from operator import neg
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from isentrope.methods.base import CovarianceEffects, ThresholdScore
from isentrope.methods.gate import INTERVENTIONS
from isentrope.scores import TokenScores
from isentrope.statistics.moments import (
    ThresholdStatistics,
    device_constant,
    finite,
    threshold_statistics,
)
from isentrope.statistics.sums import Sum
from isentrope.statistics.tokens import CODES, StepTokens
from isentrope_wire.methods import Method
from isentrope_wire.what_if import (
    CELLS,
    COVARIANCE_UNIT,
    EDGES,
    SIDES,
    BinSums,
    TokenGroup,
    WhatIfSums,
)

if TYPE_CHECKING:
    from jaxtyping import Float64

SCORES: Mapping[Method, ThresholdScore] = {
    method: one.threshold_score
    for method, one in INTERVENTIONS.items()
    if one.threshold_score is not None
}
BY_COVARIANCE: Mapping[Method, CovarianceEffects] = {
    method: one.covariance_effects
    for method, one in INTERVENTIONS.items()
    if one.covariance_effects is not None
}

_CELLS_PER_SIGMA = 20
"""The finest edges lie a twentieth apart."""
_GRID_CELLS = int(EDGES[-1] * _CELLS_PER_SIGMA) + 1
_FIRST_BIN = len(EDGES)
_UPPER = [cell for cell in range(CELLS) if cell // len(EDGES) % SIDES == 1]
"""The cells of the upper side: a covariance counts where it is above 0."""


def measure_what_if(tokens: StepTokens) -> list[Tensor]:
    """Tokens and effects of the step, then counts and effects by cell for each method with
    thresholds, and by covariance.

    A token lies beyond an edge exactly when the method with that mu, and thresholds counted from
    the statistics that its `gate` call counts from, would have clipped it. Whether the active
    control kept it plays no part."""
    scores, over = _step_scores(tokens), _statistics(tokens)
    found = [score(scores, over) for score in SCORES.values()]
    sigmas = [sigma for _, sigma in found]
    unit = torch.full_like(sigmas[0], COVARIANCE_UNIT)
    distances = torch.stack([*(values for values, _ in found), tokens.covariances])
    spreads = torch.stack(
        [sigma.expand(1) if sigma.dim() == 0 else sigma for sigma in (*sigmas, unit)]
    )
    # Thresholds of no token reach none: what lies in the centre is beyond nothing.
    distances.masked_fill_(~finite(spreads * EDGES[-1]), 0.0)
    cells = (
        _bins(distances.abs(), spreads).add_(distances.sign_(), alpha=len(EDGES)).add_(_FIRST_BIN)
    )
    cells = cells.add_(tokens.codes, alpha=3 * len(EDGES)).long()
    chosen = [one(tokens) for one in BY_COVARIANCE.values()]
    sources = torch.stack(
        [
            *[tokens.ones] * len(found),
            *(may * tokens.ones for may, _ in chosen),
            *[tokens.effects] * len(found),
            *(may * effects for may, effects in chosen),
        ]
    ).view(2, len(found) + len(chosen), -1)
    cells = torch.cat([cells[:-1], cells[-1:].expand(len(chosen), -1)])
    table = sources.new_zeros(*sources.shape[:2], CODES * 3 * len(EDGES)).scatter_add_(
        2, cells.expand_as(sources), sources
    )
    table = table.reshape(*sources.shape[:2], CODES, 3, len(EDGES))
    # The centre is the middle one of three sides. A covariance counts where it is above 0.
    by_group = table[:, :, :, ::2].index_select(2, _groups(distances.device)).transpose(0, 1)
    unclipped = tokens.all_effects.sum() - tokens.intervention_effect
    by_covariance = by_group[len(found) :, :, :, 1]
    return [tokens.count, unclipped, by_group[: len(found)].reshape(-1), by_covariance.reshape(-1)]


def _step_scores(tokens: StepTokens) -> TokenScores:
    """The scores of all tokens of the step; 0 where one does not count."""
    discriminator, centred = tokens["S*"], tokens["S_c"]
    return TokenScores(
        tokens["log p"], tokens["H"], discriminator, discriminator - centred, centred
    )


def _statistics(tokens: StepTokens) -> ThresholdStatistics:
    """What thresholds are counted from: scalars, or one number for each token where the `gate`
    calls differ."""
    if tokens.thresholds is not None:
        return tokens.thresholds.to(tokens.ones)
    if len(tokens.batches) == 1:
        sums = torch.stack([*tokens.moments("S*"), *tokens.moments("S_c")])
        return ThresholdStatistics.merge_sums(sums.unsqueeze(0))
    parts = [threshold_statistics([batch.scores], [batch.mask]) for batch in tokens.batches]
    sizes = [batch.mask.numel() for batch in tokens.batches]
    return ThresholdStatistics.expand_by_token(parts, sizes)


def read_what_if(numbers: Sequence[float], rank: int = 0) -> WhatIfSums:
    """The sums in the numbers of `measure_what_if`."""
    tables = dict.fromkeys(SCORES, range(CELLS)) | dict.fromkeys(BY_COVARIANCE, _UPPER)
    by_method, at = {}, 2
    for method, cells in tables.items():
        by_method[str(method)] = _read_bins(numbers[at : at + 2 * len(cells)], cells)
        at += 2 * len(cells)
    return WhatIfSums(tokens=int(numbers[0]), change_sum=-numbers[1], by_method=by_method)


def _bins(
    distances: Float64[Tensor, "scores tokens"], spreads: Float64[Tensor, "scores _"]
) -> Float64[Tensor, "scores tokens"]:
    """The bin of each distance, float64: the number of the last edge whose product with the spread
    is less."""
    last_edge, next_edge = _grid(distances.device)
    # The place on a grid so fine that no two edges share a cell; a hair too low, so that only the
    # next edge is in doubt.
    scale = (_CELLS_PER_SIGMA * (1 - 1e-9) / spreads).nan_to_num(nan=0.0)
    place = (distances * scale).clamp_(max=len(last_edge) - 1).long()
    # The products mu sigma, as the gate compares with them: dividing the scores instead would round
    # elsewhere.
    is_beyond_next = next_edge.take(place).mul_(spreads) < distances
    return last_edge.take(place).add_(is_beyond_next)


@cache
def _grid(device: torch.device) -> tuple[Tensor, Tensor]:
    """For each cell of a grid over |u|: the last edge that lies before all of it, by number, and
    the next one's value."""
    last = [
        max(bisect_right(EDGES, cell / _CELLS_PER_SIGMA + 1e-6) - 1, 0)
        for cell in range(_GRID_CELLS)
    ]
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


def _read_bins(numbers: Sequence[float], cells: Sequence[int]) -> BinSums:
    # By iterators alone: the writer thread, which reads them, holds up the training thread while it
    # runs Python.
    counts, effects = numbers[: len(cells)], numbers[len(cells) :]
    if cells is _UPPER and not any(effects):  # on-policy a penalty does nothing
        return BinSums()
    return BinSums(
        cells=tuple(compress(cells, counts)),
        counts=tuple(map(int, compress(counts, counts))),
        change_sums=tuple(map(neg, compress(effects, counts))),
    )


WHAT_IF = Sum(
    size=2 + 2 * CELLS * len(SCORES) + 2 * len(_UPPER) * len(BY_COVARIANCE),
    measure=measure_what_if,
    read=read_what_if,
    merge=None,
)
"""Most of the numbers of a rank's vector; they add up."""
