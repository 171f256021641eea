"""The server's clock, seen from here: a control's time to live must not depend on whose clock is right."""

from __future__ import annotations

import time

MOST_DISAGREEMENT_SECONDS = 60.0
"""A heartbeat that is later than this says that the server's clock was set, or that this process was frozen."""


class ServerClock:
    """Turns the server's times into this machine's.

    A change must not fire late because a message was: the difference of the clocks is taken from when a question was
    asked, not from when its answer came, so an error makes a time to live shorter, by a round trip at most.
    """

    def __init__(self) -> None:
        self._ahead_seconds = 0.0
        """How far this machine's clock is ahead of the server's."""
        self._set_at = _wall_minus_monotonic()

    def set(self, *, asked_at: float, server_time: float) -> None:
        """Take the server's time from the answer to a question.

        Args:
            asked_at: this machine's time when it was asked, in seconds since the Unix epoch.
            server_time: the server's when it answered, likewise.
        """
        self._ahead_seconds = asked_at - server_time
        self._set_at = _wall_minus_monotonic()

    def here(self, server_time: float) -> float:
        """The moment as this machine's clock names it now."""
        jumped_seconds = _wall_minus_monotonic() - self._set_at
        return server_time + self._ahead_seconds + jumped_seconds

    def disagrees(self, server_time: float) -> bool:
        """Whether a time just heard from the server is far from what this clock expects."""
        return abs(time.time() - self.here(server_time)) > MOST_DISAGREEMENT_SECONDS


def _wall_minus_monotonic() -> float:
    """Constant, until somebody sets this machine's clock."""
    return time.time() - time.monotonic()
