"""Token scores in plain torch: row blocks with two reused buffers, never a copy of the whole
logits.

Any device, any floating-point type, any strides. The formulas are those of `moments.py`, written so
that torch's elementwise kernels stay in the processor's cache; sums are float32, or float64 for
float64 logits. This is the specification of the other backends, and what they fall back to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from isentrope.kernels.moments import Moments, Temperature, Upstream

BLOCK_ELEMENTS = 1 << 19
"""Logits held in a buffer at a time (at least one row): 2 MiB in float32. Fewer would cost more
calls than they save."""

LOG2_E = 1 / math.log(2)

FLOOR = -300.0
"""Exponents are floored here: 2^-300 is 0 in float32 and 5e-91 in float64; 0 * -300 is 0 where 0 *
-inf would be NaN."""


def supports(logits: Tensor) -> bool:
    """Every floating-point tensor."""
    return logits.is_floating_point()


def accumulation_dtype(logits_dtype: torch.dtype) -> torch.dtype:
    """float64 logits stay float64; everything narrower is accumulated in float32."""
    if logits_dtype == torch.float64:
        return torch.float64
    return torch.float32


def row_moments(
    logits: Tensor,
    token_ids: Tensor,
    temperature: Temperature,
    start: int = 0,
    *,
    squared: bool = False,
) -> Moments:
    rows, vocabulary = token_ids.numel(), logits.shape[-1]
    dtype = accumulation_dtype(logits.dtype)
    sums = torch.empty(6 if squared else 5, rows, dtype=dtype, device=logits.device)
    shifted_buffer, weight_buffer = _buffer(logits, dtype), _buffer(logits, dtype)
    for first, block in _row_blocks(logits):
        count = block.numel() // vocabulary
        rows_of_block = slice(first, first + count)
        shifted, weight, out = shifted_buffer[:count], weight_buffer[:count], sums[:, rows_of_block]
        shifted.view(block.shape).copy_(block)
        torch.amax(shifted, 1, out=out[0])
        # A slice that is masked everywhere is counted from 0: -inf minus -inf would be NaN.
        centre = torch.where(out[0].isneginf(), 0.0, out[0]).unsqueeze(1)
        shifted.sub_(centre).mul_(_row_block(LOG2_E / temperature, rows_of_block, dtype)).clamp_(
            min=FLOOR
        )
        torch.exp2(
            shifted, out=weight
        )  # three quarters of exp's time, and the temperature costs no pass of its own
        torch.sum(weight, 1, out=out[1])
        torch.sum(shifted.mul_(weight), 1, out=out[2])
        # Not as dot products: these are matrix products to torch, which autocast rounds to bfloat16
        # and TF32 to ten bits.
        torch.linalg.vector_norm(weight, dim=1, out=out[3])
        torch.sum(weight.mul_(shifted), 1, out=out[4])
        if squared:
            torch.sum(shifted.square_(), 1, out=out[5])
    maximum, total, total_shifted, norm, square_shifted, *square_twice = sums.double().unbind(0)
    chosen = _chosen_logits(logits, token_ids, start).double()
    chosen = torch.where(chosen.isneginf(), chosen, (chosen - maximum) / temperature)
    return Moments(
        maximum / temperature,
        total,
        total_shifted / LOG2_E,
        norm.square(),
        square_shifted / LOG2_E,
        chosen,
        square_twice[0] / LOG2_E**2 if squared else None,
    )


def logit_gradient(
    logits: Tensor, upstream: Upstream, temperature: Temperature, start: int = 0
) -> Tensor:
    token_ids, log_normalizer, entropies, logprob_gradient, entropy_gradient = upstream
    vocabulary = logits.shape[-1]
    dtype = accumulation_dtype(logits.dtype)
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    flat_gradient = gradient.view(-1, vocabulary)
    centre, remainder = split_log_normalizer(log_normalizer.reshape(-1, 1), temperature, dtype)
    towards_chosen = _divide_rows(logprob_gradient, log_normalizer, temperature, dtype)
    towards_flat = _divide_rows(entropy_gradient, log_normalizer, temperature, dtype)
    if entropies is None:
        row_entropies = None
    else:
        row_entropies = entropies.reshape(-1, 1).to(dtype)
    columns, in_slice = _columns(token_ids, start, vocabulary)
    silent = torch.ones_like(centre, dtype=torch.bool)
    for towards in (towards_chosen, towards_flat):
        if towards is not None:
            silent &= towards == 0
    buffer = _buffer(logits, dtype)
    entropy_buffer = None
    if towards_flat is not None:
        entropy_buffer = _buffer(logits, dtype)
    for first, block in _row_blocks(logits):
        count = block.numel() // vocabulary
        rows, values = slice(first, first + count), buffer[:count]
        values.view(block.shape).copy_(block)
        values.sub_(centre[rows])
        if isinstance(temperature, Tensor) or temperature != 1.0:
            values.div_(_row_block(temperature, rows, dtype))
        values.sub_(remainder[rows])  # log p
        if towards_flat is not None and entropy_buffer is not None and row_entropies is not None:
            # g (1[i = k] - p) - h p (H + log p) = g 1[i = k] - p (g + h (H + log p)), with log p
            # floored: 0 * -inf.
            weight = torch.clamp(values, min=FLOOR, out=entropy_buffer[:count])
            weight.add_(row_entropies[rows]).mul_(towards_flat[rows])
            if towards_chosen is not None:
                weight.add_(towards_chosen[rows])
            values.exp_().mul_(weight.neg_())
        elif towards_chosen is not None:
            values.exp_().mul_(-towards_chosen[rows])
        else:
            values.zero_()
        if towards_chosen is not None:
            values.scatter_add_(
                1, columns[rows], torch.where(in_slice[rows], towards_chosen[rows], 0.0)
            )
        # A row that is gated or padded gets no gradient, whatever its logits hold: 0 * NaN.
        flat_gradient[rows] = values.masked_fill_(silent[rows], 0.0)
    return gradient


def split_log_normalizer(
    log_normalizer: Tensor, temperature: Temperature, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A centre r in units of the logits and what is left of L [rows, 1], so that log p = (z - r) /
    T - remainder.

    Near the row's largest logits z - r is exact in float32, whatever offset all logits of the row
    have in common."""
    if isinstance(temperature, Tensor):
        temperature = temperature.unsqueeze(1)
    centre = (log_normalizer * temperature).to(dtype)
    return centre, (log_normalizer - centre.double() / temperature).to(dtype)


def _divide_rows(
    upstream: Tensor | None, like: Tensor, temperature: Temperature, dtype: torch.dtype
) -> Tensor | None:
    """g / T or h / T, [rows, 1]."""
    if upstream is None:
        return None
    return (upstream.reshape(like.numel()) / temperature).to(dtype).unsqueeze(1)


def _row_block(factor: Temperature, rows: slice, dtype: torch.dtype) -> Temperature:
    """What multiplies or divides a block of rows: a number, or [rows, 1]."""
    if isinstance(factor, Tensor):
        return factor[rows].to(dtype).unsqueeze(1)
    return factor


def _columns(token_ids: Tensor, start: int, columns: int) -> tuple[Tensor, Tensor]:
    """Where the sampled tokens lie in a slice, as [rows, 1], and whether they do; those that don't
    point anywhere."""
    wanted = token_ids.reshape(-1, 1) - start
    return wanted.clamp(0, columns - 1), (wanted >= 0) & (wanted < columns)


def _chosen_logits(logits: Tensor, token_ids: Tensor, start: int) -> Tensor:
    columns, in_slice = _columns(token_ids, start, logits.shape[-1])
    chosen = logits.gather(-1, columns.reshape(*token_ids.shape, 1)).reshape(-1)
    return torch.where(in_slice.reshape(-1), chosen, -torch.inf)


def _buffer(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for the largest block of `_row_blocks`."""
    vocabulary = logits.shape[-1]
    rows = min(logits.numel() // vocabulary, max(1, BLOCK_ELEMENTS // vocabulary))
    return torch.empty(rows, vocabulary, dtype=dtype, device=logits.device)


def _row_blocks(logits: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Views of about BLOCK_ELEMENTS logits each with the number of their first row, in row order;
    strided views such as `logits[:, :-1]` are not flattened, which would copy the whole
    tensor."""
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
