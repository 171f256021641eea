"""What the loss makes of each token, read from its own gradient.

A hook on the log-probs that the loss uses gives

    g_t = -dL / dlog p_t

with ratio, advantage, clip, aggregation, KL term and accumulation in it, whatever the loss is made
of. A step of size eta on the logits then changes the sum of the entropies by -eta sum g_t S_c,t
(arXiv:2602.03392, Theorem 2 with g in the place of r A). An entropy bonus adds eta sum c_t sum_i
S_i^2, c_t = -dL / dH_t. The hooks change no gradient."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from isentrope.guard import Guard

if TYPE_CHECKING:
    from jaxtyping import Shaped

BACKWARD = torch.autograd.backward.__code__


WATCHED = ("gated", "logprobs", "entropies", "kl_penalty")
"""What a gradient may be read at: the log-probs after the gate, those before it, and what a bonus
and a KL term are made of."""


class LossGradient:
    """The gradients of one `gate` call; empty until backward has reached it.

    Every backward adds up, as it does in the parameters' own gradients.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.read: dict[str, Tensor] = {}
        """dL/d of the tensors watched, by name, as far as one arrived."""
        self._hooks: list[RemovableHandle] = []
        self._trains_in = threading.get_ident()

    def __bool__(self) -> bool:
        return bool(self.read)

    def watch(self, name: str, tensor: Shaped[Tensor, "*tokens"], *, negated: bool = False) -> None:
        """Read the gradient, or minus it, that arrives at a tensor, as "gated" (the log-probs after
        the gate), "logprobs" (those before it), "entropies" or "kl_penalty". One without gradient
        is not watched."""
        if tensor.requires_grad:
            self._hooks.append(tensor.register_hook(partial(self._add, name, negated)))

    def close(self) -> None:
        """Stop watching: a loop may use a tensor, such as the reference's log-probs, in another
        step again."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def get(self, name: str) -> Shaped[Tensor, "*tokens"] | None:
        """dL/d of the tensor watched under this name; None where nothing arrived."""
        return self.read.get(name)

    def _add(self, name: str, negated: bool, gradient: Tensor | None) -> None:
        with self._guard.protect("reading the loss's gradient"):
            if gradient is not None:
                # A copy: what receives the gradient next may write into it.
                if negated:
                    found = gradient.detach().neg()
                else:
                    found = gradient.detach().clone()
                before = self.read.get(name)
                if before is None:
                    self.read[name] = found
                else:
                    self.read[name] = before + found
                if name == "gated":
                    self._read_loss()

    def _read_loss(self) -> None:
        """Keep what backward was called on, where that is one number: NaN gradients of a loss that
        is finite have other causes."""
        loss = root_of_backward(self._trains_in)
        if loss is not None:
            before = self.read.get("loss")
            if before is None:
                self.read["loss"] = loss
            else:
                self.read["loss"] = before + loss


def root_of_backward(thread: int) -> Tensor | None:
    """The number that a thread has called backward on, a copy; None where it is in none. Autograd
    tells a hook nothing of where backward began, and on an accelerator calls it in another thread:
    so it is read from the frames of that thread."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not BACKWARD:
        frame = frame.f_back
    if frame is None:
        return None
    root = frame.f_locals.get("tensors")
    if isinstance(root, Sequence) and len(root) == 1:
        root = root[0]
    if not isinstance(root, Tensor) or root.numel() != 1:
        return None
    return root.detach().reshape(()).clone()
