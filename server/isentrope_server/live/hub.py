"""One bounded queue per listener. A slow listener loses the oldest events; it never slows the writer down."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from isentrope_server.store.writer import ControlChanged, Event, RunChanged, RunEvent, TokensChanged

QUEUE_LENGTH = 1_024


class Listener:
    """The events of one run, from subscription on."""

    def __init__(self, kinds: tuple[type[RunEvent], ...] = ()) -> None:
        """
        Args:
            kinds: of events to receive; empty: all.
        """
        self._kinds = kinds
        self._queue: asyncio.Queue[RunEvent | None] = asyncio.Queue(QUEUE_LENGTH)
        self.dropped = 0
        """Events this listener lost because its queue was full; the store still has them."""

    def follows(self, kind: type[RunEvent]) -> bool:
        """Whether it receives events of this kind and no other."""
        return self._kinds == (kind,)

    def receives(self, kind: type[RunEvent]) -> bool:
        """Whether events of this kind are queued."""
        return not self._kinds or kind in self._kinds

    def put(self, event: RunEvent) -> None:
        """Queue an event of the kinds this listener receives."""
        if self.receives(type(event)):
            self.wake(event)

    def wake(self, event: RunEvent | None) -> None:
        """Queue an event of any kind; None only wakes the listener."""
        if self._queue.full():
            self._queue.get_nowait()
            self.dropped += 1
        self._queue.put_nowait(event)

    async def get(self, timeout_seconds: float) -> RunEvent | None:
        """Return the next event; None when none came in time or the server stops."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._queue.get()
        except TimeoutError:
            return None


class Hub:
    """The listeners of all runs, on one event loop; `publish` may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners: dict[str, set[Listener]] = defaultdict(set)
        self.closing = asyncio.Event()
        """Set when the server stops: endless responses end."""

    @property
    def listener_count(self) -> int:
        return sum(len(listeners) for listeners in self._listeners.values())

    def is_listened_to(self, run_id: str, kind: type[RunEvent] | None = None) -> bool:
        """Whether a run has listeners; a listener that subscribes later reads the store first.

        Args:
            kind: of events that a listener must receive; None: any.
        """
        # Copied at once: the event loop may add a listener meanwhile.
        of_run = tuple(self._listeners.get(run_id, ()))
        return any(kind is None or listener.receives(kind) for listener in of_run)

    def is_watched(self, run_id: str) -> bool:
        """Whether a shipper of the run has a Watch stream open here."""
        return any(listener.follows(ControlChanged) for listener in self._listeners.get(run_id, ()))

    def publish(self, events: Sequence[Event]) -> None:
        """Send committed events to the listeners of their runs."""
        self._loop.call_soon_threadsafe(self._deliver, events)

    def lost_touch(self) -> None:
        """Make every listener read the store, because events may have been missed. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._deliver_loss)

    @contextmanager
    def listening(self, run_id: str, *kinds: type[RunEvent]) -> Iterator[Listener]:
        """Subscribe to a run's events. Read the store after subscribing, so that nothing is missed in between.

        Args:
            kinds: of events to receive; empty: all.
        """
        listener = Listener(kinds)
        self._listeners[run_id].add(listener)
        try:
            yield listener
        finally:
            self._listeners[run_id].discard(listener)
            if not self._listeners[run_id]:
                del self._listeners[run_id]

    def close(self) -> None:
        """Wake every listener because the server stops."""
        self.closing.set()
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.wake(None)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TokensChanged):
                continue  # Tokens belong to no run; `TokenBook` reads them itself.
            for listener in self._listeners.get(event.run_id, ()):
                listener.put(event)

    def _deliver_loss(self) -> None:
        for run_id, listeners in self._listeners.items():
            for listener in listeners:
                listener.dropped += 1
                listener.wake(RunChanged(run_id=run_id))
