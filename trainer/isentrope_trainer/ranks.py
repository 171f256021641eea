"""The processes that train one policy together, each on its share of the prompts. `torchrun` starts them."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor, distributed

from isentrope_wire.errors import ConfigurationError


class Ranks:
    """One process, or one of several whose process group is there."""

    def __init__(self) -> None:
        together = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank() if together else 0
        self.size = distributed.get_world_size() if together else 1

    def share(self, prompts: int) -> range:
        """Which of a batch's prompts are this rank's.

        Raises:
            ConfigurationError: they can't be shared out evenly.
        """
        if prompts % self.size:
            raise ConfigurationError(f"prompts must be a multiple of the {self.size} processes, got {prompts}.")
        each = prompts // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def sum(self, values: Tensor) -> Tensor:
        """Added up over the ranks, the same on all."""
        if self.size == 1:
            return values
        total = values.detach().clone()
        distributed.all_reduce(total)
        return total

    def mean(self, values: Tensor) -> Tensor:
        """Averaged over the ranks, the same on all."""
        return values if self.size == 1 else self.sum(values) / self.size

    def any(self, fact: bool) -> bool:
        """Whether it is so on any rank, the same on all."""
        return fact if self.size == 1 else bool(self.sum(torch.tensor(float(fact))) > 0)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Give every rank the mean of all ranks' gradients, in one exchange."""
        if self.size == 1:
            return
        every = list(parameters)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in every]
        mean = self.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        for parameter, part in zip(every, mean.split([p.numel() for p in every]), strict=True):
            parameter.grad = part.view_as(parameter)


def join_ranks() -> Ranks:
    """The ranks that `torchrun` started, joined to a process group; else this process alone."""
    if "TORCHELASTIC_RUN_ID" in os.environ and not distributed.is_initialized():
        distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return Ranks()
