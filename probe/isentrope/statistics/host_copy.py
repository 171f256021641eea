"""Between device and host without making the training thread wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def constant(numbers: Sequence[float], device: torch.device) -> Tensor:
    """Numbers on the device, float64, from pinned memory, so that the training thread does not wait. Keep what it gives."""
    numbers_here = torch.tensor(numbers, dtype=torch.float64)
    return numbers_here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers_here.to(device)


class HostCopy:
    """Starts copying a vector when built; `wait`, on another thread, gives its numbers."""

    def __init__(self, vector: Tensor) -> None:
        self._ready: torch.cuda.Event | None = None
        if vector.device.type == "cuda":
            self._host = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
            self._host.copy_(vector, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(vector.device))
        else:
            self._host = vector

    def wait(self) -> list[float]:
        """The vector's numbers, once they have arrived."""
        if self._ready is not None:
            self._ready.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers

    def arrived(self) -> bool:
        """Whether `wait` would return at once."""
        return self._ready is None or bool(self._ready.query())
