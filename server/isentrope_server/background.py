"""Work in the background: a piece that fails is logged with its reason, and what comes after it is done all the same.

A task that ended in an error would say nothing until the server stops, and what it did would not be done any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
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
