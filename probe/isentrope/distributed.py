"""The ranks of a run: each one's sums reach all by all-gather, and rank 0's control reaches all by
broadcast.

torch.distributed is torch itself and not another trainer's library, so this file lies beside
`probe.py` and not in `integrations/`. A process on its own never touches it.

- `Ranks`, `ManyRanks`: the collectives of a process on its own, and of a process group
- `RankExchange`: what the ranks exchange once a step

Sums are gathered, not reduced: centred sums can't be added up, their exact merge needs every rank's
own; gathering does no arithmetic, so each rank merges the same bits in the same order; and it takes
one collective of some 130 kB. Nothing here waits for the device, and the host waits only where a
result is used."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from isentrope.global_step import (
    ADDITIVE_FROM,
    centre_moments,
    failed_rank_vector,
    threshold_moments,
)
from isentrope.guard import SafeLog
from isentrope.methods.basis import SelectionBasis
from isentrope.statistics.moments import no_threshold_sums
from isentrope_wire.codec import decode_control, encode_control
from isentrope_wire.hold_action import Action
from isentrope_wire.reports import ControlSnapshot

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

logger = SafeLog(__name__)

SLOW_START_SECONDS = 30.0
"""After so long a wait for other ranks to build their probe, the log states what is waited for."""

_T = TypeVar("_T")


class Gathered:
    """One vector per rank, being gathered."""

    def __init__(self, rows: Tensor, work: Work | None = None) -> None:
        """`rows` [ranks, numbers] are filled in by `work`, the collective; None: by the device's
        own queue, or they are complete."""
        self._rows = rows
        self._work = work
        self._copied: torch.cuda.Event | None = None

    def rows(self) -> Tensor:
        """Wait for the vectors, [ranks, numbers] in the ranks' order; RuntimeError: a rank is
        gone."""
        if self._work is not None:
            self._work.wait()
        return self._rows

    def numbers_later(self, additive_from: int) -> Callable[[], list[list[float]]]:
        """Start the copy to the host; what is returned gives the numbers, on a thread that may
        wait. The columns from `additive_from` on are added up over the ranks, and end the first row
        alone."""
        ranks, width = len(self._rows), min(additive_from, self._rows.shape[1])

        def stack_each_and_all(rows: Tensor) -> Tensor:
            return torch.cat([rows[:, width:].sum(0), rows[:, :width].reshape(-1)])

        def rows_of_numbers(numbers: list[float]) -> list[list[float]]:
            additive = numbers[: len(numbers) - ranks * width]
            own = numbers[len(additive) :]
            return [
                own[rank * width : (rank + 1) * width] + (additive if rank == 0 else [])
                for rank in range(ranks)
            ]

        if self._rows.device.type == "cpu":
            return lambda: rows_of_numbers(stack_each_and_all(self.rows()).tolist())
        vector = host = stack_each_and_all(self._rows)
        if vector.device.type == "cuda":
            # The training thread must not wait: pinned, and read once the event has come.
            host = torch.empty(vector.shape, dtype=vector.dtype, device="cpu", pin_memory=True)
            host.copy_(vector, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(vector.device))

        def numbers() -> list[list[float]]:
            if self._copied is not None:
                self._copied.synchronize()
            return rows_of_numbers(host.tolist())

        return numbers

    def arrives_within(self, seconds: float) -> bool:
        """Whether the vectors arrive in this time: a rank may have died."""
        end = time.monotonic() + seconds
        while (self._work and not self._work.is_completed()) or (
            self._copied and not self._copied.query()
        ):
            if time.monotonic() >= end:
                return False
            time.sleep(0.01)
        return True


class Ranks:
    """The ranks that make the steps of a run together; here a process on its own. Every rank calls
    each method, in the same order."""

    rank = 0
    size = 1
    device: torch.device | None = None
    """Where vectors to be gathered must lie; None: anywhere."""

    def gather(self, vector: Tensor) -> Gathered:
        """Start an all-gather of one vector, of the same length on all ranks."""
        return Gathered(vector.unsqueeze(0))

    def gather_objects(self, mine: _T) -> list[_T]:
        """Wait for every rank's object, in the ranks' order. For the start of a run."""
        return [mine]

    def broadcast(self, message: bytes, size: int) -> Callable[[], bytes]:
        """Start a broadcast of rank 0's message of `size` bytes; the function returned waits for
        it."""
        return lambda: message


class ManyRanks(Ranks):
    """The members of a torch.distributed group.

    Tensors on an accelerator travel over the training's own group: a second communicator would cost
    device memory, and two in flight can wait for each other. Everything else travels over a gloo
    group of its own, apart from the training's messages.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        """`group` is whose members take part, each of which must build one; None: all processes."""
        known = _known(group)
        self.rank = dist.get_rank(known)
        self.size = dist.get_world_size(known)
        self.device = _device_of(known)
        members = dist.get_process_group_ranks(known)
        self._first = members[0]
        self._group = group
        with _log_a_long_wait(self.size):
            self._host_group = dist.new_group(
                members, backend="gloo", timeout=_timeout_of(known), use_local_synchronization=True
            )

    def gather(self, vector: Tensor) -> Gathered:
        # Needed with gloo as the only backend beside an accelerator: this copy waits for the
        # device.
        vector = vector.to(self.device)
        # One name up to torch 2.12, the other from there on.
        all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gathered = vector.new_empty(self.size * vector.numel())
        rows = gathered.view(self.size, -1)
        if vector.device.type != "cpu":
            all_gather(gathered, vector, group=_known(self._group))
            return Gathered(rows)
        return Gathered(
            rows, all_gather(gathered, vector, group=_known(self._host_group), async_op=True)
        )

    def gather_objects(self, mine: _T) -> list[_T]:
        objects: list[_T | None] = [None] * self.size
        with _log_a_long_wait(self.size):
            dist.all_gather_object(objects, mine, group=_known(self._host_group))
        return objects  # type: ignore[return-value]

    def broadcast(self, message: bytes, size: int) -> Callable[[], bytes]:
        buffer = torch.zeros(size, dtype=torch.uint8, device="cpu")
        if self.rank == 0:
            buffer[: len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        work = dist.broadcast(
            buffer, src=self._first, group=_known(self._host_group), async_op=True
        )

        def received() -> bytes:
            if work is not None:
                work.wait()
            return bytes(buffer.tolist())

        return received


def ranks_of(group: ProcessGroup | None) -> Ranks | None:
    """The ranks this process trains with: of `group`, else of the default one; None where there is
    no process group."""
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return None
    if dist.get_world_size(_known(group)) > 1:
        return ManyRanks(group)
    return Ranks()


def _known(group: ProcessGroup | None) -> ProcessGroup | None:
    """The group that torch knows. slime hands out wrappers, whose `group` is another after each
    rollout."""
    return getattr(group, "group", group)


def _timeout_of(group: ProcessGroup | None) -> timedelta | None:
    """The timeout of the run's own group, for rank 0 may evaluate or save for long; None, torch's
    default, if unknown."""
    members = group or dist.group.WORLD
    options = None
    if members is not None:
        options = getattr(members._get_backend(_device_of(group)), "options", None)
    timeout: timedelta | None = getattr(options, "_timeout", None)
    return timeout


def _device_of(group: ProcessGroup | None) -> torch.device:
    """Where the group's own tensors lie: on this process's accelerator if the group has a backend
    for it."""
    for part in dist.get_backend_config(group).split(","):
        device_type, _, backend = part.partition(":")
        if device_type != "cpu" and backend not in ("gloo", "mpi", "fake", ""):
            accelerator = getattr(torch, device_type, None)
            if accelerator is not None and accelerator.is_available():
                return torch.device(device_type, accelerator.current_device())
    return torch.device("cpu")


@contextmanager
def _log_a_long_wait(size: int) -> Iterator[None]:
    reminder = threading.Timer(
        SLOW_START_SECONDS,
        logger.warning,
        (
            (
                "Waiting for all %d ranks to build their probe: every rank of the process group"
                " must, not rank 0 alone."
            ),
            size,
        ),
    )
    reminder.daemon = True
    reminder.start()
    try:
        yield
    finally:
        reminder.cancel()


class ResumeMessage(NamedTuple):
    """What a rank continues from after a checkpoint."""

    error: str = ""
    """Why it can't; empty when it can."""
    state: Mapping[str, Any] | None = None
    """State of rank 0, which all ranks take over."""
    action: Action | None = None
    """Action that rank 0 decided for the next step."""


class StepStart(NamedTuple):
    """What all ranks know when a step begins. Of several ranks, rank 0's when the last step was
    closed."""

    requested: ControlSnapshot | None
    """The newest requested control."""
    now: float
    """Seconds since the Unix epoch."""
    action: Action | None = None
    """What was decided to hold an entropy; None: nothing, or the process is on its own and has not
    decided yet."""
    has_gated: bool | None = None
    """Whether tokens of any rank have passed the gate, as rank 0 knows it; None: not known yet, or
    the process is on its own."""


FIRST_CAPACITY = 4096
"""Bytes of the first broadcast; a control is a tenth of it."""

LONGEST_ACTION = 2048
"""Bytes; an action has room in every broadcast."""

_HEADER = struct.Struct("<dQQb")
"""Rank 0's clock in seconds since the Unix epoch, how many bytes its action and its control have,
and whether tokens have passed the gate: 1, 0, or -1 where that is not known."""


class RankExchange:
    """What the ranks exchange once a step: sums by all-gather; rank 0's control, clock and hold
    action by broadcast.

    Both start when a step is closed; the broadcast is read when the next one begins. A rank that
    skipped a collective would make the others wait forever, so `Probe.step` calls `close_step` in a
    `finally`, without sums where measuring failed. A process on its own exchanges nothing.

    All ranks must know the length of a broadcast before it comes. So the length is agreed in
    advance, and a control that is too long for it travels one step later, in a message that is long
    enough."""

    def __init__(self, ranks: Ranks, basis: SelectionBasis) -> None:
        self._ranks = ranks
        self._basis = basis
        self.alone = ranks.size == 1
        self.leads = ranks.rank == 0
        """Whether this rank's control and decisions count for all."""
        self.next_action: Action | None = None
        """What rank 0 of several broadcast for the next step; set on rank 0 alone."""
        self._sums: Gathered | None = None
        self._capacity = FIRST_CAPACITY
        self._receive: Callable[[], bytes] | None = None
        self._requested: ControlSnapshot | None = None

    @property
    def device(self) -> torch.device | None:
        """Where the vector of a rank without tokens must lie."""
        return self._ranks.device

    def begin_step(self, requested: ControlSnapshot | None) -> StepStart:
        """Receive what counts for the step that begins; the control requested on this rank counts
        when the process is on its own. RuntimeError: rank 0 is gone."""
        if self.alone:
            return StepStart(requested, time.time())
        if self._receive is None:
            return StepStart(None, time.time())
        receive, self._receive = self._receive, None
        message = receive()
        now, action_bytes, control_bytes, gated = _HEADER.unpack_from(message)
        control_at = _HEADER.size + action_bytes
        end = control_at + control_bytes
        if end <= self._capacity:
            if control_bytes:
                self._requested = decode_control(message[control_at:end])
            else:
                self._requested = None
        else:
            self._capacity = 2 * end
        action = None
        if action_bytes:
            action = Action.decode(message[_HEADER.size : control_at])
        has_gated = None if gated < 0 else bool(gated)
        return StepStart(self._requested, now, action, has_gated)

    def first_pass(self, sums: Tensor | None) -> None:
        """Gather the sums of a first pass; None: this rank has none."""
        if sums is None and self.alone:
            return
        gathered = self._ranks.gather(
            no_threshold_sums(self._ranks.device) if sums is None else sums
        )
        self._basis.first_pass(gathered.rows)

    def close_step(
        self,
        sums: Tensor | Callable[[], Tensor] | None,
        *,
        failures: int,
        requested: ControlSnapshot | None,
        action: Action | None = None,
        has_gated: bool | None = None,
    ) -> None:
        """Start the exchange, and wait for nothing. `sums` is this rank's vector of the step, None:
        measuring it failed; of a process on its own a function, which gives what the next step
        needs of it; of control, action and `has_gated` rank 0's count."""
        self.next_action = action
        if callable(sums):
            own = sums
            self._basis.sums_closed(
                lambda: threshold_moments(own().unsqueeze(0)),
                lambda: centre_moments(own().unsqueeze(0)),
                is_own=True,
            )
            return
        try:
            gathered = self._ranks.gather(
                failed_rank_vector(failures, self._ranks.device) if sums is None else sums
            )
            self._basis.sums_closed(
                lambda: threshold_moments(gathered.rows()), lambda: centre_moments(gathered.rows())
            )
            self._sums = gathered
        finally:
            if not self.alone:
                self._broadcast(requested, action, has_gated)

    def numbers_of_ranks(self) -> Callable[[], Sequence[Sequence[float]]] | None:
        """On rank 0, which reports them: a function that gives the last step's vectors, on a thread
        that may wait."""
        if self._sums is not None and self.leads:
            return self._sums.numbers_later(ADDITIVE_FROM)
        return None

    def resume(
        self, mine: ResumeMessage, requested: ControlSnapshot | None
    ) -> tuple[ResumeMessage, ...]:
        """Wait for every rank's message, in their order. Of the requested controls rank 0's counts,
        as when a step is closed."""
        messages = tuple(self._ranks.gather_objects(mine))
        if not self.alone and not any(message.error for message in messages):
            self._broadcast(requested, messages[0].action)
            self.next_action = messages[0].action
        return messages

    def settle(self, seconds: float) -> None:
        """Wait until the last step's sums have arrived."""
        if self._sums is not None:
            self._sums.arrives_within(seconds)

    def _broadcast(
        self,
        requested: ControlSnapshot | None,
        decided: Action | None,
        has_gated: bool | None = None,
    ) -> None:
        if decided is None:
            action = b""
        else:
            action = decided.encode()
        assert len(action) <= LONGEST_ACTION, "an action must fit into the first broadcast"
        if requested is None:
            control = b""
        else:
            control = encode_control(requested)
        fits = _HEADER.size + len(action) + len(control) <= self._capacity
        gated = -1 if has_gated is None else int(has_gated)
        message = (
            _HEADER.pack(time.time(), len(action), len(control), gated)
            + action
            + (control if fits else b"")
        )
        self._receive = self._ranks.broadcast(message, self._capacity)
