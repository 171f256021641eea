"""News between servers that share a PostgreSQL, by NOTIFY: what one commits, the listeners of all are told.

PostgreSQL delivers notifications in COMMIT order, to every server, and only if the transaction commits. So each server
tells its listeners what *arrives*, its own events too: a run's positions then rise for every listener, whoever wrote.
A notification holds ids and numbers only; what another server wrote is read from the store, and only where somebody
listens. A connection that was lost is made anew, and every listener looks into the store for what it missed.

The server whose connection holds `DUTY_LOCK` does what one server at a time should do: ending expired controls,
packing, removing. PostgreSQL gives the duty to another as soon as the connection ends, and ends it when it has been
silent for a while: a frozen server keeps no duty.

What a notification says: of which run, up to which position, which control versions. Ids and numbers, never data.

Events this server committed itself, kept until they arrive as news: they need not be read from the store again.
"""

from __future__ import annotations

import json
import logging
import os
import select
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.live.hub import Hub
from isentrope_server.store import runs
from isentrope_server.store.database import DUTY_LOCK, Database, in_a_line
from isentrope_server.store.reports import steps
from isentrope_server.store.writer import ControlChanged, Event, RunChanged, StepStored, TokensChanged

MOST_VERSIONS = 32
"""Control versions one notification names, the newest; a payload must stay under 8 000 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one transaction did to one run, or, where the run's id is empty, to the tokens."""

    origin: str
    """The server that wrote it."""
    batch: int
    """Counts that server's transactions."""
    run_id: str
    positions: tuple[int, int] | None = None
    """First and last of the new step reports; None: there are none."""
    versions: tuple[int, ...] = ()
    """Control versions that were asked for or changed their state."""
    run_changed: bool = False

    @property
    def of_tokens(self) -> bool:
        return self.run_id == ""

    def payload(self) -> str:
        return json.dumps(
            [self.origin, self.batch, self.run_id, self.positions, self.versions, self.run_changed],
            separators=(",", ":"),
        )


def read(payload: str) -> News:
    """A notification's payload.

    Raises:
        ValueError: another program uses the channel.
    """
    origin, batch, run_id, positions, versions, run_changed = json.loads(payload)
    return News(
        origin=origin,
        batch=batch,
        run_id=run_id,
        positions=None if positions is None else (positions[0], positions[1]),
        versions=tuple(versions),
        run_changed=run_changed,
    )


def by_run(events: Sequence[Event]) -> dict[str, list[Event]]:
    """The events of each run in their order; those of the tokens under an empty id."""
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        found["" if isinstance(event, TokensChanged) else event.run_id].append(event)
    return dict(found)


def news_of(run_id: str, events: Sequence[Event], *, origin: str, batch: int) -> News:
    """One run's events of one transaction, in short."""
    positions = [event.position for event in events if isinstance(event, StepStored)]
    versions = sorted({event.version for event in events if isinstance(event, ControlChanged)})
    return News(
        origin=origin,
        batch=batch,
        run_id=run_id,
        positions=(min(positions), max(positions)) if positions else None,
        versions=tuple(versions[-MOST_VERSIONS:]),
        run_changed=any(isinstance(event, RunChanged) for event in events),
    )


EVENTS_KEPT = 4_096
"""Of all batches together. What fell out is read from the store, as another server's is."""


class OwnEvents:
    """By batch and run. Kept on the writer's thread, taken on the one that receives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: OrderedDict[tuple[int, str], Sequence[Event]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """How many events are kept."""
        return self._count

    def keep(self, batch: int, run_id: str, events: Sequence[Event]) -> None:
        """The oldest batches give way: their COMMIT failed, or nobody was told of them in time."""
        with self._lock:
            self._batches[batch, run_id] = events
            self._count += len(events)
            while self._count > EVENTS_KEPT:
                _, given_up = self._batches.popitem(last=False)
                self._count -= len(given_up)

    def take(self, batch: int, run_id: str) -> Sequence[Event] | None:
        """None: they are no longer kept, or never were."""
        with self._lock:
            events = self._batches.pop((batch, run_id), None)
            self._count -= len(events or ())
        return events

    def forget(self) -> None:
        """Nobody will be told of those that are waiting."""
        with self._lock:
            self._batches.clear()
            self._count = 0


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
        for run_id, of_run in by_run(events).items():
            # Whoever begins to listen from now on is told what the store has.
            if self._hub.is_listened_to(run_id):
                self._sent.keep(self._batches, run_id, of_run)
            told.append(news_of(run_id, of_run, origin=self._origin, batch=self._batches))
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
            told = read(payload)
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
