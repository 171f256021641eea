"""Work in the background: a piece that fails is logged with its reason, and what comes after it is done all the same.

A task that ended in an error would say nothing until the server stops, and what it did would not be done any more.

Setbacks: what fails again and again is tried less and less often, and each reason is told once.

A stream whose reports can't be packed would otherwise be read, and its traceback written, every two seconds for ever.
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

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


async def attempt(work: Coroutine[Any, Any, _T], *, what: str) -> _T | None:
    """Do the work to its end; None: it failed, and the log says why. Cancelling the caller cancels the work.

    Args:
        what: the work as a log line begins: "Packing" becomes "Packing stopped half-way ...".
    """
    outcome = await outcome_of(work)
    if not isinstance(outcome, BaseException):
        return outcome
    log_failure(outcome, what=what, next_try="in a moment")
    return None


async def outcome_of(work: Coroutine[Any, Any, _T]) -> _T | BaseException:
    """What the work returned or raised. Cancelling the caller cancels the work."""
    outcomes: tuple[_T | BaseException] = await asyncio.gather(work, return_exceptions=True)
    return outcomes[0]


def log_failure(failure: BaseException, *, what: str, next_try: str) -> None:
    if isinstance(failure, SQLAlchemyError | WriterStopped):
        _log.error("%s stopped half-way, next try %s: %s", what, next_try, in_a_line(failure))
    else:
        # Nobody foresaw it: only the traceback says where to look.
        _log.error("%s stopped half-way, next try %s: %r", what, next_try, failure, exc_info=failure)


LONGEST_SECONDS = 3_600.0


@dataclass(slots=True)
class _Setback:
    """How one piece of work has failed since it last succeeded."""

    seconds: float = 0.0
    until: float = 0.0
    told: set[str] = field(default_factory=set)


class Setbacks:
    """Per piece of work, named by a key: until when it is left alone."""

    def __init__(self, first_seconds: float = 2.0, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            first_seconds: how long work that failed is left alone; each further time twice as long, at most an hour.
            clock: seconds that never go back.
        """
        self._first_seconds = first_seconds
        self._clock = clock
        self._by_key: dict[int, _Setback] = {}

    def is_left_alone(self, key: int) -> bool:
        setback = self._by_key.get(key)
        return setback is not None and self._clock() < setback.until

    async def attempt(self, key: int, work: Coroutine[Any, Any, _T], *, what: str) -> _T | None:
        """Do the work to its end; None: it failed, and the log says why unless it said the same before.

        Args:
            what: the work as a log line begins: "Packing" becomes "Packing stopped half-way ...".
        """
        outcome = await outcome_of(work)
        if not isinstance(outcome, BaseException):
            self._by_key.pop(key, None)
            return outcome
        setback = self._by_key.setdefault(key, _Setback())
        setback.seconds = min(max(2 * setback.seconds, self._first_seconds), LONGEST_SECONDS)
        setback.until = self._clock() + setback.seconds
        reason = f"{type(outcome).__name__}: {outcome}"
        if reason not in setback.told:
            setback.told.add(reason)
            log_failure(
                outcome, what=what, next_try=f"in {setback.seconds:g} s, then more and more rarely without a word"
            )
        return None

    def forget_all_but(self, keys: Collection[int]) -> None:
        """Of work that is no longer there nothing is kept."""
        self._by_key = {key: setback for key, setback in self._by_key.items() if key in keys}
