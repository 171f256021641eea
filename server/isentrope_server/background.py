"""Work in the background: failures are logged and retried.

A task that ended with an exception would report nothing until the server stops. Work that keeps failing is tried less
and less often: a stream whose reports can't be packed would otherwise be read, and its traceback logged, every two
seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.store.database import in_a_line
from isentrope_server.store.writer import WriterStopped
from isentrope_wire.backoff import Backoff

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


async def attempt(work: Coroutine[Any, Any, _T], *, what: str) -> _T | None:
    """Await work; log a failure. Cancelling the caller cancels the work.

    Args:
        what: beginning of the log line: "Packing" becomes "Packing failed ...".

    Returns:
        The work's result; None after a failure.
    """
    outcome = await outcome_of(work)
    if not isinstance(outcome, BaseException):
        return outcome
    log_failure(outcome, what=what, next_try="in a moment")
    return None


async def outcome_of(work: Coroutine[Any, Any, _T]) -> _T | BaseException:
    """Return what work returned or raised. Cancelling the caller cancels the work."""
    outcomes: tuple[_T | BaseException] = await asyncio.gather(work, return_exceptions=True)
    return outcomes[0]


def log_failure(failure: BaseException, *, what: str, next_try: str) -> None:
    """Log a failure, with its traceback where it was not expected."""
    if isinstance(failure, SQLAlchemyError | WriterStopped):
        _log.error("%s failed, next try %s: %s", what, next_try, in_a_line(failure))
    else:
        # Unexpected: the traceback is needed.
        _log.error("%s failed, next try %s: %r", what, next_try, failure, exc_info=failure)


LONGEST_SECONDS = 3_600.0


@dataclass(slots=True)
class _Failures:
    """Failures of one piece of work since it last succeeded."""

    backoff: Backoff
    until: float = 0.0
    logged: set[str] = field(default_factory=set)


class RetryPauses:
    """Growing pauses for pieces of work that keep failing, by key; each reason is logged once."""

    def __init__(self, first_seconds: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            first_seconds: pause after the first failure; each further one is twice as long, at most an hour.
            clock: monotonic seconds.
        """
        self._first_seconds = first_seconds
        self._clock = clock
        self._by_key: dict[int, _Failures] = {}

    def is_paused(self, key: int) -> bool:
        """Whether the work failed and should not be tried again yet."""
        failures = self._by_key.get(key)
        return failures is not None and self._clock() < failures.until

    async def attempt(self, key: int, work: Coroutine[Any, Any, _T], *, what: str) -> _T | None:
        """Await work; log a failure, unless it was logged before.

        Args:
            key: of the work.
            what: beginning of the log line: "Packing" becomes "Packing failed ...".

        Returns:
            The work's result; None after a failure.
        """
        outcome = await outcome_of(work)
        if not isinstance(outcome, BaseException):
            self._by_key.pop(key, None)
            return outcome
        failures = self._by_key.setdefault(key, _Failures(Backoff(self._first_seconds, LONGEST_SECONDS)))
        pause = failures.backoff.next_pause_seconds()
        failures.until = self._clock() + pause
        reason = f"{type(outcome).__name__}: {outcome}"
        if reason not in failures.logged:
            failures.logged.add(reason)
            log_failure(outcome, what=what, next_try=f"in {pause:.1f} s, then less often and without a log line")
        return None

    def keep_only(self, keys: Collection[int]) -> None:
        self._by_key = {key: failures for key, failures in self._by_key.items() if key in keys}
