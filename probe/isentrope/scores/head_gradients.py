"""Gradients of a language-model head, tile by tile of its logits, each summed over the tiles in float32 or wider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

from isentrope.kernels.dispatch import backend_for
from isentrope.kernels.moments import Temperature
from isentrope.scores.head_tiles import HeadTiles, widens_products

if TYPE_CHECKING:
    from jaxtyping import Float


class Upstream(NamedTuple):
    """The upstream gradients and what forward kept, one number per row."""

    token_ids: Tensor
    log_normalizer: Tensor
    """Of the whole vocabulary, float64."""
    entropies: Tensor
    logprob_gradient: Tensor | None
    entropy_gradient: Tensor | None

    def by_tile(
        self, tile: Float[Tensor, "rows columns"], rows: slice, start: int, temperature: Temperature
    ) -> Float[Tensor, "rows columns"]:
        """The gradient by a tile's entries: one new tensor."""
        logprob_gradient = None if self.logprob_gradient is None else self.logprob_gradient[rows]
        entropy_gradient = None if self.entropy_gradient is None else self.entropy_gradient[rows]
        return backend_for(tile).logit_gradient(
            tile,
            self.token_ids[rows],
            self.log_normalizer[rows],
            temperature,
            logprob_gradient,
            entropy_gradient,
            self.entropies[rows],
            start,
        )


def head_gradients(tiles: HeadTiles, upstream: Upstream, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Gradients of the tiles' operands, in the operands' order and types; None where not needed.

    Vocabulary outside, tokens inside: whatever belongs to a slice of the vocabulary is complete, and rounded to its own
    type, before the next slice begins. So a bfloat16 weight needs no float32 gradient of its size.
    """
    operands = tiles.operands
    rows_of, columns_of = _TokenGradient.where, _VocabularyGradient.where
    hidden, adapter_inputs = rows_of(operands.hidden, needed[0]), rows_of(operands.adapter_inputs, needed[3])
    weight, bias, adapter_up = (
        columns_of(operand, need)
        for operand, need in (
            (operands.weight, needed[1]),
            (operands.bias, needed[2]),
            (operands.adapter_up, needed[4]),
        )
    )
    for columns in tiles.columns():
        factor = tiles.weight(columns)
        summed_factor = _factor(factor)
        for rows in tiles.rows():
            tile = tiles.tile(rows, columns, factor)
            gradient = upstream.by_tile(tile, rows, columns.start, tiles.rule.tile_temperature(rows))
            tiles.rule.chain_(gradient, tile)
            if hidden is not None:
                _add_product_(hidden.total(rows), gradient, summed_factor)
            if weight is not None:
                _add_product_(weight.total(columns), gradient.T, tiles.hidden(rows))
            if bias is not None:
                total = bias.total(columns)
                total += gradient.sum(0, dtype=total.dtype)
            if adapter_inputs is not None and operands.adapter_up is not None:
                _add_product_(adapter_inputs.total(rows), gradient, operands.adapter_up[columns])
            if adapter_up is not None and operands.adapter_inputs is not None:
                _add_product_(adapter_up.total(columns), gradient.T, operands.adapter_inputs[rows])
            del gradient  # or two would be in memory at once
    return tuple(
        None if part is None else part.finished() for part in (hidden, weight, bias, adapter_inputs, adapter_up)
    )


class _TokenGradient:
    """Of something with a row per token: the sum over all slices of the vocabulary, kept wide until the end."""

    def __init__(self, operand: Tensor) -> None:
        self._dtype = operand.dtype
        self._total = torch.zeros(operand.shape, dtype=_sum_dtype(operand), device=operand.device)

    @classmethod
    def where(cls, operand: Tensor | None, needed: bool) -> Self | None:
        return cls(operand) if needed and operand is not None else None

    def total(self, rows: slice) -> Tensor:
        return self._total[rows]

    def finished(self) -> Tensor:
        return self._total.to(self._dtype)


class _VocabularyGradient:
    """Of something with a row per vocabulary entry: one slice at a time is kept wide."""

    def __init__(self, operand: Tensor) -> None:
        self._gradient = torch.zeros(operand.shape, dtype=operand.dtype, device=operand.device)
        self._columns: slice | None = None
        self._total = self._gradient

    @classmethod
    def where(cls, operand: Tensor | None, needed: bool) -> Self | None:
        return cls(operand) if needed and operand is not None else None

    def total(self, columns: slice) -> Tensor:
        if columns != self._columns:
            self._round()
            self._columns, self._total = columns, self._gradient[columns].to(_sum_dtype(self._gradient))
        return self._total

    def finished(self) -> Tensor:
        self._round()
        return self._gradient

    def _round(self) -> None:
        if self._columns is not None and self._total.dtype != self._gradient.dtype:
            self._gradient[self._columns] = self._total


def _sum_dtype(operand: Tensor) -> torch.dtype:
    return torch.promote_types(operand.dtype, torch.float32)


def _factor(weight: Tensor) -> Tensor:
    """The weight of a tile in the type `_add_product_` needs, cast once for all rows."""
    return weight if widens_products(weight.device, weight.dtype) else weight.to(_sum_dtype(weight))


def _add_product_(
    total: Float[Tensor, "rows columns"], left: Float[Tensor, "rows inner"], right: Float[Tensor, "inner columns"]
) -> None:
    """total += left right, summed in the total's type whatever the factors' is.

    A narrow product added up tile by tile would be rounded once a tile, which biases the gradient.
    """
    if left.dtype == right.dtype == total.dtype:
        total.addmm_(left, right)
    elif total.dtype == torch.float32 and widens_products(total.device, right.dtype):
        torch.addmm(total, left.to(right.dtype), right, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))
