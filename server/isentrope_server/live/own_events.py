"""Events this server committed itself, kept until they arrive as news: they need not be read from the store again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from isentrope_server.store.events import Event

EVENTS_KEPT = 4_096
"""Of all batches together. What fell out is read from the store, as another server's is."""


class OwnEvents:
    """By batch and run. Kept on the writer's thread, taken on the one that receives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: OrderedDict[tuple[int, str], Sequence[Event]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """How many events are kept."""
        return self._count

    def keep(self, batch: int, run_id: str, events: Sequence[Event]) -> None:
        """The oldest batches give way: their COMMIT failed, or nobody was told of them in time."""
        with self._lock:
            self._batches[batch, run_id] = events
            self._count += len(events)
            while self._count > EVENTS_KEPT:
                _, given_up = self._batches.popitem(last=False)
                self._count -= len(given_up)

    def take(self, batch: int, run_id: str) -> Sequence[Event] | None:
        """None: they are no longer kept, or never were."""
        with self._lock:
            events = self._batches.pop((batch, run_id), None)
            self._count -= len(events or ())
        return events

    def forget(self) -> None:
        """Nobody will be told of those that are waiting."""
        with self._lock:
            self._batches.clear()
            self._count = 0
