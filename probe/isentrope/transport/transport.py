"""What a probe needs of a transport, and a transport in memory, for tests and for mode
`disabled`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from isentrope_wire import metrics
from isentrope_wire.reports import ControlSnapshot, RunFinished, StepReport

Message = StepReport | RunFinished
MakeMessage = Callable[[], Message]
"""Builds a message. Runs on the writer thread, where it may wait for a copy from the device."""


@dataclass(frozen=True, slots=True)
class ReadyMessage:
    """A `MakeMessage` with nothing left to build. As the last one of a run it is delivered even if
    those before it are not."""

    message: Message

    def __call__(self) -> Message:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportStatistics:
    """Counts of records since the transport was opened."""

    accepted: int = 0
    """Taken by `put`."""
    dropped: int = 0
    """Refused by `put`, or lost later because building failed or the disk was full. The spool has a
    gap in their place."""
    spooled: int = 0
    """Written to the spool; the record of the run's start and the records in gaps are included."""
    acknowledged: int = 0
    """Spooled reports that the server has acknowledged. `spooled - acknowledged` are still to be
    delivered."""
    left_out: int = 0
    """Reports that were written without their tokens or histograms, because the disk was full."""
    lag_seconds: float = 0.0
    """How long records on disk have waited for the server's acknowledgement; 0 when none does."""

    def scalars(self) -> dict[str, float]:
        """The counts as metrics of a report. Every report has them, so that a run's page shows
        whether it is delivered."""
        found: dict[str, float] = {metrics.PROBE_DROPPED_REPORTS: float(self.dropped)}
        if self.spooled:
            found |= {
                metrics.PROBE_ACCEPTED_REPORTS: float(self.accepted),
                metrics.PROBE_SPOOLED_RECORDS: float(self.spooled),
                metrics.PROBE_ACKNOWLEDGED_RECORDS: float(self.acknowledged),
                metrics.PROBE_DELIVERY_LAG_SECONDS: self.lag_seconds,
            }
        if self.left_out:
            found[metrics.PROBE_LEFT_OUT_REPORTS] = float(self.left_out)
        return found


class Transport(Protocol):
    """Takes reports from the training loop; never blocks it and never raises into it."""

    def put(self, make: MakeMessage) -> bool:
        """Queue one message.

        Returns:
            False where the queue is full or the transport is closed; the message is counted as
            dropped.
        """
        ...

    def requested_control(self) -> ControlSnapshot | None:
        """The newest control that was requested, None before there is one. Costs an attribute
        read."""
        ...

    def statistics(self) -> TransportStatistics:
        """The counts now. From any thread."""
        ...

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Write what fits in the time. What is spooled stays on disk, and is delivered without this
        process."""
        ...


class InMemoryTransport:
    """Builds each message at once, on the caller's thread, and lets its exceptions through, for
    tests."""

    def __init__(self, *, keep_messages: bool = True) -> None:
        """
        Args:
            keep_messages: False discards every message without building it, which could wait for
                the device.
        """
        self.messages: list[Message] = []
        self.closed = False
        self._keep_messages = keep_messages
        self._requested: ControlSnapshot | None = None
        self._accepted = 0
        self._dropped = 0

    def put(self, make: MakeMessage) -> bool:
        if self.closed:
            self._dropped += 1
            return False
        if self._keep_messages:
            self.messages.append(make())
        self._accepted += 1
        return True

    def set_control(self, snapshot: ControlSnapshot | None) -> None:
        """Set the requested control, as a server would."""
        self._requested = snapshot

    def requested_control(self) -> ControlSnapshot | None:
        return self._requested

    def statistics(self) -> TransportStatistics:
        return TransportStatistics(accepted=self._accepted, dropped=self._dropped)

    def close(self, timeout_seconds: float = 1.0) -> None:
        self.closed = True
