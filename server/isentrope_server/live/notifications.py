"""News between servers that share a PostgreSQL, by NOTIFY: what one commits, the listeners of all are told.

PostgreSQL delivers notifications in COMMIT order, to every server, and only if the transaction commits. So each server
tells its listeners what *arrives*, its own events too: a run's positions then rise for every listener, whoever wrote.
A notification holds ids and numbers only; what another server wrote is read from the store, and only where somebody
listens. A connection that was lost is made anew, and every listener looks into the store for what it missed.

The server whose connection holds `DUTY_LOCK` does what one server at a time should do: ending expired controls,
packing, removing. PostgreSQL gives the duty to another as soon as the connection ends, and ends it when it has been
silent for a while: a frozen server keeps no duty.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.live import news
from isentrope_server.live.hub import Hub
from isentrope_server.live.news import News
from isentrope_server.live.own_events import OwnEvents
from isentrope_server.store import runs, steps
from isentrope_server.store.database import Database, in_a_line
from isentrope_server.store.events import ControlChanged, Event, RunChanged
from isentrope_server.store.locks import DUTY_LOCK

_log = logging.getLogger(__name__)

_CHANNEL = "isentrope"
_HEARTBEAT_SECONDS = 2.0
_LONGEST_SILENCE = "20s"
_PAUSES_SECONDS = (0.1, 0.5, 1.0, 2.0)
"""Before each new try to connect; the last counts for all that follow."""


class Notifications:
    """Sends within the writer's transactions; receives on a thread and a connection of its own."""

    def __init__(self, database: Database, hub: Hub, reload_tokens: Callable[[], None]) -> None:
        """
        Args:
            reload_tokens: called, on the thread, whenever the tokens in force may have changed.
        """
        self._database = database
        self._hub = hub
        self._reload_tokens = reload_tokens
        self._origin = os.urandom(8).hex()
        self._batches = 0
        self._sent = OwnEvents()
        self._on_duty = False
        self._stopping = threading.Event()
        self._awake, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._receive_until_stopped, name="notifications", daemon=True)

    @property
    def on_duty(self) -> bool:
        """Whether this is the server that does what one at a time should do."""
        return self._on_duty

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
        """Have every server told of these events if the writer's transaction commits."""
        self._batches += 1
        told: list[News] = []
        for run_id, of_run in news.by_run(events).items():
            # Whoever begins to listen from now on is told what the store has.
            if self._hub.is_listened_to(run_id):
                self._sent.keep(self._batches, run_id, of_run)
            told.append(news.news_of(run_id, of_run, origin=self._origin, batch=self._batches))
        connection.execute(
            text("SELECT pg_notify(:channel, payload) FROM unnest(CAST(:payloads AS text[])) AS payload"),
            {"channel": _CHANNEL, "payloads": [one.payload() for one in told]},
        )

    def _receive_until_stopped(self) -> None:
        driver_error: type[Exception] = self._database.writing_engine.dialect.loaded_dbapi.Error
        failures = 0
        while not self._stopping.is_set():
            connected = time.monotonic()
            try:
                with self._database.writing_engine.connect() as connection:
                    self._receive(connection.execution_options(isolation_level="AUTOCOMMIT"))
            except (SQLAlchemyError, driver_error, OSError) as error:
                failures = 0 if time.monotonic() - connected > _HEARTBEAT_SECONDS else failures
                if failures == 0:
                    _log.warning("The other servers' news don't come through; connecting again: %s", in_a_line(error))
                self._stopping.wait(_PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)])
                failures += 1
            finally:
                self._on_duty = False

    def _receive(self, connection: Connection) -> None:
        connection.execute(text(f"SET idle_session_timeout = '{_LONGEST_SILENCE}'"))
        connection.execute(text(f"LISTEN {_CHANNEL}"))
        # Whatever was committed before is in the store, and nobody is told of it.
        self._sent.forget()
        self._reload_tokens()
        self._hub.lost_touch()
        driver: Any = connection.connection.driver_connection
        next_heartbeat = 0.0
        while not self._stopping.is_set():
            if time.monotonic() >= next_heartbeat:
                self._on_duty = self._ask_for_duty(connection)
                next_heartbeat = time.monotonic() + _HEARTBEAT_SECONDS
            for notification in driver.notifies(timeout=0):
                self._take(notification.payload)
            select.select([driver.fileno(), self._awake], [], [], max(0.0, next_heartbeat - time.monotonic()))

    def _ask_for_duty(self, connection: Connection) -> bool:
        """Doubles as the sign of life that keeps the session, or finds out that it is dead."""
        question = "SELECT true" if self._on_duty else f"SELECT pg_try_advisory_lock({DUTY_LOCK})"
        return bool(connection.execute(text(question)).scalar_one())

    def _take(self, payload: str) -> None:
        try:
            told = news.read(payload)
        except (ValueError, TypeError):
            _log.warning("The channel %r of the database is used by another program too.", _CHANNEL)
            return
        if told.of_tokens:
            self._reload_tokens()
            return
        own = self._sent.take(told.batch, told.run_id) if told.origin == self._origin else None
        if own is not None:
            self._hub.publish(own)
        elif self._hub.is_listened_to(told.run_id):
            self._hub.publish(self._read(told))

    def _read(self, told: News) -> list[Event]:
        events: list[Event] = []
        if told.positions is not None:
            first, last = told.positions
            with self._database.reading() as connection:
                run_key = runs.key_of(connection, told.run_id)
                if run_key is not None:
                    found = steps.after(connection, run_key, first - 1, last - first + 1)
                    events.extend(step for step in found if step.position <= last)
        events.extend(ControlChanged(run_id=told.run_id, version=version) for version in told.versions)
        if told.run_changed:
            events.append(RunChanged(run_id=told.run_id))
        return events
