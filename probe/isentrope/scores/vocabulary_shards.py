"""Exact scores of tensor-parallel logits: each rank holds a slice of the vocabulary, and none ever
sees a whole row.

A slice becomes six or seven numbers a token. One MAX all-reduce gives every rank the row's maximum,
and one SUM all-reduce of the numbers counted from it gives every rank the same whole row; no logits
are sent."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch
import torch.distributed
from torch import Tensor

from isentrope.kernels import moments
from isentrope.kernels.dispatch import backend_for
from isentrope.kernels.moments import Moments, finish, shift
from isentrope.scores.token_scores import (
    TokenScores,
    TokenScoresFunction,
    build_token_scores,
    check_token_inputs,
    scores_of,
    temperature_of_rows,
    wants_entropy_gradient,
)
from isentrope_wire.errors import InputError

Group: TypeAlias = "torch.distributed.ProcessGroup"


def shard_moments(
    logits_shard: Tensor,
    token_ids: Tensor,
    start: int,
    temperature: float | Tensor = 1.0,
    *,
    squared_scores: bool = False,
) -> Moments:
    """Six or seven numbers a token of one slice of the vocabulary.

    Args:
        logits_shard: [..., columns], the logits of tokens `start` to `start + columns`.
        token_ids: [...], integer, counted over the whole vocabulary; most lie outside this slice.
        start: The token of the shard's first column. A wrong one shows as tokens that no shard
            holds: log p = -inf.
        temperature: As for `token_scores`; the same for every shard.
        squared_scores: Also keep what `TokenScores.squared_scores` needs.

    Returns:
        Float64 numbers [rows], rows in the token ids' order, detached. `merge` joins them.

    Raises:
        InputError: Shapes, types or numbers that do not fit.
    """
    _check_shard(logits_shard, token_ids, start, temperature)
    logits_shard = logits_shard.detach()
    of_rows = temperature_of_rows(temperature, token_ids)
    return backend_for(logits_shard).row_moments(
        logits_shard, token_ids.long(), of_rows, start, squared=squared_scores
    )


def merge(
    *shards: Moments, temperature: float | Tensor = 1.0, group: Group | None = None
) -> TokenScores:
    """Scores of whole rows from the moments of their slices, exact in any order.

    Args:
        shards: Of the same tokens and of disjoint slices.
        temperature: The one that `shard_moments` was called with; becomes a field of the scores.
        group: Without one, `shards` are the whole vocabulary. With one, they are this rank's part
            of it: every rank of the group calls this with its own, and all get the same scores (one
            MAX and one SUM all-reduce).

    Returns:
        Float64 [rows], detached, with `squared_scores` where every shard has what they need (on
        every rank, or on none). A row that holds NaN or +inf in any slice, or is masked in all, is
        NaN in every field on every rank. A token that no slice holds has probability 0.

    Raises:
        InputError: No shards, or shards of different tokens.
    """
    if not shards:
        raise InputError(
            "merge takes the moments of at least one shard, got none. shard_moments makes them."
        )
    for shard in shards:
        if not isinstance(shard, Moments):
            raise InputError(
                "merge takes the results of shard_moments, one argument a shard (merge(*shards)),"
                f" got {type(shard).__name__}."
            )
    rows = {shard.total.numel() for shard in shards}
    if len(rows) > 1:
        raise InputError(f"Shards must be of the same tokens, got shards of {sorted(rows)} tokens.")
    merged = moments.merge(shards)
    if group is None:
        whole = merged
    else:
        whole = _merged_over(group, merged)
    scores = build_token_scores(finish(whole), whole.total.shape, torch.float64)
    return replace(
        scores, temperature=temperature.detach() if isinstance(temperature, Tensor) else temperature
    )


def sharded_token_scores(
    logits_shard: Tensor,
    token_ids: Tensor,
    start: int,
    temperature: float | Tensor = 1.0,
    *,
    group: Group | None = None,
    entropy_gradient: bool = False,
) -> TokenScores:
    """`token_scores` of logits whose vocabulary is split over the ranks of a group; the same scores
    on every rank.

    Costs one MAX all-reduce of one number and one SUM all-reduce of six numbers a token (seven with
    `entropy_gradient`), and no communication in backward: every rank must compute the same loss
    from the scores, which are the same everywhere, and gets the gradient of its own slice. Shards
    may differ in width.

    Args:
        logits_shard: [..., columns], this rank's slice of the logits.
        token_ids: [...], integer, counted over the whole vocabulary; the same on every rank.
        start: The token of the shard's first column.
        temperature: As for `token_scores`.
        group: The tensor-parallel group; the default group if not given. Every rank of it must
            call.
        entropy_gradient: As for `token_scores`; the same on every rank.

    Returns:
        Scores of the token ids' shape.

    Raises:
        InputError: Shapes, types or numbers that do not fit.
    """
    _check_shard(logits_shard, token_ids, start, temperature)
    results = TokenScoresFunction.apply(  # type: ignore[no-untyped-call]
        logits_shard,
        token_ids,
        temperature_of_rows(temperature, token_ids),
        wants_entropy_gradient(entropy_gradient),
        start,
        partial(_merged_over, group),
    )
    return scores_of(results, token_ids, temperature)


def _check_shard(
    logits_shard: Tensor, token_ids: Tensor, start: int, temperature: float | Tensor
) -> None:
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise InputError(
            f"start must be the id of the shard's first token, 0 or larger, got {start!r}."
        )
    check_token_inputs(logits_shard, token_ids, temperature)


def _merged_over(group: Group | None, part: Moments) -> Moments:
    """The moments of whole rows on every rank, from each rank's part of them."""
    # MAX of a NaN differs between backends; +inf ends as NaN everywhere, as such a row must.
    maximum = torch.where(part.maximum.isnan() | part.total.isnan(), torch.inf, part.maximum)
    torch.distributed.all_reduce(maximum, torch.distributed.ReduceOp.MAX, group)
    shifted = shift(part, maximum)
    held = shifted.chosen_shifted.isfinite()
    squares = () if shifted.square_shifted_twice is None else (shifted.square_shifted_twice,)
    chosen_sums = (torch.where(held, shifted.chosen_shifted, 0.0), held.double())
    sums = torch.stack((*shifted[1:5], *chosen_sums, *squares))
    torch.distributed.all_reduce(sums, torch.distributed.ReduceOp.SUM, group)
    total, total_shifted, square, square_shifted, chosen, holders, *merged_squares = sums.unbind(0)
    # Held by no rank: masked where it lies, or outside every slice.
    chosen = torch.where(holders > 0, chosen, -torch.inf)
    return Moments(maximum, total, total_shifted, square, square_shifted, chosen, *merged_squares)
