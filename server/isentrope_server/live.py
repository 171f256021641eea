"""Events of committed transactions for those who listen: live streams and Watch.

`Hub` is one server's: one bounded queue per listener. A slow listener loses the oldest events; it
never slows the writer down. `Notifications` are the events between servers that share a PostgreSQL,
by NOTIFY:

PostgreSQL delivers notifications in COMMIT order, to every server, and only if the transaction
commits. Each server sends its listeners what *arrives*, its own events included, so that a run's
positions rise for every listener.

A notification holds a run's id, positions and control versions, never data. Reports are read from
the store, and only where a listener receives them: a shipper's Watch stream does not. After a lost
connection every listener reads the store for what it missed.

The server whose connection holds `DUTY_LOCK` does what one server at a time should do: ending
expired controls, packing, removing. PostgreSQL gives the lock to another server when the connection
ends, and ends the connection of a frozen server.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.store import runs
from isentrope_server.store.database import DUTY_LOCK, Database, in_a_line
from isentrope_server.store.reports import steps
from isentrope_server.store.writer import (
    ControlChanged,
    Event,
    RunChanged,
    RunEvent,
    StepStored,
    TokensChanged,
)
from isentrope_wire.backoff import Backoff
from isentrope_wire.numbers import document_of, read_exactly

_log = logging.getLogger(__name__)

QUEUE_LENGTH = 1_024


class Listener:
    """The events of one run, from subscription on."""

    def __init__(self, kinds: tuple[type[RunEvent], ...] = ()) -> None:
        """Receives events of these kinds; of all where none is given."""
        self.kinds = kinds
        self._queue: asyncio.Queue[RunEvent | None] = asyncio.Queue(QUEUE_LENGTH)
        self.dropped = 0
        """Events this listener lost because its queue was full; the store still has them."""

    def receives(self, kind: type[RunEvent]) -> bool:
        return not self.kinds or kind in self.kinds

    def wake(self, event: RunEvent | None) -> None:
        """Queue an event of any kind; None only wakes the listener."""
        if self._queue.full():
            self._queue.get_nowait()
            self.dropped += 1
        self._queue.put_nowait(event)

    async def get(self, timeout_seconds: float) -> RunEvent | None:
        """Return the next event; None when none came in time or the server stops."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._queue.get()
        except TimeoutError:
            return None


class Hub:
    """The listeners of all runs, on one event loop; `publish` may be called from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._listeners: dict[str, set[Listener]] = defaultdict(set)
        self.closing = asyncio.Event()
        """Set when the server stops: endless responses end."""

    @property
    def listener_count(self) -> int:
        return sum(len(listeners) for listeners in self._listeners.values())

    def is_listened_to(self, run_id: str, kind: type[RunEvent] | None = None) -> bool:
        """Whether a run has listeners to this kind of event, or to any; one that subscribes later
        reads the store first."""
        # Copied at once: the event loop may add a listener meanwhile.
        of_run = tuple(self._listeners.get(run_id, ()))
        return any(kind is None or listener.receives(kind) for listener in of_run)

    def is_watched(self, run_id: str) -> bool:
        """Whether a shipper of the run has a Watch stream open here."""
        return any(
            listener.kinds == (ControlChanged,) for listener in self._listeners.get(run_id, ())
        )

    def publish(self, events: Sequence[Event]) -> None:
        """Send committed events to the listeners of their runs."""
        self._loop.call_soon_threadsafe(self._deliver, events)

    def lost_touch(self) -> None:
        """Make every listener read the store, because events may have been missed. May be called
        from any thread."""
        self._loop.call_soon_threadsafe(self._deliver_loss)

    @contextmanager
    def listening(self, run_id: str, *kinds: type[RunEvent]) -> Iterator[Listener]:
        """Subscribe to a run's events, of all kinds where none is given. Read the store after
        subscribing, so that nothing is missed in between."""
        listener = Listener(kinds)
        self._listeners[run_id].add(listener)
        try:
            yield listener
        finally:
            self._listeners[run_id].discard(listener)
            if not self._listeners[run_id]:
                del self._listeners[run_id]

    def close(self) -> None:
        """Wake every listener because the server stops."""
        self.closing.set()
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.wake(None)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, TokensChanged):
                continue  # Tokens belong to no run; `TokenBook` reads them itself.
            for listener in self._listeners.get(event.run_id, ()):
                if listener.receives(type(event)):
                    listener.wake(event)

    def _deliver_loss(self) -> None:
        for run_id, listeners in self._listeners.items():
            for listener in listeners:
                listener.dropped += 1
                listener.wake(RunChanged(run_id=run_id))


MOST_VERSIONS = 32
"""The newest control versions that one notification names; a payload must stay under 8 000
bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one transaction changed in one run, or in the tokens where the run's id is empty."""

    run_id: str
    positions: tuple[int, int] | None = None
    """First and last of the new step reports; None: there are none."""
    versions: tuple[int, ...] = ()
    """Control versions that were requested or changed their state."""
    run_changed: bool = False


def news_of(events: Sequence[Event]) -> list[News]:
    """Summarise the events of one transaction by run."""
    by_run: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_run["" if isinstance(event, TokensChanged) else event.run_id].append(event)
    found = []
    for run_id, of_run in by_run.items():
        positions = [event.position for event in of_run if isinstance(event, StepStored)]
        versions = sorted({event.version for event in of_run if isinstance(event, ControlChanged)})
        found.append(
            News(
                run_id=run_id,
                positions=(min(positions), max(positions)) if positions else None,
                versions=tuple(versions[-MOST_VERSIONS:]),
                run_changed=any(isinstance(event, RunChanged) for event in of_run),
            )
        )
    return found


_CHANNEL = "isentrope"
_HEARTBEAT_SECONDS = 2.0
_LONGEST_SILENCE = "20s"


class Notifications:
    """Sends in the writer's transactions; receives on its own thread and connection."""

    def __init__(
        self, database: Database, hub: Hub, reload_tokens: Callable[[Connection], None]
    ) -> None:
        """`reload_tokens` is called on the receiving thread when tokens may have changed."""
        self._database = database
        self._hub = hub
        self._reload_tokens = reload_tokens
        self.on_duty = False
        """Whether this server holds `DUTY_LOCK`."""
        self._stopping = threading.Event()
        self._awake, self._wake = os.pipe()
        self._thread = threading.Thread(
            target=self._receive_until_stopped, name="notifications", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; safe to call when it never started."""
        self._stopping.set()
        os.write(self._wake, b"x")
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._wake)
        os.close(self._awake)

    def announce(self, connection: Connection, events: Sequence[Event]) -> None:
        """Notify every server of these events when the writer's transaction commits."""
        payloads = [json.dumps(document_of(news)) for news in news_of(events)]
        connection.execute(
            text(
                "SELECT pg_notify(:channel, payload) FROM unnest(CAST(:payloads AS text[])) AS payload"
            ),
            {"channel": _CHANNEL, "payloads": payloads},
        )

    def _receive_until_stopped(self) -> None:
        driver_error: type[Exception] = self._database.writing_engine.dialect.loaded_dbapi.Error
        backoff, is_logged = Backoff(0.2, 2.0), False
        while not self._stopping.is_set():
            connected = time.monotonic()
            try:
                with self._database.writing_engine.connect() as connection:
                    self._receive(connection.execution_options(isolation_level="AUTOCOMMIT"))
            except (SQLAlchemyError, driver_error, OSError) as error:
                if time.monotonic() - connected > _HEARTBEAT_SECONDS:
                    backoff.reset()
                    is_logged = False
                if not is_logged:
                    _log.warning(
                        "The connection for notifications of other servers failed; connecting again: %s",
                        in_a_line(error),
                    )
                is_logged = True
                self._stopping.wait(backoff.next_pause_seconds())
            finally:
                self.on_duty = False

    def _receive(self, connection: Connection) -> None:
        connection.execute(text(f"SET idle_session_timeout = '{_LONGEST_SILENCE}'"))
        connection.execute(text(f"LISTEN {_CHANNEL}"))
        # Events committed before are in the store; no notification of them will arrive.
        self._reload_tokens(connection)
        self._hub.lost_touch()
        driver: Any = connection.connection.driver_connection
        next_heartbeat = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= next_heartbeat:
                self.on_duty = self._try_duty(connection)
                next_heartbeat = time.monotonic() + _HEARTBEAT_SECONDS
            for notification in driver.notifies(timeout=0):
                self._take(notification.payload)
            select.select(
                [driver.fileno(), self._awake], [], [], max(0.0, next_heartbeat - time.monotonic())
            )

    def _try_duty(self, connection: Connection) -> bool:
        """Try to hold the duty lock. The query also keeps the session alive, or fails when it is
        dead."""
        question = "SELECT true" if self.on_duty else f"SELECT pg_try_advisory_lock({DUTY_LOCK})"
        return bool(connection.execute(text(question)).scalar_one())

    def _take(self, payload: str) -> None:
        try:
            news = read_exactly(News, json.loads(payload))
        except ValueError:
            _log.warning("Another program uses the database's channel %r, too.", _CHANNEL)
            return
        if not news.run_id:
            with self._database.reading() as connection:
                self._reload_tokens(connection)
        elif self._hub.is_listened_to(news.run_id):
            self._hub.publish(self._read(news))

    def _read(self, news: News) -> list[Event]:
        events: list[Event] = []
        if news.positions is not None and self._hub.is_listened_to(news.run_id, StepStored):
            first, last = news.positions
            with self._database.reading() as connection:
                run_key = runs.key_of(connection, news.run_id)
                if run_key is not None:
                    found = steps.after(connection, run_key, first - 1, last - first + 1)
                    events.extend(step for step in found if step.position <= last)
        events.extend(
            ControlChanged(run_id=news.run_id, version=version) for version in news.versions
        )
        if news.run_changed:
            events.append(RunChanged(run_id=news.run_id))
        return events
