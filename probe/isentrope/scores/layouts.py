"""Tokens in other layouts: sequences laid end to end, which cost what their tokens cost, and one
change for all tensors of scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isentrope.scores.token_scores import TokenScores
from isentrope_wire.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Int, Shaped


def each_field(scores: TokenScores, change: Callable[[Tensor], Tensor]) -> TokenScores:
    """Change every tensor of scores: slice, gather over ranks or pad it.

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


@dataclass(frozen=True)
class Packing:
    """Which of N tokens, laid end to end, belong to which sequence."""

    count: int
    """N."""
    sequence: Int[Tensor, " tokens"]
    """Number of each token's sequence."""
    starts: Int[Tensor, " sequences"]
    """Where each sequence begins."""
    lengths: Int[Tensor, " sequences"]

    @classmethod
    def read(cls, cu_seqlens: Tensor | Sequence[int], tokens: Shaped[Tensor, " tokens"]) -> Packing:
        """`cu_seqlens` says where each sequence begins, and the last one ends: [0, ..., N]. Best on
        the CPU, or a list: reading it from an accelerator waits for the device."""
        bounds = torch.as_tensor(cu_seqlens, device="cpu").detach().long()
        count = tokens.numel()
        if tokens.dim() != 1:
            raise InputError(
                "cu_seqlens goes with packed tokens, [tokens], got scores of shape "
                f"{list(tokens.shape)}."
            )
        if (
            bounds.dim() != 1
            or len(bounds) < 2
            or bounds[0] != 0
            or bounds[-1] != count
            or (bounds.diff() < 0).any()
        ):
            raise InputError(
                f"cu_seqlens must rise from 0 to the number of tokens, {count}, one bound more "
                f"than there are sequences; got {bounds.tolist()!r:.200}."
            )
        lengths = bounds.diff()
        numbers = torch.arange(len(lengths), device="cpu")
        rows = torch.repeat_interleave(numbers, lengths, output_size=count)
        return cls(
            count,
            *(one.to(tokens.device, non_blocking=True) for one in (rows, bounds[:-1], lengths)),
        )

    def sums(self, values: Shaped[Tensor, " tokens"]) -> Shaped[Tensor, " sequences"]:
        """Sum over each sequence; 0 of one without tokens."""
        return values.new_zeros(len(self.lengths)).index_add_(0, self.sequence, values)

    def spread(self, values: Shaped[Tensor, " sequences"]) -> Shaped[Tensor, " tokens"]:
        """A number of each sequence at all of its tokens."""
        return values.index_select(0, self.sequence)

    def empty_rows(self) -> Tensor:
        """A tensor of no element with one row for each sequence."""
        return torch.empty(len(self.lengths), 0, device=self.sequence.device)
