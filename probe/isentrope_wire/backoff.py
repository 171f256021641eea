"""Growing pauses between attempts, never in step with anybody else's."""

from __future__ import annotations

import random


class Backoff:
    """Pauses of 0.5 s, 1 s, 2 s ... 30 s, each shortened by up to half at random.

    Without the chance, all shippers of a cluster would come back to a restarted server in the same
    instant."""

    def __init__(self, first_seconds: float = 0.5, longest_seconds: float = 30.0) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._next_seconds = first_seconds

    def next_pause_seconds(self) -> float:
        """How long to wait now; the one after is twice as long."""
        pause = self._next_seconds
        self._next_seconds = min(2 * pause, self._longest_seconds)
        return pause * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt succeeded: begin with the short pause again."""
        self._next_seconds = self._first_seconds
