"""What no event carries is read anew beside the stream, so that a slow answer holds no step back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from isentrope_dashboard.pages.snapshot import Reread


class Rereading:
    """Reads part of a page every few seconds while steps come, one reading at a time.

    Args:
        seconds: the pause between two readings.
        step: the newest one that is known already.
    """

    def __init__(self, seconds: float, step: int) -> None:
        self._seconds = seconds
        self._step = step
        self._read_at = time.monotonic()
        self._task: asyncio.Task[Reread] | None = None

    def begin_if_due(self, step: int, read: Callable[[], Coroutine[Any, Any, Reread]]) -> None:
        """Begin unless one is under way, the pause is not over, or no step came."""
        if self._task is None and step != self._step and time.monotonic() - self._read_at >= self._seconds:
            self._step = step
            self._task = asyncio.create_task(read())

    def take(self) -> Reread | None:
        """What was read, once; None while nothing is there.

        Raises:
            ApiError, ApiUnreachableError: as the reading did.
        """
        if self._task is None or not self._task.done():
            return None
        task, self._task, self._read_at = self._task, None, time.monotonic()
        return task.result()

    async def stop(self) -> None:
        """End a reading that is under way; the page is gone or shows something else."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
