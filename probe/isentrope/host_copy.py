"""The tensors of a step on their way from a CUDA device to the host, where the writer thread counts
its sums.

Some 400 small kernels count the sums of a step, and asking a device for them takes the training
thread milliseconds; here it asks for one copy for each type. Ranks that exchange their sums need
them on the device, and count them there."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from isentrope.scores.loss_gradient import LossGradient

DEVICES = ("cuda",)
"""From which steps are copied; ROCm's have this name, too."""
MOST_TOKENS = 1 << 20
"""Of a step that is copied: about 80 MB of pinned memory, and half a second of one core."""
MOST_UNDER_WAY = 2
"""Where training is faster than the writer thread counts, the device counts."""

T = TypeVar("T")
_Kind = tuple[torch.device, torch.dtype]


class HostCopies:
    """The copies of one process; belongs to the training thread."""

    def __init__(self) -> None:
        self._under_way: WeakSet[_HostCopy] = WeakSet()

    def takes(self, masks: Sequence[Tensor]) -> bool:
        """Whether a step with such masks is to be copied, now."""
        is_there = any(mask.device.type in DEVICES for mask in masks)
        return (
            is_there
            and sum(mask.numel() for mask in masks) <= MOST_TOKENS
            and len(self._under_way) < MOST_UNDER_WAY
        )

    def start(self, values: T) -> Callable[[], T]:
        """Start the copy of the tensors that `values` hold, however deep, and wait for nothing;
        what is returned gives the same with the tensors on the host, on a thread that may
        wait."""
        copy = _HostCopy(values)
        self._under_way.add(copy)
        return copy.values


class _HostCopy:
    def __init__(self, values: Any) -> None:
        self._values, self._started_by = values, threading.get_ident()
        self._places: list[tuple[_Kind, int]] = []
        self._vectors: dict[_Kind, Tensor] = {}
        parts: dict[_Kind, list[Tensor]] = defaultdict(list)
        ends: dict[_Kind, int] = defaultdict(int)

        def placed(tensor: Tensor) -> Tensor:
            kind = tensor.device, tensor.dtype
            self._places.append((kind, ends[kind]))
            parts[kind].append(tensor.detach().reshape(-1))
            ends[kind] += tensor.numel()
            return tensor

        _map_tensors(values, placed)
        for kind, flat in parts.items():
            vector = host = torch.cat(flat)
            if vector.is_cuda:
                host = torch.empty(vector.shape, dtype=vector.dtype, device="cpu", pin_memory=True)
                host.copy_(vector, non_blocking=True)
            self._vectors[kind] = host
        self._copied: list[torch.cuda.Event] = []
        for device in {device for device, _ in parts if device.type == "cuda"}:
            self._copied.append(torch.cuda.Event())
            self._copied[-1].record(torch.cuda.current_stream(device))

    def values(self) -> Any:
        if threading.get_ident() != self._started_by:
            _compute_on_one_core()
        for copied in self._copied:
            copied.synchronize()
        places = iter(self._places)

        def copy_to_host(tensor: Tensor) -> Tensor:
            kind, first = next(places)
            return self._vectors[kind][first : first + tensor.numel()].view(tensor.shape)

        return _map_tensors(self._values, copy_to_host)


def _map_tensors(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change every tensor in sequences, mappings and dataclasses."""
    if isinstance(values, Tensor):
        return change(values)
    if isinstance(values, LossGradient):
        values = values.read
    if isinstance(values, Mapping):
        return {name: _map_tensors(value, change) for name, value in values.items()}
    if isinstance(values, list | tuple):
        parts = [_map_tensors(value, change) for value in values]
        if hasattr(values, "_make"):
            return values._make(parts)
        return type(values)(parts)
    if is_dataclass(values) and not isinstance(values, type):
        changed = {
            one.name: _map_tensors(getattr(values, one.name), change) for one in fields(values)
        }
        return replace(values, **changed)
    return values


def _compute_on_one_core() -> None:
    """Let what the calling thread computes take one core: training has the others.

    torch's setting is also that of threads that begin later. So another one puts it back.
    """
    usual = torch.get_num_threads()
    if usual > 1:
        torch.set_num_threads(1)
        other = threading.Thread(target=torch.set_num_threads, args=(usual,))
        with suppress(RuntimeError):  # as the interpreter ends, no thread begins
            other.start()
            other.join()
