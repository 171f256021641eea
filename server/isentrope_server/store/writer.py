"""The one thread that writes, with group commit: work that queues up during one COMMIT shares the
next.

Transactions announce events, which are published after COMMIT; listeners read the rest from the
store."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from isentrope_server.store.database import hold_for_writing
from isentrope_wire.errors import IsentropeError


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlChanged:
    """A control version of a run was requested, or its state changed."""

    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensChanged:
    """A token was made or revoked."""


Event = ControlChanged | TokensChanged

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

ROWS_PER_COMMIT = 1_000
"""Enough to share one fsync among many, few enough to answer the first job within some tens of
milliseconds."""


class WriterStopped(IsentropeError, RuntimeError):
    """The server is shutting down, or its writer failed; nothing more will be stored."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a piece of work may use: the connection, and the events to publish after COMMIT."""

    connection: Connection
    events: list[Event] = field(default_factory=list)

    def announce(self, event: Event) -> None:
        """Publish an event after COMMIT."""
        self.events.append(event)


@dataclass(slots=True)
class _Job(Generic[_T]):
    work: Callable[[Transaction], _T]
    rows: int
    run_id: str | None
    future: Future[_T]
    result: list[_T] = field(default_factory=list)
    error: BaseException | None = None

    def run(self, connection: Connection) -> list[Event]:
        """Do the work, and keep its result or failure. May be repeated after a failure."""
        transaction = Transaction(connection)
        self.result.clear()
        self.error = None
        try:
            self.result.append(self.work(transaction))
        except BaseException as error:  # noqa: BLE001  # no failure ends the writer's thread
            self.error = error
        if self.error:
            return []
        return transaction.events

    def settle(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result[0])


class Writer:
    """Runs submitted work in order on its own thread; a future resolves only after COMMIT."""

    def __init__(
        self,
        engine: Engine,
        publish: Callable[[Sequence[Event]], None],
        announce: Callable[[Connection, Sequence[Event]], None] | None = None,
    ) -> None:
        """`publish` is called with the events of a transaction after its COMMIT, `announce` inside
        it, as its last step."""
        self._engine = engine
        self._publish = publish
        self._announce = announce
        self._jobs: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._accepting = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._write_until_stopped, name="store-writer", daemon=True
        )

    def start(self) -> None:
        self._accepting = True
        self._thread.start()

    def stop(self) -> None:
        """Finish what was submitted, then end the thread."""
        with self._lock:
            self._accepting = False
            self._jobs.put(None)
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether work is accepted."""
        return self._accepting and self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Jobs not yet begun."""
        return self._jobs.qsize()

    def submit(
        self, work: Callable[[Transaction], _T], *, rows: int = 1, run_id: str | None = None
    ) -> Future[_T]:
        """Queue one piece of work; it is committed as a whole or not at all. The future's result is
        what `work` returns on the writer's thread, after COMMIT.

        `rows`, about how many it writes, limits how much shares one COMMIT. `run_id` is the only
        run it writes to;
        None: anything, and other servers on the same database then wait for it. WriterStopped:
        nothing is stored any more.
        """
        future: Future[_T] = Future()
        with self._lock:
            if not self.alive:
                raise WriterStopped("The store is closed: the server is shutting down.")
            self._jobs.put(_Job(work, rows, run_id, future))  # type: ignore[arg-type]  # jobs of every result share the queue
        return future

    def _write_until_stopped(self) -> None:
        stopping = False
        with ExitStack() as connections:
            connection: Connection | None = None
            while not stopping:
                queued, stopping = self._next_batch()
                # From here on a job can't be cancelled, so each future is settled exactly once.
                jobs = [job for job in queued if job.future.set_running_or_notify_cancel()]
                if not jobs:
                    continue
                try:
                    connection = self._begun(connections, connection, jobs)
                    self._commit(connection, jobs)
                except BaseException as error:  # noqa: BLE001  # no failure ends the writer's thread
                    _settle_failed(jobs, error)
                    # SQLite's transaction is still open: only a new connection is sure to be clean.
                    connection = None
                    with contextlib.suppress(Exception):
                        connections.close()

    def _next_batch(self) -> tuple[list[_Job[object]], bool]:
        jobs: list[_Job[object]] = []
        rows = 0
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            rows += job.rows
            if rows >= ROWS_PER_COMMIT:
                return jobs, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _begun(
        self, connections: ExitStack, connection: Connection | None, jobs: Sequence[_Job[object]]
    ) -> Connection:
        """A connection in a transaction that holds what the jobs write to."""
        run_ids = {job.run_id for job in jobs}
        if connection is not None:
            try:
                connection.begin()
                hold_for_writing(connection, run_ids)
                return connection
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                # The connection was lost before anything was written on it; a new one replaces it.
                connections.close()
        connection = connections.enter_context(self._engine.connect())
        connection.begin()
        hold_for_writing(connection, run_ids)
        return connection

    def _commit(self, connection: Connection, jobs: Sequence[_Job[object]]) -> None:
        while (events := self._all_or_none(connection, jobs)) is None:
            # Only the one that failed is undone; the others are done again and share a COMMIT.
            failed = next(job for job in jobs if job.error is not None)
            failed.settle()
            jobs = [job for job in jobs if job is not failed]
            connection.begin()
            hold_for_writing(connection, {job.run_id for job in jobs})
        try:
            if events:
                self._publish(events)
        finally:
            # They are committed, whether or not publishing failed.
            for job in jobs:
                job.settle()

    def _all_or_none(
        self, connection: Connection, jobs: Sequence[_Job[object]]
    ) -> list[Event] | None:
        """Events to publish, after COMMIT; None: one of several jobs failed, and nothing is
        committed."""
        events: list[Event] = []
        transaction = connection.get_transaction()
        assert transaction is not None, "it was begun"
        with transaction:
            for job in jobs:
                events.extend(job.run(connection))
                if job.error is not None:
                    if isinstance(job.error, DBAPIError) and job.error.connection_invalidated:
                        raise job.error
                    transaction.rollback()
                    if len(jobs) == 1:
                        return []
                    return None
            if events and self._announce is not None:
                self._announce(connection, events)
        return events


def _settle_failed(jobs: Sequence[_Job[object]], error: BaseException) -> None:
    """Settle all jobs of a failed batch (a full disk fails a COMMIT), so that no caller waits for
    ever."""
    if not isinstance(error, SQLAlchemyError):
        _log.error("Unexpected error in the writer; it continues.", exc_info=error)
    for job in jobs:
        if not job.future.done():
            job.future.set_exception(job.error or error)
