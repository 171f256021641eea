"""The ranks of a run: how the numbers of each reach all of them.

torch.distributed is torch itself and not another trainer's library, so this lies beside `probe.py`, which needs it, and
not in `integrations/`, which nothing imports. A process on its own never touches it.

Sums are gathered, not reduced: centred sums can't be added up, their exact merge needs every rank's own; gathering
does no arithmetic, so each rank merges the same bits in the same order; and it takes one collective of some 50 kB.
Nothing here waits for the device, and the host waits only where an answer is used.

Once a step all ranks meet: each one's sums go to all, and rank 0's wishes go to all.

A rank that stayed away would keep the others waiting for ever. So whatever fails on a rank, it comes here, if need be
with empty hands; that is why `Probe.step` calls `meet` in a `finally`.

Rank 0 hears of a new control; this tells the others, so that all decide on the same words at the same step.

Between device and host without making the training thread wait.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from isentrope.methods.reference import SelectionBasis, ThresholdSources
from isentrope.statistics.global_step import ADDITIVE_FROM, MEANS_COLUMNS, THRESHOLD_COLUMNS, failed_rank_vector
from isentrope.statistics.thresholds import no_threshold_sums
from isentrope_wire.codec import decode_control, encode_control
from isentrope_wire.hold_decision import Action
from isentrope_wire.reports import ControlSnapshot

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work


Broadcast = Callable[[bytes, int], Callable[[], bytes]]
"""Sends rank 0's message of so many bytes to all ranks; the function returned waits for it."""

FIRST_CAPACITY = 4096
"""Bytes of the first message; a control is a tenth of it."""

_HEADER = struct.Struct("<dQQ")
"""Rank 0's clock in seconds since the Unix epoch, and how many bytes its document and its note have."""

LONGEST_NOTE = 2048
"""Bytes; a note has room in every message."""


class Heard(NamedTuple):
    """What rank 0 told."""

    desired: ControlSnapshot | None
    now: float
    """Its clock, in seconds since the Unix epoch."""
    note: bytes
    """What else it told with it; empty: nothing."""


class ControlRelay:
    """One message a step: told when a step closes, heard when the next one opens.

    All messages of a step must have one length on all ranks before any of them knows the document. So the length is
    agreed in advance, and a document that is too long travels one step later, in a message that is long enough.
    """

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast
        self._capacity = FIRST_CAPACITY
        self._on_its_way: Callable[[], bytes] | None = None
        self._heard: ControlSnapshot | None = None

    def tell(self, desired: ControlSnapshot | None, now: float, note: bytes = b"") -> None:
        """Start telling what rank 0 knows.

        Args:
            desired: the newest snapshot on this rank; rank 0's counts.
            now: seconds since the Unix epoch; rank 0's counts.
            note: at most LONGEST_NOTE bytes for this step alone; rank 0's counts.
        """
        assert len(note) <= LONGEST_NOTE, "a note must fit in the first message"
        document = b"" if desired is None else encode_control(desired)
        fits = _HEADER.size + len(note) + len(document) <= self._capacity
        message = _HEADER.pack(now, len(document), len(note)) + note + (document if fits else b"")
        self._on_its_way = self._broadcast(message, self._capacity)

    def hear(self, now: float) -> Heard:
        """What rank 0 told last, and its clock then; before it told anything, nothing and `now`.

        Raises:
            RuntimeError: rank 0 is gone.
        """
        if self._on_its_way is None:
            return Heard(None, now, b"")
        receive, self._on_its_way = self._on_its_way, None
        message = receive()
        now, length, note_length = _HEADER.unpack_from(message)
        start = _HEADER.size + note_length
        end = start + length
        if end <= self._capacity:
            self._heard = decode_control(message[start:end]) if length else None
        else:
            self._capacity = 2 * end
        return Heard(self._heard, now, message[_HEADER.size : start])


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


class ResumeWord(NamedTuple):
    """What a rank goes on from after a checkpoint."""

    error: str = ""
    """Why it can't; empty when it can."""
    state: Mapping[str, Any] | None = None
    """Of rank 0, whose word counts for all."""
    action: bytes = b""
    """Of rank 0: decided for the step that comes next."""


class RankMeeting:
    """What a rank knows of all ranks. A process on its own meets itself."""

    def __init__(self, ranks: Ranks, thresholds: ThresholdSources, basis: SelectionBasis) -> None:
        """
        Args:
            thresholds, basis: told what the ranks' tokens were like.
        """
        self._ranks = ranks
        self._thresholds = thresholds
        self._basis = basis
        self.alone = ranks.size == 1
        self.leads = ranks.rank == 0
        """Whether what this rank decides counts for all."""
        self._relay = None if self.alone else ControlRelay(ranks.broadcast)
        self._step: Gathered | None = None
        self._heard_action: Action | None = None
        self._told_action: Action | None = None

    @property
    def heard_action(self) -> Action | None:
        """What rank 0 of several decided for the step that `wanted_control` was asked about."""
        return self._heard_action

    @property
    def device(self) -> torch.device | None:
        """Where the vector of a rank without tokens must lie."""
        return self._ranks.device

    def wanted_control(self, desired: ControlSnapshot | None) -> tuple[ControlSnapshot | None, float]:
        """The control to decide about at this step boundary, and the time to decide by: rank 0's, of the last meeting.

        Args:
            desired: the newest on this rank; it counts when the process is alone.

        Raises:
            RuntimeError: rank 0 is gone.
        """
        if self._relay is None:
            return desired, time.time()
        heard = self._relay.hear(time.time())
        self._heard_action = Action.decode(heard.note) if heard.note else None
        return heard.desired, heard.now

    def first_pass(self, sums: Tensor | None) -> None:
        """Bring the sums of this rank's first pass; None: it has none."""
        if sums is None and self.alone:
            return
        gathered = self._ranks.gather(no_threshold_sums(self._ranks.device) if sums is None else sums)
        self._thresholds.first_pass(gathered.rows)

    def meet(
        self,
        sums: Tensor | None,
        *,
        failures: int,
        desired: ControlSnapshot | None,
        action: Action | None = None,
    ) -> None:
        """Start sending. Nothing is waited for.

        Args:
            sums: this rank's vector of the step; None: measuring it failed.
            failures: on this rank so far.
            desired: the newest control this rank was asked for; rank 0's counts.
            action: decided for the next step; rank 0's counts.
        """
        self._told_action = action
        try:
            gathered = self._ranks.gather(
                failed_rank_vector(failures, self._ranks.device, alone=False) if sums is None else sums
            )
            self._thresholds.step_closed(lambda: gathered.rows()[:, THRESHOLD_COLUMNS])
            self._basis.means_closed(lambda: gathered.rows()[:, MEANS_COLUMNS])
            self._step = gathered
        finally:
            if self._relay is not None:
                self._relay.tell(desired, time.time(), b"" if action is None else action.encode())

    def numbers_of_ranks(self) -> Callable[[], Sequence[Sequence[float]]] | None:
        """On rank 0, which reports them: gives the vectors of the last meeting, on a thread that may wait."""
        return self._step.numbers_later(ADDITIVE_FROM) if self._step is not None and self._ranks.rank == 0 else None

    @property
    def told_action(self) -> Action | None:
        """What rank 0 of several told for the next step, on rank 0 itself."""
        return self._told_action

    def resume(self, mine: ResumeWord, desired: ControlSnapshot | None) -> tuple[ResumeWord, ...]:
        """Tell the others what this rank goes on from, and hear what they do. Waits; every rank comes here.

        Args:
            desired: the newest control this rank was asked for; rank 0's counts, as at every meeting.
        """
        words = tuple(self._ranks.agree(mine))
        if self._relay is not None and not any(word.error for word in words):
            self._relay.tell(desired, time.time(), words[0].action)
            self._told_action = Action.decode(words[0].action) if words[0].action else None
        return words

    def settle(self, seconds: float) -> None:
        """Wait until the last meeting is over, for at most so long."""
        if self._step is not None:
            self._step.arrives_within(seconds)
