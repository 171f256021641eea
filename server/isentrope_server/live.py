"""Who listens to a run's control: the Watch streams of shippers.

`Hub` is one server's: a listener is woken when its run's control changed, then reads the store.
`Notifications` wake the listeners of all servers that share a PostgreSQL, by NOTIFY: delivered to
every server, if and only if the transaction commits. A notification holds a run's id, never data.
After a lost connection every listener reads the store for what it missed.

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

from isentrope_server.store.database import DUTY_LOCK, Database, write_in_a_line
from isentrope_server.store.writer import ControlChanged, Event
from isentrope_wire.backoff import Backoff
from isentrope_wire.numbers import document_of, read_exactly

_log = logging.getLogger(__name__)


class Listener:
    """Whether a run's control changed since it was last asked."""

    def __init__(self) -> None:
        self._awake = asyncio.Event()

    def wake(self) -> None:
        self._awake.set()

    async def wait(self, timeout_seconds: float) -> bool:
        """Whether it was woken in time: by a change, lost touch, or the server's end."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._awake.wait()
        except TimeoutError:
            return False
        self._awake.clear()
        return True


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

    def is_listened_to(self, run_id: str) -> bool:
        """Whether a shipper of the run listens; one that subscribes later reads the store first."""
        return run_id in self._listeners

    def publish(self, events: Sequence[Event]) -> None:
        """Wake the listeners of the runs whose control changed."""
        self._loop.call_soon_threadsafe(self._deliver, events)

    def lost_touch(self) -> None:
        """Wake every listener, because events may have been missed. May be called from any
        thread."""
        self._loop.call_soon_threadsafe(self._wake_all)

    @contextmanager
    def listening(self, run_id: str) -> Iterator[Listener]:
        """Subscribe to a run. Read the store after subscribing, so that nothing is missed in
        between."""
        listener = Listener()
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
        self._wake_all()

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            # Tokens belong to no run; `TokenBook` reads them itself.
            if isinstance(event, ControlChanged):
                for listener in self._listeners.get(event.run_id, ()):
                    listener.wake()

    def _wake_all(self) -> None:
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.wake()


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """The run whose control a transaction changed; empty: it changed the tokens."""

    run_id: str


def news_of(events: Sequence[Event]) -> list[News]:
    """What to tell other servers of a transaction: each run once."""
    run_ids = {event.run_id if isinstance(event, ControlChanged) else "" for event in events}
    return [News(run_id=run_id) for run_id in sorted(run_ids)]


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
                "SELECT pg_notify(:channel, payload) FROM unnest(CAST(:payloads AS text[])) AS"
                " payload"
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
                        "The connection for notifications of other servers failed; connecting"
                        " again: %s",
                        write_in_a_line(error),
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
        question = f"SELECT pg_try_advisory_lock({DUTY_LOCK})"
        if self.on_duty:
            question = "SELECT true"
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
        else:
            self._hub.publish([ControlChanged(run_id=news.run_id)])
