"""Who was not let in: counted, and told in the log a line at a time, however many try."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from isentrope_server.security.open_streams import Door

_log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0


class Reason(StrEnum):
    """Why somebody was not let in."""

    UNAUTHENTICATED = "unauthenticated"
    """No token or session, or none in force."""
    FORBIDDEN = "forbidden"
    """A token that may not do this, or a browser that another site's page made ask for it."""


class Refusals:
    """Every refusal of both doors. Lives on one event loop."""

    def __init__(self, count: Callable[[Door, Reason], None]) -> None:
        """
        Args:
            count: called for each.
        """
        self._count = count
        self._untold: Counter[tuple[Door, Reason]] = Counter()
        self._last = ""
        self._pause: asyncio.TimerHandle | None = None

    def note(self, door: Door, reason: Reason, what: str) -> None:
        """
        Args:
            what: what was asked for and from where, as the log may show it: without a token.
        """
        self._count(door, reason)
        self._untold[door, reason] += 1
        self._last = what
        if self._pause is None:
            self._tell()

    def _tell(self) -> None:
        """The first at once; those of the seconds after it together, when they are over."""
        self._pause = None
        if not self._untold:
            return
        counts = ", ".join(f"{count} {door} {reason}" for (door, reason), count in sorted(self._untold.items()))
        _log.warning("Requests were refused (%s), the last of them %s.", counts, self._last)
        self._untold.clear()
        self._pause = asyncio.get_running_loop().call_later(SECONDS_BETWEEN_LINES, self._tell)
