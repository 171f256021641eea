"""The logits of hidden @ weight.T in tiles of tokens x vocabulary: one buffer, reused for every
tile.

    y = hidden W^T + x B^T + bias            (x B^T: low-rank adapters, if any)
    z = c tanh(a y / c)  with a soft cap c,  else  z = a y            p = softmax(z / T)

The scale a and, with a soft cap, the multiplication by c cost no pass: they are part of the
temperature a tile is read with. What a tile holds is y, or t = tanh(a y / c). Gradients are
computed tile by tile too, each summed over the tiles in float32 or wider.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from isentrope.kernels.dispatch import backend_for
from isentrope.kernels.moments import Temperature, Upstream

if TYPE_CHECKING:
    from jaxtyping import Float

_Gradient = TypeVar("_Gradient")

FORWARD_BYTES = {"cpu": 5 << 20}
"""What a tile may take, with the copies it needs."""
GPU_FORWARD_BYTES = 256 << 20
"""Elsewhere: so few tiles that the device computes for longer than it takes to ask for them.
Backward holds two such tiles."""
ROWS_AT_A_TIME = {"cpu": 512}
GPU_ROWS_AT_A_TIME = 8192
WIDEST_CPU_TILE = 16384
"""Wider tiles of few rows are no faster."""


def widens_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device multiplies factors of such a type into float32 results without casting
    them first."""
    there = (
        device.type == "cuda"
        and torch.version.hip is None
        and hasattr(torch.ops.aten.addmm, "dtype_out")
    )
    return there and dtype.itemsize == 2


@dataclass(frozen=True, slots=True)
class LogitRule:
    """How a product y becomes a logit."""

    temperature: Temperature
    scale: float = 1.0
    softcap: float | None = None

    def tile_temperature(self, rows: slice) -> Temperature:
        """What the entries of a tile of `rows` are divided by to become z / T."""
        temperature = (
            self.temperature[rows] if isinstance(self.temperature, Tensor) else self.temperature
        )
        return temperature / (self.scale if self.softcap is None else self.softcap)

    @property
    def tile_slope(self) -> float:
        """dt / dy where t = 0: the constant part of the chain rule that `tile_temperature`
        leaves."""
        if self.softcap is None:
            return 1.0
        return self.scale / self.softcap

    def apply_(self, tile: Tensor) -> None:
        """y becomes what the tile is read as, in place."""
        if self.softcap is not None:
            tile.mul_(self.scale / self.softcap).tanh_()

    def chain_(self, gradient: Tensor, tile: Tensor) -> None:
        """The gradient by a tile's entries becomes that by y in place, but for `tile_slope`."""
        if self.softcap is not None:
            torch.ops.aten.tanh_backward.grad_input(gradient, tile, grad_input=gradient)


class HeadOperands(NamedTuple):
    """What the products are made from; rows are tokens."""

    hidden: Tensor
    """[rows, width]"""
    weight: Tensor
    """[vocabulary, width]"""
    bias: Tensor | None = None
    """[vocabulary]"""
    adapter_inputs: Tensor | None = None
    """x [rows, ranks]"""
    adapter_up: Tensor | None = None
    """B [vocabulary, ranks]"""


def product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The type `nn.functional.linear` computes in, autocast respected; the wider one where the two
    differ."""
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    device = hidden.device.type
    if dtype == torch.float64 or not _autocast_is_on(device):
        return dtype
    return torch.get_autocast_dtype(device)


def disable_autocast(device: str) -> AbstractContextManager[object]:
    """Within, products are computed in the types given."""
    if _autocast_is_on(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _autocast_is_on(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


class HeadTiles:
    """Tiles of one head's logits."""

    def __init__(
        self, operands: HeadOperands, rule: LogitRule, logits_dtype: torch.dtype, *, widen: bool
    ) -> None:
        """Products are computed in `logits_dtype`; with `widen` tiles are float32 even where that
        is narrower (backward on a CPU)."""
        self.operands, self.rule, self.logits_dtype = operands, rule, logits_dtype
        device = operands.hidden.device
        inputs = torch.promote_types(operands.hidden.dtype, operands.weight.dtype)
        as_they_are = logits_dtype == torch.float32 and widens_products(device, inputs)
        if as_they_are:
            self.operand_dtype = inputs
        else:
            self.operand_dtype = logits_dtype
        widen = widen or rule.softcap is not None or operands.adapter_up is not None
        if widen:
            self.tile_dtype = torch.promote_types(logits_dtype, torch.float32)
        else:
            self.tile_dtype = logits_dtype
        rows, vocabulary = len(operands.hidden), len(operands.weight)
        # Even blocks: one row left over would cost another read of the whole weight.
        blocks = math.ceil(rows / ROWS_AT_A_TIME.get(device.type, GPU_ROWS_AT_A_TIME))
        self.row_step = math.ceil(rows / max(blocks, 1)) or 1
        self.column_step = min(vocabulary, self._columns_at_a_time(device))
        size = self.row_step * self.column_step
        self._product = torch.empty(size, dtype=logits_dtype, device=device)
        self._wide = self._product
        if self.tile_dtype != logits_dtype:
            self._wide = torch.empty(size, dtype=self.tile_dtype, device=device)

    def _columns_at_a_time(self, device: torch.device) -> int:
        operands = self.operands
        per_column = self.row_step * self.logits_dtype.itemsize
        if self.tile_dtype != self.logits_dtype:
            per_column += self.row_step * self.tile_dtype.itemsize
        if operands.weight.dtype != self.operand_dtype:
            per_column += operands.weight.shape[1] * self.operand_dtype.itemsize
        columns = FORWARD_BYTES.get(device.type, GPU_FORWARD_BYTES) // per_column
        if device.type == "cpu":
            columns = min(columns, WIDEST_CPU_TILE)
        return max(128, columns // 128 * 128)

    def columns(self) -> Iterator[slice]:
        """Slices of the vocabulary; none where there are no tokens."""
        vocabulary = 0
        if len(self.operands.hidden):
            vocabulary = len(self.operands.weight)
        return (
            slice(start, min(start + self.column_step, vocabulary))
            for start in range(0, vocabulary, self.column_step)
        )

    def rows(self) -> Iterator[slice]:
        """Slices of the tokens."""
        count = len(self.operands.hidden)
        return (
            slice(start, min(start + self.row_step, count))
            for start in range(0, count, self.row_step)
        )

    def weight(self, columns: slice) -> Tensor:
        """The weight of a tile as it is multiplied; a copy where its type differs."""
        return self.operands.weight[columns].to(self.operand_dtype)

    def hidden(self, rows: slice) -> Tensor:
        """The states of a tile as they are multiplied."""
        return self.operands.hidden[rows].to(self.operand_dtype)

    def tile(self, rows: slice, columns: slice, weight: Tensor) -> Tensor:
        """A tile as `rule` reads it, in the reused buffer; `weight` is that of its columns."""
        operands = self.operands
        hidden = self.hidden(rows)
        shape = (len(hidden), len(weight))
        product = self._product[: shape[0] * shape[1]].view(shape)
        if operands.bias is None:
            bias = None
        else:
            bias = operands.bias[columns].to(self.logits_dtype)
        _multiply(hidden, weight.T, bias, product)
        tile = product
        if self.tile_dtype != self.logits_dtype:
            tile = self._wide[: shape[0] * shape[1]].view(shape)
            tile.copy_(product)
        if operands.adapter_inputs is not None and operands.adapter_up is not None:
            tile.addmm_(
                operands.adapter_inputs[rows].to(self.tile_dtype),
                operands.adapter_up[columns].to(self.tile_dtype).T,
            )
        self.rule.apply_(tile)
        return tile


def _multiply(left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out = left right + bias; narrow factors with a wide result only where a device has such a
    product."""
    if left.dtype == out.dtype:
        if bias is None:
            torch.mm(left, right, out=out)
        else:
            torch.addmm(bias, left, right, out=out)
        return
    torch.mm(left, right, out_dtype=out.dtype, out=out)
    if bias is not None:
        out.add_(bias)


def head_gradients(
    tiles: HeadTiles, upstream: Upstream, needed: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of the tiles' operands, in the operands' order and types; None where not needed.

    Vocabulary outside, tokens inside: whatever belongs to a slice of the vocabulary is complete,
    and rounded to its own type, before the next slice begins. So a bfloat16 weight needs no float32
    gradient of its size."""
    operands = tiles.operands
    hidden = _wanted(_TokenGradient, operands.hidden, needed[0])
    weight = _wanted(_VocabularyGradient, operands.weight, needed[1])
    bias = _wanted(_VocabularyGradient, operands.bias, needed[2])
    adapter_inputs = _wanted(_TokenGradient, operands.adapter_inputs, needed[3])
    adapter_up = _wanted(_VocabularyGradient, operands.adapter_up, needed[4])
    one_block = tiles.row_step >= len(operands.hidden)
    for columns in tiles.columns():
        factor = tiles.weight(columns)
        summed_factor = _factor(factor)
        for rows in tiles.rows():
            tile = tiles.tile(rows, columns, factor)
            of_rows = Upstream._make(None if part is None else part[rows] for part in upstream)
            temperature = tiles.rule.tile_temperature(rows)
            gradient = backend_for(tile).logit_gradient(tile, of_rows, temperature, columns.start)
            tiles.rule.chain_(gradient, tile)
            if hidden is not None:
                _add_product_(hidden.total(rows), gradient, summed_factor)
            if weight is not None:
                weight.add_product(columns, gradient.T, tiles.hidden(rows), complete=one_block)
            if bias is not None:
                total = bias.total(columns)
                total += gradient.sum(0, dtype=total.dtype)
            if adapter_inputs is not None and operands.adapter_up is not None:
                _add_product_(adapter_inputs.total(rows), gradient, operands.adapter_up[columns])
            if adapter_up is not None and operands.adapter_inputs is not None:
                adapter_up.add_product(
                    columns, gradient.T, operands.adapter_inputs[rows], complete=one_block
                )
            del gradient  # or two would be in memory at once
    return tuple(
        None if part is None else part.finished()
        for part in (hidden, weight, bias, adapter_inputs, adapter_up)
    )


def _wanted(
    kind: Callable[[Tensor], _Gradient], operand: Tensor | None, needed: bool
) -> _Gradient | None:
    if needed and operand is not None:
        return kind(operand)
    return None


class _TokenGradient:
    """Gradient of a [tokens, ...] tensor: the sum over all slices of the vocabulary, kept wide
    until the end."""

    def __init__(self, operand: Tensor) -> None:
        self._dtype = operand.dtype
        self._total = torch.zeros(operand.shape, dtype=_sum_dtype(operand), device=operand.device)

    def total(self, rows: slice) -> Tensor:
        return self._total[rows]

    def finished(self) -> Tensor:
        return self._total.to(self._dtype)


class _VocabularyGradient:
    """Gradient of a [vocabulary, ...] tensor, slice by slice: one at a time is kept wide."""

    def __init__(self, operand: Tensor) -> None:
        self._gradient = torch.zeros(operand.shape, dtype=operand.dtype, device=operand.device)
        self._columns: slice | None = None
        self._total = self._gradient

    def total(self, columns: slice) -> Tensor:
        if columns != self._columns:
            self._round()
            self._columns, self._total = (
                columns,
                self._gradient[columns].to(_sum_dtype(self._gradient)),
            )
        return self._total

    def add_product(self, columns: slice, left: Tensor, right: Tensor, *, complete: bool) -> None:
        """Add left right to a slice; where it is `complete`, as it is the only one, it needs no
        wide sum."""
        if complete and left.dtype == right.dtype == self._gradient.dtype:
            torch.mm(left, right, out=self._gradient[columns])
        else:
            _add_product_(self.total(columns), left, right)

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
    if widens_products(weight.device, weight.dtype):
        return weight
    return weight.to(_sum_dtype(weight))


def _add_product_(
    total: Float[Tensor, "rows columns"],
    left: Float[Tensor, "rows inner"],
    right: Float[Tensor, "inner columns"],
) -> None:
    """total += left right, summed in the total's type whatever the factors' is: a narrow product
    would be rounded once a tile, which biases the gradient."""
    if left.dtype == right.dtype == total.dtype:
        total.addmm_(left, right)
    elif total.dtype == torch.float32 and widens_products(total.device, right.dtype):
        torch.addmm(total, left.to(right.dtype), right, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))
