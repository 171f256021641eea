"""The ranks of a run: how the numbers of each reach all of them.

torch.distributed is torch itself and not another trainer's library, so this lies beside `probe.py`, which needs it, and
not in `integrations/`, which nothing imports. A process on its own never touches it.

Sums are gathered, not reduced: centred sums can't be added up, their exact merge needs every rank's own; gathering
does no arithmetic, so each rank merges the same bits in the same order; and it takes one collective of some 50 kB.
Nothing here waits for the device, and the host waits only where an answer is used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from isentrope.statistics.host_copy import HostCopy

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

logger = logging.getLogger(__name__)

SLOW_MEETING_SECONDS = 30.0
"""After so long a wait for other ranks to build their probe it is said what is waited for."""

_T = TypeVar("_T")


class Gathered:
    """One vector per rank, on its way."""

    def __init__(self, rows: Tensor, work: Work | None = None) -> None:
        """
        Args:
            rows: [ranks, numbers], filled in by `work`; by the device's own queue, or already, when that is None.
        """
        self._rows = rows
        self._work = work
        self._copy: HostCopy | None = None

    def rows(self) -> Tensor:
        """The vectors, [ranks, numbers] in the ranks' order.

        Raises:
            RuntimeError: a rank is gone.
        """
        if self._work is not None:
            self._work.wait()
        return self._rows

    def numbers_later(self, additive_from: int) -> Callable[[], list[list[float]]]:
        """Start the copy to the host; the function returned gives the numbers, on a thread that may wait.

        Args:
            additive_from: the columns from this one on are added up over the ranks, and end the first row alone.
        """
        ranks, width = len(self._rows), min(additive_from, self._rows.shape[1])

        def of_each_and_of_all(rows: Tensor) -> Tensor:
            return torch.cat([rows[:, width:].sum(0), rows[:, :width].reshape(-1)])

        def rows_of_numbers(numbers: list[float]) -> list[list[float]]:
            additive = numbers[: len(numbers) - ranks * width]
            own = numbers[len(additive) :]
            return [own[rank * width :][:width] + (additive if rank == 0 else []) for rank in range(ranks)]

        if self._rows.device.type == "cpu":
            return lambda: rows_of_numbers(of_each_and_of_all(self.rows()).tolist())
        copy = self._copy = HostCopy(of_each_and_of_all(self._rows))
        return lambda: rows_of_numbers(copy.wait())

    def arrives_within(self, seconds: float) -> bool:
        """Wait for the vectors, but not for ever: a rank may have died."""
        end = time.monotonic() + seconds
        while not self._arrived():
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True

    def _arrived(self) -> bool:
        return (self._work is None or self._work.is_completed()) and (self._copy is None or self._copy.arrived())


class Ranks(Protocol):
    """The ranks that make the steps of a run together. Every method but `neutral` is for all of them at once."""

    rank: int
    size: int
    device: torch.device | None
    """Where vectors to be gathered must lie; None: anywhere."""

    def gather(self, vector: Tensor) -> Gathered:
        """Send one vector of a length all ranks agree on."""
        ...

    def agree(self, mine: _T) -> list[_T]:
        """Everybody's word, in the ranks' order. Waits; for the start of a run."""
        ...

    def broadcast(self, message: bytes, size: int) -> Callable[[], bytes]:
        """Send rank 0's message of `size` bytes; the function returned waits for it."""
        ...


class OneRank:
    """A process on its own."""

    rank = 0
    size = 1
    device: torch.device | None = None

    def gather(self, vector: Tensor) -> Gathered:
        return Gathered(vector.unsqueeze(0))

    def agree(self, mine: _T) -> list[_T]:
        return [mine]

    def broadcast(self, message: bytes, size: int) -> Callable[[], bytes]:
        return lambda: message


class ManyRanks:
    """The members of a torch.distributed group.

    What lies on an accelerator travels over the training's own group: a second communicator would cost device memory,
    and two in flight can wait for each other. Everything else travels over a gloo group of ours, where it can't be
    mistaken for the training's own messages.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        """
        Args:
            group: whose members take part; every one of them must come here. None: all processes.
        """
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.device: torch.device | None = _device_of(group)
        members = dist.get_process_group_ranks(group)
        self._first = members[0]
        self._group = group
        with _says_what_it_waits_for(self.size):
            self._host_group = dist.new_group(
                members, backend="gloo", timeout=_timeout_of(group), use_local_synchronization=True
            )

    def gather(self, vector: Tensor) -> Gathered:
        # Of use with gloo as the only backend beside an accelerator: this copy waits for the device.
        vector = vector.to(self.device)
        # One name up to torch 2.12, the other from there on.
        all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gathered = vector.new_empty(self.size * vector.numel())
        rows = gathered.view(self.size, -1)
        if vector.device.type != "cpu":
            all_gather(gathered, vector, group=self._group)
            return Gathered(rows)
        return Gathered(rows, all_gather(gathered, vector, group=self._host_group, async_op=True))

    def agree(self, mine: _T) -> list[_T]:
        words: list[_T | None] = [None] * self.size
        with _says_what_it_waits_for(self.size):
            dist.all_gather_object(words, mine, group=self._host_group)
        return words  # type: ignore[return-value]

    def broadcast(self, message: bytes, size: int) -> Callable[[], bytes]:
        buffer = torch.zeros(size, dtype=torch.uint8)
        if self.rank == 0:
            buffer[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        work = dist.broadcast(buffer, src=self._first, group=self._host_group, async_op=True)

        def received() -> bytes:
            if work is not None:
                work.wait()
            return bytes(buffer.tolist())

        return received


def ranks_of(group: ProcessGroup | None) -> Ranks | None:
    """The ranks this process trains with: of the group given, else of the default one; None where there is none."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return None
    return ManyRanks(group) if dist.get_world_size(group) > 1 else OneRank()


def _timeout_of(group: ProcessGroup | None) -> timedelta | None:
    """As patient as the run's own group: rank 0 may evaluate or save for long. None, torch's default, if it doesn't tell."""
    members = group or dist.group.WORLD
    options = getattr(members._get_backend(_device_of(group)), "options", None) if members is not None else None
    timeout: timedelta | None = getattr(options, "_timeout", None)
    return timeout


def _device_of(group: ProcessGroup | None) -> torch.device:
    """Where the group's own tensors lie: this process's accelerator if the group has a backend of its own for one."""
    for part in dist.get_backend_config(group).split(","):
        device_type, _, backend = part.partition(":")
        if device_type != "cpu" and backend not in ("gloo", "mpi", "fake", ""):
            accelerator = getattr(torch, device_type, None)
            if accelerator is not None and accelerator.is_available():
                return torch.device(device_type, accelerator.current_device())
    return torch.device("cpu")


@contextmanager
def _says_what_it_waits_for(size: int) -> Iterator[None]:
    reminder = threading.Timer(
        SLOW_MEETING_SECONDS,
        logger.warning,
        (
            "Waiting for all %d ranks to build their probe: every rank of the process group must, not rank 0 alone.",
            size,
        ),
    )
    reminder.daemon = True
    reminder.start()
    try:
        yield
    finally:
        reminder.cancel()
