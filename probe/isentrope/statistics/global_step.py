"""What a rank says of a step to all ranks, and what all of it says together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from isentrope.statistics import contributions, covariance, step
from isentrope.statistics.contributions import measure_driving_tokens
from isentrope.statistics.covariance import measure_groups, measure_sketch, read_sketch
from isentrope.statistics.step import StepSummary, measure_tokens, read_measurement
from isentrope.statistics.thresholds import WHAT_IF_NUMBERS, ThresholdStatistics, measure_what_if, read_what_if
from isentrope.statistics.tokens import TokenBatch, step_tokens
from isentrope_wire.what_if import WhatIfSums

_HEADER = 4
"""Numbers before the sums: step, whether the rank took part, its failures so far, its gate calls."""

THRESHOLD_COLUMNS = slice(_HEADER + step.THRESHOLD_COLUMNS.start, _HEADER + step.THRESHOLD_COLUMNS.stop)
"""Where in a rank's vector the moments stand that the next step's thresholds may be made from."""

_DRIVING_FROM = _HEADER + step.NUMBERS

_GROUPS_FROM = _DRIVING_FROM + contributions.NUMBERS

ADDITIVE_FROM = _GROUPS_FROM + covariance.GROUP_NUMBERS
"""From this column on the vectors of ranks may be added up: the what-if sums, then, of several ranks, the covariance's
bins. Most of what there is."""

MEANS_COLUMNS = slice(_HEADER + step.MEANS_COLUMNS.start, _HEADER + step.MEANS_COLUMNS.stop)
"""Where in it the tokens, the mean of A and the mean of log p stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalStep:
    """One step, all ranks taken together."""

    summary: StepSummary | None
    """None when no rank gated anything."""
    what_if: WhatIfSums | None
    """None when there was no valid token."""
    driving: tuple[tuple[int, Sequence[float]], ...]
    """Each rank and its tokens that count most, for `read_driving_tokens`."""
    groups: tuple[Sequence[float], ...]
    """Each rank's groups, for `group_scalars`."""
    top_shares_binned: bool
    """Whether the top shares of the covariance come from its bins, and not from the tokens themselves."""
    failures: int
    """Failures inside the probe so far, summed over the ranks."""
    failed_ranks: int
    """Ranks whose tokens are missing here, because measuring them failed."""
    steps: tuple[int, ...]
    """Which step each rank that took part says this was: one number, unless they have come apart."""


def rank_vector(
    step: int,
    failures: int,
    batches: Sequence[TokenBatch],
    entropies_after: Sequence[Tensor] | None,
    device: torch.device | None,
    thresholds: ThresholdStatistics | None = None,
    *,
    alone: bool = True,
    centre: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """A rank's word on its step, float64, on the device of its tokens; `device` where it has none.

    Args:
        thresholds: what the step's what-if is counted from; None: each rank's own tokens.
        alone: whether there is no other rank. One that sees all tokens ranks them themselves.
        centre: mean log p and mean A of the step before, over all ranks.
    """
    tokens = step_tokens(batches)
    if tokens is None:
        sums = _nothing(batches[0].mask.device if batches else device, alone)
    else:
        sums = torch.cat(
            [
                measure_tokens(tokens, batches, entropies_after),
                measure_driving_tokens(tokens, batches),
                measure_groups(tokens, batches),
                measure_what_if(tokens, thresholds),
                *(() if alone else (measure_sketch(tokens, centre),)),
            ]
        )
    return _with_header(sums, step, 1, failures, len(batches))


def failed_rank_vector(failures: int, device: torch.device | None, *, alone: bool = True) -> Tensor:
    """The word of a rank that could not measure: it keeps the others from waiting, and changes nothing."""
    return _with_header(_nothing(device, alone), 0, 0, failures, 0)


def read_ranks(rows: Sequence[Sequence[float]]) -> GlobalStep:
    """Merge the vectors of all ranks, exactly and in their order.

    Args:
        rows: one per rank. Those that end at ADDITIVE_FROM had the rest added to another.
    """
    took_part = [row for row in rows if row[1]]
    summaries = [read_measurement(row[_HEADER:]) for row in took_part if row[3]]
    parts = [row[ADDITIVE_FROM:] for row in rows if len(row) > ADDITIVE_FROM]
    # As a rule one rank's row holds the sum of all: thousands of sums of one number would cost more than all else here.
    additive = parts[0] if len(parts) == 1 else [sum(column) for column in zip(*parts, strict=True)]
    exact = reduce(StepSummary.merge, summaries) if summaries else None
    summary = _with_top_shares(exact, additive[WHAT_IF_NUMBERS:])
    return GlobalStep(
        summary=summary,
        what_if=read_what_if(additive[:WHAT_IF_NUMBERS]),
        driving=tuple((rank, row[_DRIVING_FROM:_GROUPS_FROM]) for rank, row in enumerate(rows)),
        groups=tuple(row[_GROUPS_FROM:ADDITIVE_FROM] for row in rows),
        top_shares_binned=summary is not exact,
        failures=int(sum(row[2] for row in rows)),
        failed_ranks=len(rows) - len(took_part),
        steps=tuple(sorted({int(row[0]) for row in took_part})),
    )


def _with_top_shares(summary: StepSummary | None, bins: Sequence[float]) -> StepSummary | None:
    """The very summary where it knows them, or nothing does."""
    if summary is None or not summary.tokens or summary.covariance_top is not None or not bins:
        return summary
    return replace(summary, covariance_top=read_sketch(bins, summary.advantage_logprob))


def _nothing(device: torch.device | None, alone: bool) -> Tensor:
    numbers = ADDITIVE_FROM - _HEADER + WHAT_IF_NUMBERS + (0 if alone else covariance.SKETCH_NUMBERS)
    return torch.zeros(numbers, dtype=torch.float64, device=device)


def _with_header(sums: Tensor, *header: int) -> Tensor:
    # Filled on the device; copying Python numbers there would wait for it.
    return torch.cat([*(sums.new_full((1,), float(number)) for number in header), sums])
