"""Six numbers a token: what every backend makes of a slice of the vocabulary, and what becomes of them.

With T the temperature, m = max z / T and d = z / T - m, one pass over a slice keeps, beside m,

    Z = sum e^d    Z1 = sum d e^d    Q0 = sum e^2d    Q1 = sum d e^2d    and d_k of the sampled token.

Counted from another maximum m' = m - D they are, with s = e^D,

    Z' = s Z    Z1' = s (Z1 + D Z)    Q0' = s^2 Q0    Q1' = s^2 (Q1 + D Q0)    d_k' = d_k + D,

so slices add up exactly, in any order: blocks of a kernel, tiles of a language-model head, shards of a tensor-parallel
group. Everything else follows from the sums over the whole vocabulary:

    log p_k = d_k - log Z                 H    = log Z - Z1 / Z
    S*      = p_k (d_k - Z1 / Z)          E[S] = (Q1 - (Z1 / Z) Q0) / Z^2        arXiv:2602.03392, Theorems 1 and 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Temperature: TypeAlias = float | Tensor
"""T of all rows, or float64 [rows]: one per row."""

LARGEST_SHIFT = 700.0
"""e^-700 is still a positive float64, and 0 * 700 is 0 where 0 * inf would be NaN."""


class Moments(NamedTuple):
    """Of a slice of the vocabulary; six float64 tensors, one number per row."""

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


class RowScores(NamedTuple):
    """What `finish` makes of the moments: float64, one number per row, in nats."""

    log_normalizer: Tensor
    """L = m + log Z, so that log p_i = z_i / T - L: all that backward needs to recompute probabilities."""
    logprobs: Tensor
    entropies: Tensor
    discriminator_scores: Tensor
    expected_scores: Tensor


def shift(moments: Moments, maximum: Tensor) -> Moments:
    """The same sums counted from `maximum` [rows], which must not lie below theirs."""
    change = moments.maximum - maximum
    # inf - inf: both sides masked everywhere (nothing to move), or +inf logits (NaN, which `finish` wants).
    change = torch.where(moments.maximum.isneginf() & maximum.isneginf(), 0.0, change)
    bounded = change.clamp(min=-LARGEST_SHIFT)
    scale = torch.where(change.isneginf(), 0.0, bounded.exp())
    square_scale = scale.square()
    return Moments(
        maximum,
        scale * moments.total,
        scale * (moments.total_shifted + bounded * moments.total),
        square_scale * moments.square,
        square_scale * (moments.square_shifted + bounded * moments.square),
        moments.chosen_shifted + change,
    )


def merge(parts: Sequence[Moments]) -> Moments:
    """Moments of slices of the same rows taken together; exact, in any order."""
    first, *rest = parts
    if not rest:
        return first
    maximum = torch.stack([part.maximum for part in parts]).amax(0)
    shifted = [shift(part, maximum) for part in parts]
    total, total_shifted, square, square_shifted = (
        torch.stack([part[index] for part in shifted]).sum(0) for index in range(1, 5)
    )
    chosen = torch.stack([part.chosen_shifted for part in shifted]).amax(0)
    return Moments(maximum, total, total_shifted, square, square_shifted, chosen)


def finish(moments: Moments) -> RowScores:
    """Turn the moments of whole rows into scores, in float64 so that S* - E[S] loses nothing.

    A row that holds NaN or +inf, or is masked everywhere, is NaN in every field.
    """
    maximum, total, total_shifted, square, square_shifted, chosen = moments
    total = torch.where(maximum.isfinite(), total, torch.nan)
    mean_shifted = total_shifted / total
    log_total = total.log()
    logprobs = chosen - log_total
    # p = 0 makes S* = 0 exactly; without the guard it would be 0 * -inf.
    impossible = chosen.isneginf() & total.isfinite()
    return RowScores(
        log_normalizer=maximum + log_total,
        logprobs=logprobs + (total - total),  # a NaN row is NaN here too, also where the chosen logit is -inf
        entropies=log_total - mean_shifted,
        discriminator_scores=torch.where(impossible, 0.0, logprobs.exp() * (chosen - mean_shifted)),
        expected_scores=(square_shifted - mean_shifted * square) / total.square(),
    )
