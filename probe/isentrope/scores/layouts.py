"""Tokens in other layouts: sequences laid end to end as rows, and one change for all tensors of
scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from isentrope.scores.token_scores import TokenScores
from isentrope_wire.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Shaped

T = TypeVar("T")


def each_field(scores: TokenScores, change: Callable[[Tensor], Tensor]) -> TokenScores:
    """The same change made to every tensor of scores, such as a slice, a gather over ranks or
    padding.

    Args:
        change: Takes and returns a tensor with one number per token.
    """
    found: dict[str, Any] = {field.name: getattr(scores, field.name) for field in fields(scores)}
    temperature = found.pop("temperature")
    if isinstance(temperature, Tensor) and temperature.dim():
        found["temperature"] = temperature.expand(scores.logprobs.shape).contiguous()
    return replace(
        scores, **{name: change(value) for name, value in found.items() if value is not None}
    )


class Packing:
    """Which of N tokens, laid end to end, belong to which sequence."""

    def __init__(
        self, cu_seqlens: Tensor | Sequence[int], tokens: Shaped[Tensor, " tokens"]
    ) -> None:
        """`cu_seqlens` says where each sequence begins, and the last one ends: [0, ..., N]. Best on
        the CPU, or a list: reading it from an accelerator waits for the device."""
        bounds = torch.as_tensor(cu_seqlens).detach().cpu().long()
        count = tokens.numel()
        if tokens.dim() != 1:
            raise InputError(
                f"cu_seqlens goes with packed tokens, [tokens], got scores of shape {list(tokens.shape)}."
            )
        if (
            bounds.dim() != 1
            or len(bounds) < 2
            or bounds[0] != 0
            or bounds[-1] != count
            or (bounds.diff() < 0).any()
        ):
            raise InputError(
                f"cu_seqlens must rise from 0 to the number of tokens, {count}, one bound more than there are sequences; "
                f"got {bounds.tolist()!r:.200}."
            )
        lengths = bounds.diff()
        self.shape = torch.Size((len(lengths), max(int(lengths.max()), 1)))
        rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths, output_size=count)
        places = rows * self.shape[1] + torch.arange(count) - bounds[rows]
        self.count, self._places = count, places.to(tokens.device, non_blocking=True)

    def rows(self, packed: Shaped[Tensor, " tokens"]) -> Shaped[Tensor, "sequences longest"]:
        """One row per sequence, 0 (False) behind its end."""
        return (
            packed.new_zeros(self.shape.numel())
            .index_copy(0, self._places, packed)
            .view(self.shape)
        )

    def tokens(self, rows: Shaped[Tensor, "sequences longest"]) -> Shaped[Tensor, " tokens"]:
        return rows.reshape(-1).index_select(0, self._places)


def laid_out(packing: Packing | None, packed: T) -> T:
    """The same in rows, where it is a packed tensor; anything else, such as a number per sequence,
    as it is."""
    if packing is None or not isinstance(packed, Tensor) or packed.shape != (packing.count,):
        return packed
    return cast(T, packing.rows(packed))
