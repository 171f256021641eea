"""Token scores in plain torch: row blocks with two reused buffers, never a copy of the whole logits.

With T the temperature, m = max z and d = (z - m) / T, one pass keeps five sums per token and the sampled logit's d_k:

    Z = sum e^d    Z1 = sum d e^d    Q0 = sum e^2d    Q1 = sum d e^2d            (max, sums: the row's *moments*)

and everything else follows from them:

    log p_k = d_k - log Z                 H    = log Z - Z1 / Z
    S*      = p_k (d_k - Z1 / Z)          E[S] = (Q1 - (Z1 / Z) Q0) / Z^2        arXiv:2602.03392, Theorems 1 and 2

Masked logits (-inf) contribute exactly nothing. A row that holds NaN or +inf, or is masked everywhere, is NaN in every
output; no other row is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 19
"""Logits held in a buffer at a time: 2 MiB in float32, small enough for a CPU's second-level cache."""

FLOOR = -200.0
"""d is floored here: e^-200 is 0 in float32 and 1e-87 in float64, and 0 * -200 is 0 where 0 * -inf would be NaN."""


class Moments(NamedTuple):
    """Six numbers per token, each of the rows' shape."""

    maximum: Tensor
    """max z, before the temperature."""
    total: Tensor
    """Z"""
    total_shifted: Tensor
    """Z1"""
    square: Tensor
    """Q0"""
    square_shifted: Tensor
    """Q1"""
    chosen_shifted: Tensor
    """d_k of the sampled token; -inf where it is masked."""


class RowScores(NamedTuple):
    """What `finish` makes of the moments, in float64 and of the rows' shape."""

    log_total: Tensor
    """log Z: with the maximum, what backward needs to recompute probabilities."""
    logprobs: Tensor
    entropies: Tensor
    discriminator_scores: Tensor
    expected_scores: Tensor


def accumulation_dtype(logits_dtype: torch.dtype) -> torch.dtype:
    """float64 logits stay float64; everything narrower is accumulated in float32."""
    return torch.float64 if logits_dtype == torch.float64 else torch.float32


def row_moments(logits: Tensor, token_ids: Tensor, temperature: float) -> Moments:
    """One pass over `logits` [..., vocabulary] with `token_ids` [...]; the logits are only read."""
    rows, vocabulary = token_ids.numel(), logits.shape[-1]
    dtype = accumulation_dtype(logits.dtype)
    sums = torch.empty(5, rows, dtype=dtype, device=logits.device)
    shifted_buffer, weight_buffer = _buffer(logits, dtype), _buffer(logits, dtype)
    for start, block in _row_blocks(logits):
        count = block.numel() // vocabulary
        shifted, weight, out = shifted_buffer[:count], weight_buffer[:count], sums[:, start : start + count]
        shifted.view(block.shape).copy_(block)
        torch.amax(shifted, 1, out=out[0])
        shifted.sub_(out[0].unsqueeze(1)).div_(temperature).clamp_(min=FLOOR)
        torch.exp(shifted, out=weight)
        shifted.mul_(weight)
        torch.sum(weight, 1, out=out[1])
        torch.sum(shifted, 1, out=out[2])
        # Not as dot products: these are matrix products to torch, which autocast rounds to bfloat16 and TF32 to ten bits.
        torch.sum(shifted.mul_(weight), 1, out=out[4])
        torch.sum(weight.square_(), 1, out=out[3])
    maximum, total, total_shifted, square, square_shifted = sums.unbind(0)
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).reshape(rows).to(dtype)
    return Moments(maximum, total, total_shifted, square, square_shifted, (chosen - maximum) / temperature)


def finish(moments: Moments) -> RowScores:
    """Turn moments into scores, in float64 so that S* - E[S] loses nothing."""
    _, total, total_shifted, square, square_shifted, chosen = (part.double() for part in moments)
    mean_shifted = total_shifted / total
    log_total = total.log()
    logprobs = chosen - log_total
    # p = 0 makes S* = 0 exactly; without the guard it would be 0 * -inf.
    impossible = chosen.isneginf() & total.isfinite()
    discriminator_scores = torch.where(impossible, 0.0, logprobs.exp() * (chosen - mean_shifted))
    return RowScores(
        log_total=log_total,
        logprobs=logprobs + (total - total),  # a NaN row is NaN here too, also where the chosen logit is -inf
        entropies=log_total - mean_shifted,
        discriminator_scores=discriminator_scores,
        expected_scores=(square_shifted - mean_shifted * square) / total.square(),
    )


def logprob_gradient(
    logits: Tensor, token_ids: Tensor, maximum: Tensor, log_total: Tensor, upstream: Tensor, temperature: float
) -> Tensor:
    """d logprobs / d logits applied to `upstream`: g (e_k - p) / T, written into one new tensor of the logits' dtype.

    `maximum`, `log_total` and `upstream` have one entry per row; probabilities are recomputed block by block, from
    z - m first so that a large common offset of the logits costs no accuracy.
    """
    vocabulary = logits.shape[-1]
    dtype = accumulation_dtype(logits.dtype)
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    flat_gradient, flat_ids = gradient.view(-1, vocabulary), token_ids.reshape(-1, 1)
    maximum, log_total = maximum.to(dtype).unsqueeze(1), log_total.to(dtype).unsqueeze(1)
    scaled = (upstream.reshape(-1, 1) / temperature).to(dtype)
    buffer = _buffer(logits, dtype)
    for start, block in _row_blocks(logits):
        count = block.numel() // vocabulary
        rows, probability = slice(start, start + count), buffer[:count]
        probability.view(block.shape).copy_(block)
        probability.sub_(maximum[rows]).div_(temperature).sub_(log_total[rows]).exp_()
        probability.mul_(scaled[rows].neg()).scatter_add_(1, flat_ids[rows], scaled[rows])
        flat_gradient[rows] = probability
    return gradient


def _buffer(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for the largest block of `_row_blocks`."""
    vocabulary = logits.shape[-1]
    rows = min(logits.numel() // vocabulary, max(1, BLOCK_ELEMENTS // vocabulary))
    return torch.empty(rows, vocabulary, dtype=dtype, device=logits.device)


def _row_blocks(logits: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Views of about BLOCK_ELEMENTS logits each with the number of their first row, in row order.

    Works on strided views such as `logits[:, :-1]` without flattening them, which would copy the whole tensor.
    """
    vocabulary = logits.shape[-1]
    if logits.numel() == 0:
        return
    if logits.dim() <= 2:
        rows = logits.reshape(-1, vocabulary)
        step = max(1, BLOCK_ELEMENTS // vocabulary)
        for start in range(0, len(rows), step):
            yield start, rows[start : start + step]
        return
    rows_each = logits[0].numel() // vocabulary
    if rows_each * vocabulary > BLOCK_ELEMENTS:
        for index, part in enumerate(logits):
            for start, block in _row_blocks(part):
                yield index * rows_each + start, block
        return
    step = max(1, BLOCK_ELEMENTS // (rows_each * vocabulary))
    for start in range(0, len(logits), step):
        yield start * rows_each, logits[start : start + step]
