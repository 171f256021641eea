"""Heads whose products are exact in float32, and the same scores in float64 in the plainest
words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.probe.scores import reference64

FIELDS = (
    "logprobs",
    "entropies",
    "discriminator_scores",
    "expected_scores",
    "vocab_centered_scores",
)
ALL_FIELDS = (*FIELDS, "squared_scores")
"""With those that `entropy_gradient` brings."""


@dataclass(frozen=True)
class Head:
    """Multiples of 1/8 up to 1.5: float32 (and bfloat16 as inputs) hold them, their products and
    sums exactly, so that what differs from float64 is our arithmetic alone."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor
    token_ids: Tensor

    @staticmethod
    def random(
        shape: tuple[int, ...], vocabulary: int, width: int = 24, dtype: torch.dtype = torch.float32
    ) -> Head:
        generator = torch.Generator().manual_seed(vocabulary + width)

        def eighths(*shape: int) -> Tensor:
            return (torch.randint(-12, 13, shape, generator=generator) / 8).to(dtype)

        token_ids = torch.randint(0, vocabulary, shape, generator=generator)
        return Head(
            eighths(*shape, width), eighths(vocabulary, width), eighths(vocabulary), token_ids
        )

    def trained(self) -> Head:
        """The same numbers as leaves that gather gradient."""
        hidden, weight, bias = (
            part.detach().clone().requires_grad_() for part in (self.hidden, self.weight, self.bias)
        )
        return Head(hidden, weight, bias, self.token_ids)

    def in64(self) -> Head:
        """The same numbers in float64, as leaves that gather gradient."""
        return Head(
            self.hidden.double(), self.weight.double(), self.bias.double(), self.token_ids
        ).trained()


def logits64(
    head: Head, bias: bool = True, softcap: float | None = None, scale: float = 1.0
) -> Tensor:
    """The logits before the temperature, in float64 and whole."""
    product = head.hidden.double() @ head.weight.double().T
    logits = scale * (product + head.bias.double() if bias else product)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def scores64(
    head: Head,
    bias: bool = True,
    temperature: float = 1.0,
    softcap: float | None = None,
    scale: float = 1.0,
) -> dict[str, Tensor]:
    return reference64.scores64(logits64(head, bias, softcap, scale), head.token_ids, temperature)


class NewTensors(TorchDispatchMode):
    """Bytes of the largest tensor made within."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {
            leaf.untyped_storage().data_ptr()
            for leaf in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        for leaf in torch.utils._pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, leaf.untyped_storage().nbytes())
        return result
