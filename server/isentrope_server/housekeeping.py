"""Work in the background: packing reports, removing rows, returning space, and keeping tokens current.

The writer gets one small piece at a time, and requests come first: after each piece there is a pause, longer while
other work is queued. Of servers that share a database one does it at a time. Tokens are read again every second,
because other servers may have revoked some, and their last uses are stored every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.backend import Backend
from isentrope_server.background import RetryPauses, attempt
from isentrope_server.store import access, database, removal
from isentrope_server.store.removal import OverdueRun, Retention
from isentrope_server.store.reports import packing
from isentrope_server.store.reports.packing import FullStream, RowsOvertaken
from isentrope_server.store.rows import ROW_SIZES, RowSizes
from isentrope_server.store.writer import RunChanged, Transaction, WriterStopped

_T = TypeVar("_T")
_R = TypeVar("_R")
_log = logging.getLogger(__name__)

_REST_WHILE_OTHERS_WAIT = 4.0
"""Pause divided by work while other work is queued: at most a fifth of one processor."""
_SECONDS_BETWEEN_RETENTIONS = 60.0
_MOST_DRIFT_SECONDS = 60.0
_DAY_SECONDS = 86_400.0


@asynccontextmanager
async def run_housekeeping(backend: Backend) -> AsyncIterator[None]:
    """Run housekeeping in the background; its last piece of work ends before the store is closed."""
    keeping = asyncio.create_task(_housekeep(backend))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


class SteadyClock:
    """Detects that the machine's clock was set or the machine slept: then runs had no time to report."""

    def __init__(self) -> None:
        self._wall_minus_monotonic = time.time() - time.monotonic()

    def has_jumped(self) -> bool:
        """Whether that happened since the last call."""
        before, self._wall_minus_monotonic = self._wall_minus_monotonic, time.time() - time.monotonic()
        return abs(self._wall_minus_monotonic - before) > _MOST_DRIFT_SECONDS


async def _housekeep(backend: Backend) -> None:
    pauses = RetryPauses(backend.settings.housekeeping_interval_seconds)
    clock = SteadyClock()
    # Not at once: after a day without this server, running runs must first reconnect.
    retained_at = time.monotonic()
    while True:
        if not backend.on_duty:
            await asyncio.sleep(backend.settings.housekeeping_interval_seconds)
            continue
        if time.monotonic() - retained_at >= _SECONDS_BETWEEN_RETENTIONS:
            if clock.has_jumped():
                _log.warning("The machine's clock was set, or it slept: no run is deleted in this round.")
            else:
                await attempt(delete_overdue(backend), what="Deleting runs by retention")
            retained_at = time.monotonic()
        await attempt(remove_deleted(backend), what="Removing deleted runs")
        await attempt(pack(backend, ROW_SIZES, pauses), what="Packing")
        await attempt(give_space_back(backend), what="Giving space back")
        await asyncio.sleep(backend.settings.housekeeping_interval_seconds)


async def pack(backend: Backend, sizes: RowSizes = ROW_SIZES, pauses: RetryPauses | None = None) -> int:
    """Pack every stream that has enough reports.

    Args:
        sizes: how many reports make a row.
        pauses: of earlier calls; a stream whose packing failed is skipped for a while.

    Returns:
        Number of new rows.
    """
    pauses = pauses or RetryPauses()
    found = await backend.read(lambda connection: packing.full_streams(connection, time.time(), sizes))
    pauses.keep_only({stream.stream_key for stream in found})
    made = 0
    for stream in found:
        if not pauses.is_paused(stream.stream_key):
            made += await _pack_stream(backend, stream, sizes, pauses)
    return made


async def remove_deleted(backend: Backend) -> None:
    """Delete the rows of runs that were deleted."""
    for run_key in await backend.read(removal.waiting):
        something_is_left = True
        while something_is_left:
            effort = Effort()
            something_is_left = await backend.write(
                effort.of(partial(_remove_some, run_key)),
                rows=removal.ROWS_AT_ONCE,
                run_id=removal.hidden_id(run_key),
            )
            await _rest(backend, effort)


async def give_space_back(backend: Backend) -> None:
    """Make the database's file smaller while many of its pages are free."""
    while await backend.read(database.free_pages) > database.FREE_PAGES_KEPT:
        effort = Effort()
        await backend.write(
            effort.of(lambda transaction: database.give_back_pages(transaction.connection)), rows=database.PAGES_AT_ONCE
        )
        await _rest(backend, effort)


async def delete_overdue(backend: Backend) -> None:
    """Delete runs by the retention settings."""
    settings = backend.settings
    days = settings.retention_days
    kept = Retention(seconds=None if days is None else days * _DAY_SECONDS, runs=settings.retention_runs)
    if kept.keeps_all:
        return
    for run in await backend.read(lambda connection: removal.overdue_runs(connection, kept, now=time.time())):
        # A connected shipper counts, not the clock.
        if backend.hub.is_watched(run.id):
            continue
        await backend.write(partial(_delete_overdue, kept, run.key), run_id=run.id)


async def _pack_stream(backend: Backend, stream: FullStream, sizes: RowSizes, pauses: RetryPauses) -> int:
    what = f"Packing stream {stream.stream_key} of run {stream.run_id}"
    made, left = 0, stream.reports
    while left > 0:
        effort = Effort()
        packed = await pauses.attempt(stream.stream_key, _pack_row(backend, stream, sizes, effort), what=what)
        if not packed:
            break
        made, left = made + 1, left - packed
        await _rest(backend, effort)
    return made


async def _pack_row(backend: Backend, stream: FullStream, sizes: RowSizes, effort: Effort) -> int:
    """Join some rows to one; return the number of reports it has."""
    row = await backend.read(effort.of(lambda connection: packing.join_next(connection, stream, sizes)))
    if row is None:
        return 0
    try:
        await backend.write(
            effort.of(lambda transaction: packing.replace_by(transaction.connection, row)),
            rows=len(row.replaces) + 1,
            run_id=stream.run_id,
        )
    except RowsOvertaken as overtaken:
        _log.info("%s", overtaken)
        return 0
    return row.reports


def _remove_some(run_key: int, transaction: Transaction) -> bool:
    return removal.remove_some(transaction.connection, run_key)


def _delete_overdue(kept: Retention, run_key: int, transaction: Transaction) -> None:
    now = time.time()
    # Read again: the run may have resumed, or was deleted meanwhile.
    for run in removal.overdue_runs(transaction.connection, kept, now=now, run_key=run_key):
        _delete(run, transaction, now)


def _delete(run: OverdueRun, transaction: Transaction, now: float) -> None:
    removal.hide_run(transaction.connection, run.key, run.id, by="server", now=now)
    access.record_audit(
        transaction.connection,
        at=now,
        actor="server",
        action="run.deleted",
        subject=f"runs/{run.id}",
        change={"old": {"name": run.name, "project": run.project}, "retention": run.rule},
    )
    transaction.announce(RunChanged(run_id=run.id))


class Effort:
    """Processor time of a piece of work, without waiting: pausing for that, too, would slow packing down under load."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def of(self, work: Callable[[_T], _R]) -> Callable[[_T], _R]:
        """Wraps work to count its CPU time."""

        def measured(on: _T) -> _R:
            started = time.thread_time()
            try:
                return work(on)
            finally:
                self.seconds += time.thread_time() - started

        return measured


async def _rest(backend: Backend, effort: Effort) -> None:
    """Pause after a piece of work."""
    await asyncio.sleep(effort.seconds * (_REST_WHILE_OTHERS_WAIT if backend.writer.waiting > 0 else 1.0))


RELOAD_SECONDS = 1.0
"""How long a token that another server revoked may still be accepted."""
NOTE_USES_SECONDS = 5.0
"""Accuracy of `last_used_at`; storing it is a COMMIT."""


@asynccontextmanager
async def tokens_kept_current(backend: Backend) -> AsyncIterator[None]:
    """Keep the tokens current while the block runs, and store their last uses at its end."""
    keeping = asyncio.create_task(_keep(backend))
    try:
        yield
    finally:
        keeping.cancel()
        await note_uses(backend)


async def note_uses(backend: Backend) -> None:
    """Store when tokens were used since the last call."""
    uses = backend.tokens.take_uses()
    if not uses:
        return
    try:
        await backend.write(lambda transaction: access.note_token_use(transaction.connection, uses))
    except (SQLAlchemyError, WriterStopped) as error:
        _log.warning("The last uses of tokens could not be stored: %s", error)


async def _keep(backend: Backend) -> None:
    elapsed_seconds = 0.0
    while True:
        await asyncio.sleep(RELOAD_SECONDS)
        elapsed_seconds += RELOAD_SECONDS
        await attempt(backend.reload_tokens(), what="Reading tokens")
        if elapsed_seconds >= NOTE_USES_SECONDS:
            elapsed_seconds = 0.0
            await attempt(note_uses(backend), what="Storing last uses of tokens")
