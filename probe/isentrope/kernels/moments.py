"""Six numbers a token, or seven: what every backend makes of a slice of the vocabulary, and what
becomes of them.

With T the temperature, m = max z / T and d = z / T - m, one pass over a slice keeps, beside m,

    Z = sum e^d    Z1 = sum d e^d   Q0 = sum e^2d   Q1 = sum d e^2d,  and d_k of the sampled token;

where entropies carry gradient, Q2 = sum d^2 e^2d, too. Counted from another maximum m' = m - D they
are, with s = e^D,

    Z' = s Z    Z1' = s (Z1 + D Z)    Q0' = s^2 Q0    Q1' = s^2 (Q1 + D Q0)    d_k' = d_k + D
    Q2' = s^2 (Q2 + 2 D Q1 + D^2 Q0),

so slices add up exactly, in any order: blocks of a kernel, tiles of a language-model head, shards
of a tensor-parallel group. Everything else follows from the sums over the whole vocabulary:

    log p_k = d_k - log Z           H    = log Z - Z1 / Z
    S*      = p_k (d_k - Z1 / Z)    E[S] = (Q1 - (Z1 / Z) Q0) / Z^2

(arXiv:2602.03392, Theorems 1 and 2) and

    sum_i S_i^2 = (Q2 - 2 (Z1 / Z) Q1 + (Z1 / Z)^2 Q0) / Z^2, the squared length of T dH / dz: dH /
    dz_i = -S_i / T
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Temperature: TypeAlias = float | Tensor
"""T of all rows, or float64 [rows]: one per row."""

LARGEST_SHIFT = 700.0
"""e^-700 is still a positive float64, and 0 * 700 is 0 where 0 * inf would be NaN."""


class Moments(NamedTuple):
    """Moments over a slice of the vocabulary; float64 tensors, one number per row."""

    maximum: Tensor
    """m = max z / T, to within float32's spacing; -inf where the slice is masked everywhere."""
    total: Tensor
    """Z; NaN where the slice holds a NaN."""
    total_shifted: Tensor
    """Z1"""
    square: Tensor
    """Q0"""
    square_shifted: Tensor
    """Q1"""
    chosen_shifted: Tensor
    """d_k of the sampled token; -inf where it is masked or lies outside the slice."""
    square_shifted_twice: Tensor | None = None
    """Q2; None unless it was asked for."""


class RowScores(NamedTuple):
    """What `finish` makes of the moments: float64, one number per row, in nats."""

    log_normalizer: Tensor
    """L = m + log Z, so that log p_i = z_i / T - L: all that backward needs to recompute
    probabilities."""
    logprobs: Tensor
    entropies: Tensor
    discriminator_scores: Tensor
    expected_scores: Tensor
    squared_scores: Tensor | None = None
    """sum_i S_i^2 in nats^2; None where the moments have no Q2."""


class Upstream(NamedTuple):
    """The gradients that arrive at the scores, and what forward kept for them: one number per row,
    or a shape of as many."""

    token_ids: Tensor
    log_normalizer: Tensor
    """L over the whole vocabulary, float64."""
    entropies: Tensor | None
    """H in nats; needed with `entropy_gradient`."""
    logprob_gradient: Tensor | None
    """g; None is 0."""
    entropy_gradient: Tensor | None
    """h; None is 0."""


def shift(moments: Moments, maximum: Tensor) -> Moments:
    """Count the sums from `maximum` [rows], which must not lie below their own."""
    change = moments.maximum - maximum
    # inf - inf: both sides masked everywhere (nothing to move), or +inf logits (NaN, which `finish`
    # wants).
    change = torch.where(moments.maximum.isneginf() & maximum.isneginf(), 0.0, change)
    bounded = change.clamp(min=-LARGEST_SHIFT)
    scale = torch.where(change.isneginf(), 0.0, bounded.exp())
    square_scale = scale.square()
    square_twice = moments.square_shifted_twice
    if square_twice is not None:
        square_twice = square_twice + bounded * (
            2 * moments.square_shifted + bounded * moments.square
        )
    return Moments(
        maximum,
        scale * moments.total,
        scale * (moments.total_shifted + bounded * moments.total),
        square_scale * moments.square,
        square_scale * (moments.square_shifted + bounded * moments.square),
        moments.chosen_shifted + change,
        None if square_twice is None else square_scale * square_twice,
    )


def merge(parts: Sequence[Moments]) -> Moments:
    """Moments of slices of the same rows taken together; exact, in any order."""
    if len(parts) == 1:
        return parts[0]
    together = _joined(torch.stack, parts)
    maximum = together.maximum.amax(0)
    _, *sums, chosen, square_twice = shift(together, maximum)
    if square_twice is None:
        total_square_twice = None
    else:
        total_square_twice = square_twice.sum(0)
    return Moments._make(
        (maximum, *(numbers.sum(0) for numbers in sums), chosen.amax(0), total_square_twice)
    )


def concatenated(parts: Sequence[Moments]) -> Moments:
    """Moments of blocks of rows, one block after the other."""
    return _joined(torch.cat, parts)


def _joined(join: Callable[[list[Tensor]], Tensor], parts: Sequence[Moments]) -> Moments:
    """Field by field; Q2 only where all parts have it."""
    columns = (list(numbers) for numbers in zip(*parts, strict=True))
    return Moments(
        *(join(numbers) for numbers in columns if all(one is not None for one in numbers))
    )


def finish(moments: Moments) -> RowScores:
    """Turn the moments of whole rows into scores, in float64 so that S* - E[S] loses nothing.

    A row that holds NaN or +inf, or is masked everywhere, is NaN in every field.
    """
    maximum, total, total_shifted, square, square_shifted, chosen, square_twice = moments
    total = torch.where(maximum.isfinite(), total, torch.nan)
    mean_shifted = total_shifted / total
    log_total = total.log()
    logprobs = chosen - log_total
    # p = 0 makes S* = 0 exactly; without the guard it would be 0 * -inf.
    impossible = chosen.isneginf() & total.isfinite()
    squared_scores = None
    if square_twice is not None:
        sums = square_twice - mean_shifted * (2 * square_shifted - mean_shifted * square)
        squared_scores = (sums / total.square()).clamp(
            min=0.0
        )  # rounding can take a sum of 0 below it
    return RowScores(
        log_normalizer=maximum + log_total,
        logprobs=logprobs
        + (total - total),  # a NaN row is NaN here too, also where the chosen logit is -inf
        entropies=log_total - mean_shifted,
        discriminator_scores=torch.where(impossible, 0.0, logprobs.exp() * (chosen - mean_shifted)),
        expected_scores=(square_shifted - mean_shifted * square) / total.square(),
        squared_scores=squared_scores,
    )
