"""What a run page reads, part by part, and what is said where one part could not be read."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from isentrope_dashboard.errors import ApiError, ApiTimeoutError

METHODS: Final = "methods"
LAW: Final = "law"
LABELS: Final = "labels"
LATEST: Final = "latest"
GAPS: Final = "gaps"
ALERTS: Final = "alerts"
TOKENS: Final = "tokens"
SERIES: Final = "series"
RECENT: Final = "recent"
HISTOGRAMS: Final = "histograms"
CONTROL: Final = "control"
HISTORY: Final = "history"
RUNS: Final = "runs"

_NAMES: Final = {
    METHODS: "The methods' parameters",
    LAW: "The law",
    LABELS: "What the newest report says",
    LATEST: "The newest value of every metric",
    GAPS: "What the record lacks",
    ALERTS: "The alerts",
    TOKENS: "The tokens",
    SERIES: "The entropy over steps",
    RECENT: "The last steps",
    HISTOGRAMS: "The score's distribution",
    CONTROL: "The control",
    HISTORY: "The control history",
    RUNS: "The other runs",
}
ONLY_AT_THE_BEGINNING: Final = frozenset({SERIES, RECENT, CONTROL, HISTORY})
"""Read when a page begins to follow a run; afterwards events carry it."""
_SIGNED_OUT = 401

_Answer = TypeVar("_Answer")


class Reading:
    """The parts that are read at one moment, each of which may fail alone."""

    def __init__(self) -> None:
        self.unread: dict[str, str] = {}
        """Part -> one sentence that says what is missing, and why."""

    async def part(self, name: str, read: Coroutine[Any, Any, _Answer], otherwise: _Answer) -> _Answer:
        """What was read, or `otherwise`.

        Raises:
            ApiError: nobody is signed in, so that nothing can be read.
            ApiUnreachableError: the server is gone.
        """
        try:
            return await read
        except (ApiError, ApiTimeoutError) as error:
            if isinstance(error, ApiError) and error.status == _SIGNED_OUT:
                raise
            self.unread[name] = f"{_NAMES[name]} could not be read: {error}"
            return otherwise
