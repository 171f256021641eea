"""The vector a rank sends of its step, and the step that the vectors of all ranks are together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isentrope.methods.what_if import WHAT_IF
from isentrope.statistics import covariance
from isentrope.statistics.contributions import CONTRIBUTIONS
from isentrope.statistics.mismatch import MISMATCH_SUMS
from isentrope.statistics.samples import REPETITION, SAMPLES
from isentrope.statistics.step import COUPLED_PREDICTION, DISCRIMINATOR, STEP_SUMS, VOCAB_CENTERED
from isentrope.statistics.sums import Layout, RankHeader, StepSums
from isentrope.statistics.tokens import StepTokens, TokenBatch

if TYPE_CHECKING:
    from jaxtyping import Float64

SUMS = (
    *STEP_SUMS,
    *MISMATCH_SUMS,
    REPETITION,
    SAMPLES,
    covariance.ADVANTAGE_LOGPROB,
    covariance.ADVANTAGE_SCORE,
    covariance.ADVANTAGE_DISCRIMINATOR,
    covariance.COVARIANCE_BINS,
    covariance.GROUPS,
    CONTRIBUTIONS,
    WHAT_IF,
)

LAYOUT = Layout(*SUMS)

ADDITIVE_FROM = LAYOUT.additive_from
"""From this column on the vectors of ranks may be added up: most of what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalStep:
    """One step, all ranks taken together."""

    sums: StepSums | None
    """None when no rank gated anything."""
    failures: int
    """Failures inside the probe so far, summed over the ranks."""
    failed_ranks: int
    """Ranks whose tokens are missing here, because measuring them failed."""
    steps: tuple[int, ...]
    """The step numbers that the ranks reported: one, unless the ranks have diverged."""


def rank_vector(
    step: int,
    failures: int,
    batches: Sequence[TokenBatch],
    entropies_after: Sequence[Tensor] | None,
    device: torch.device | None,
    *,
    coupled: Tensor | None = None,
    **about: Any,
) -> Float64[Tensor, " numbers"]:
    """The vector of this rank's step, float64, on the device of its tokens, or on `device` without
    any. `about` is, as the four before it, what `StepTokens` takes."""
    header = RankHeader(step, 1, failures, len(batches))
    device = batches[0].mask.device if batches else device
    if not any(batch.mask.numel() for batch in batches):
        vector = LAYOUT.pack(header, None, device)
        if coupled is not None:  # of this rank's shards
            vector[LAYOUT.place[COUPLED_PREDICTION]] = coupled
        return vector
    return LAYOUT.pack(
        header, StepTokens(batches, entropies_after, coupled=coupled, **about), device
    )


def next_step_vector(batches: Sequence[TokenBatch]) -> Float64[Tensor, " numbers"]:
    """Of `rank_vector` what the next step counts from, on the device; the rest is 0. For a process
    on its own."""
    tokens = StepTokens(batches)
    vector = torch.zeros(LAYOUT.size, dtype=torch.float64, device=tokens.valid.device)
    for one in (DISCRIMINATOR, VOCAB_CENTERED, covariance.ADVANTAGE_LOGPROB):
        vector[LAYOUT.place[one]] = torch.stack([*one.measure(tokens)])
    return vector


def failed_rank_vector(failures: int, device: torch.device | None) -> Tensor:
    """The vector of a rank that could not measure: the others do not wait for it, and it changes no
    sum."""
    return LAYOUT.pack(RankHeader(0, 0, failures, 0), None, device)


def read_ranks(rows: Sequence[Sequence[float]]) -> GlobalStep:
    """Merge the vectors of all ranks, exactly and in their order. Rows that end at ADDITIVE_FROM
    had the rest added to another."""
    headers = [RankHeader(*row[: len(RankHeader._fields)]) for row in rows]
    gated = {
        rank: rows[rank]
        for rank, header in enumerate(headers)
        if header.took_part and header.gate_calls
    }
    parts = [row[ADDITIVE_FROM:] for row in rows if len(row) > ADDITIVE_FROM]
    # As a rule one rank's row holds the sum of all: thousands of sums of one number would cost more
    # than all else here.
    if len(parts) == 1:
        added = parts[0]
    else:
        added = [sum(column) for column in zip(*parts, strict=True)]
    return GlobalStep(
        sums=(
            LAYOUT.read(gated, added, sum(bool(header.took_part) for header in headers))
            if gated
            else None
        ),
        failures=int(sum(header.failures for header in headers)),
        failed_ranks=sum(not header.took_part for header in headers),
        steps=tuple(sorted({int(header.step) for header in headers if header.took_part})),
    )


def threshold_moments(rows: Float64[Tensor, "ranks numbers"]) -> Float64[Tensor, "ranks 6"]:
    """What `ThresholdStatistics.merge_sums` merges: the moments of S* and S_c on each rank, on the
    device."""
    return LAYOUT.columns(rows, DISCRIMINATOR, VOCAB_CENTERED)


def centre_moments(rows: Float64[Tensor, "ranks numbers"]) -> Float64[Tensor, "ranks 4"]:
    """What the next step's centre is merged from: tokens, mean A, mean log p and more on each rank,
    on the device."""
    return LAYOUT.columns(rows, covariance.ADVANTAGE_LOGPROB)
