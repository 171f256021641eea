"""Work in the background: packing reports, removing rows, returning space, ending controls, and
keeping tokens current.

The writer gets one small piece at a time, and requests come first: after each piece there is a
pause, longer while other work is queued. Of servers that share a database one does it at a time.
Tokens are read again every second, because other servers may have revoked some, and their last uses
are stored every few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from isentrope_server.backend import Backend, RetryPauses, attempt
from isentrope_server.control.outcomes import expire_overdue
from isentrope_server.store import access, controls, database, removal, runs, streams
from isentrope_server.store.reports import alerts, packing
from isentrope_server.store.reports.packing import FullStream, RowsOvertaken
from isentrope_server.store.rows import ROW_SIZES, RowSizes
from isentrope_server.store.writer import Transaction
from isentrope_wire.numbers import printable
from isentrope_wire.reports import Alert, AlertLevel

_T = TypeVar("_T")
_R = TypeVar("_R")
_log = logging.getLogger(__name__)

_REST_WHILE_OTHERS_WAIT = 4.0
"""Pause divided by work while other work is queued: at most a fifth of one processor."""
_SECONDS_BETWEEN_RETENTIONS = 60.0
_MOST_DRIFT_SECONDS = 60.0
"""Between the machine's clock and its monotonic one, over an interval between retentions."""


class SteadyClock:
    """Detects that the machine's clock was set or the machine slept: then runs had no time to
    report."""

    def __init__(self) -> None:
        self._wall_minus_monotonic = time.time() - time.monotonic()

    def has_jumped(self) -> bool:
        """Whether that happened since the last call."""
        before, self._wall_minus_monotonic = (
            self._wall_minus_monotonic,
            time.time() - time.monotonic(),
        )
        return abs(self._wall_minus_monotonic - before) > _MOST_DRIFT_SECONDS


async def keep_house(backend: Backend) -> None:
    """Pack, remove and return space, again and again."""
    pauses, clock = RetryPauses(), SteadyClock()
    # Not at once: after a day without this server, running runs must first reconnect.
    retained_at = time.monotonic()
    while True:
        if not backend.on_duty:
            await asyncio.sleep(backend.settings.housekeeping_interval_seconds)
            continue
        if time.monotonic() - retained_at >= _SECONDS_BETWEEN_RETENTIONS:
            if clock.has_jumped():
                _log.warning(
                    "The machine's clock was set, or it slept: no run is deleted in this round."
                )
            else:
                await attempt(delete_overdue(backend), what="Deleting runs by retention")
            retained_at = time.monotonic()
        await attempt(remove_deleted(backend), what="Removing deleted runs")
        await attempt(pack(backend, ROW_SIZES, pauses), what="Packing")
        await attempt(give_space_back(backend), what="Giving space back")
        await asyncio.sleep(backend.settings.housekeeping_interval_seconds)


async def pack(
    backend: Backend, sizes: RowSizes = ROW_SIZES, pauses: RetryPauses | None = None
) -> int:
    """Pack every stream that has enough reports for a row; return the number of new rows. A stream
    whose packing failed is skipped for a while."""
    pauses = pauses or RetryPauses()
    found = await backend.read(
        lambda connection: packing.full_streams(connection, time.time(), sizes)
    )
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
                effort.count(partial(_remove_some, run_key)),
                rows=removal.ROWS_AT_ONCE,
                run_id=removal.hidden_id(run_key),
            )
            await _rest(backend, effort)


async def give_space_back(backend: Backend) -> None:
    """Make the database's file smaller while many of its pages are free."""
    before, free = None, await backend.read(database.free_pages)
    # A file that was made by another program may give nothing back.
    while free > database.FREE_PAGES_KEPT and free != before:
        effort = Effort()
        await backend.write(
            effort.count(lambda transaction: database.give_back_pages(transaction.connection)),
            rows=database.PAGES_AT_ONCE,
        )
        await _rest(backend, effort)
        before, free = free, await backend.read(database.free_pages)


async def delete_overdue(backend: Backend) -> None:
    """Delete runs by the retention settings."""
    days, newest = backend.settings.retention_days, backend.settings.retention_runs
    if days is None and newest is None:
        return
    overdue = partial(removal.overdue_runs, days=days, newest=newest)
    for run in await backend.read(lambda connection: overdue(connection, now=time.time())):
        # A connected shipper counts, not the clock.
        if not backend.hub.is_listened_to(run.id):
            await backend.write(partial(_delete_overdue, overdue, run.key), run_id=run.id)


async def _pack_stream(
    backend: Backend, stream: FullStream, sizes: RowSizes, pauses: RetryPauses
) -> int:
    what = f"Packing stream {stream.stream_key} of run {stream.run_id}"
    made, left = 0, stream.reports
    while left > 0:
        effort = Effort()
        packed = await pauses.attempt(
            stream.stream_key, _pack_row(backend, stream, sizes, effort), what=what
        )
        if not packed:
            break
        made, left = made + 1, left - packed
        await _rest(backend, effort)
    return made


async def _pack_row(backend: Backend, stream: FullStream, sizes: RowSizes, effort: Effort) -> int:
    """Join some rows to one; return the number of reports it has."""
    row = await backend.read(
        effort.count(lambda connection: packing.join_next(connection, stream, sizes))
    )
    if row is None:
        return 0
    try:
        await backend.write(
            effort.count(lambda transaction: packing.replace_by(transaction.connection, row)),
            rows=len(row.replaces) + 1,
            run_id=stream.run_id,
        )
    except RowsOvertaken as overtaken:
        _log.info("%s", overtaken)
        return 0
    return int(row.columns["reports"])


def _remove_some(run_key: int, transaction: Transaction) -> bool:
    return removal.remove_some(transaction.connection, run_key)


def _delete_overdue(
    overdue: Callable[..., Sequence[Any]], run_key: int, transaction: Transaction
) -> None:
    now = time.time()
    # Read again: the run may have resumed, or was deleted meanwhile.
    for run in overdue(transaction.connection, now=now, run_key=run_key):
        removal.hide_run(transaction.connection, run.key, run.id, by="server", now=now)
        change = {"old": {"name": run.name, "project": run.project}, "retention": run.rule}
        access.record_audit(
            transaction.connection, "server", "run.deleted", f"runs/{run.id}", change, now
        )


class Effort:
    """Processor time of a piece of work, without waiting: pausing for that, too, would slow packing
    down under load."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def count(self, work: Callable[[_T], _R]) -> Callable[[_T], _R]:
        """Wraps work to count its CPU time."""

        def measured(on: _T) -> _R:
            started = time.thread_time()
            try:
                return work(on)
            finally:
                self.seconds += time.thread_time() - started

        return measured


async def _rest(backend: Backend, effort: Effort) -> None:
    await asyncio.sleep(
        effort.seconds * (_REST_WHILE_OTHERS_WAIT if backend.writer.waiting > 0 else 1.0)
    )


RELOAD_SECONDS = 1.0
ACKNOWLEDGED_SECONDS = 1.0
"""How long a token that another server revoked may still be accepted."""
NOTE_USES_SECONDS = 5.0
"""Accuracy of `last_used_at`; storing it is a COMMIT."""


async def note_uses(backend: Backend) -> None:
    """Store when tokens were used since the last call."""
    uses = backend.tokens.take_uses()
    if uses:
        await backend.write(lambda transaction: access.note_token_use(transaction.connection, uses))


async def keep_acknowledged(backend: Backend) -> None:
    """Write down each second how far streams were acknowledged."""
    while True:
        await asyncio.sleep(ACKNOWLEDGED_SECONDS)
        await asyncio.to_thread(backend.acknowledged.save)


async def keep_tokens_current(backend: Backend) -> None:
    """Read the tokens again and again, and store their last uses, also at the end."""
    noted_at = time.monotonic()
    try:
        while True:
            await asyncio.sleep(RELOAD_SECONDS)
            await attempt(backend.reload_tokens(), what="Reading tokens")
            for run_id, token in backend.tokens.take_refused().items():
                work = partial(_alert_of_revoked_token, run_id=run_id, token=token, now=time.time())
                await attempt(backend.write(work, run_id=run_id), what="Noting a revoked token")
            if time.monotonic() - noted_at >= NOTE_USES_SECONDS:
                noted_at = time.monotonic()
                await attempt(note_uses(backend), what="Storing last uses of tokens")
    finally:
        await attempt(note_uses(backend), what="Storing last uses of tokens")


def _alert_of_revoked_token(transaction: Transaction, run_id: str, token: str, now: float) -> None:
    """Where the process of a run goes on with a token that was revoked: its reports wait with it,
    and the run looks as if it had been cut off."""
    connection = transaction.connection
    run_key = runs.key_of(connection, run_id)
    if run_key is None:
        begun = []
    else:
        begun = streams.incarnations(connection, run_key)
    if run_key is None or not begun:
        return
    stream = begun[-1].streams[0]
    alert = Alert(
        kind="refused",
        level=AlertLevel.ACT,
        message=(
            f"The token {printable(token)!r} of this run's training process was revoked: the"
            " process goes on, and its reports wait on its machine. Write another token into the"
            " file that its ISENTROPE_TOKEN_FILE names; or, once it has ended, deliver them there"
            " with `ISENTROPE_TOKEN=... isentrope sync`. Nothing is lost."
        ),
        evidence={"revoked": now},
    )
    alerts.append_servers_alert(
        connection,
        alert,
        stream,
        position=runs.last_position(connection, run_key),
        step=stream.last_step or 0,
        now=now,
    )


async def end_expired_controls(backend: Backend) -> None:
    """End control versions that no rank answered in time, again and again."""
    while True:
        await asyncio.sleep(backend.settings.sweep_interval_seconds)
        await attempt(_sweep(backend), what="Ending expired controls")


async def _sweep(backend: Backend) -> None:
    settings = backend.settings
    # Reading needs no writer, and most of the time no version is open.
    if backend.on_duty and len(await backend.read(controls.all_open)) > 0:
        await backend.write(
            partial(
                expire_overdue,
                now=time.time(),
                answer_seconds=settings.control_answer_grace_seconds,
                rank_seconds=settings.control_rank_grace_seconds,
            )
        )
