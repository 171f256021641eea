"""A server's own events wait for their news: few of them, only where somebody listens, and safe between threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from unittest.mock import MagicMock

import pytest
from sqlalchemy import Connection

from isentrope_server.live.hub import Hub
from isentrope_server.live.notifications import EVENTS_KEPT, Notifications, OwnEvents
from isentrope_server.store.database import Database
from isentrope_server.store.writer import Event, RunChanged


def events(run_id: str, count: int) -> list[Event]:
    return [RunChanged(run_id=run_id) for _ in range(count)]


@contextmanager
def notifications_of(*listened_to: str) -> Iterator[tuple[Notifications, Hub]]:
    """Of a server where somebody listens to these runs, on a database that isn't there."""
    loop = asyncio.new_event_loop()
    hub = Hub(loop)
    with ExitStack() as stack:
        for run_id in listened_to:
            stack.enter_context(hub.listening(run_id))
        notifications = Notifications(MagicMock(spec=Database), hub, lambda: None)
        yield notifications, hub
        notifications.stop()
    loop.close()


def test_each_batch_is_taken_once() -> None:
    own = OwnEvents()
    own.keep(1, "r", events("r", 2))
    own.keep(1, "other", events("other", 1))
    assert own.take(1, "r") == events("r", 2)
    assert own.take(1, "r") is None
    assert len(own) == 1
    own.forget()
    assert own.take(1, "other") is None
    assert len(own) == 0


def test_so_many_events_are_kept_however_large_the_batches() -> None:
    own = OwnEvents()
    for batch in range(10):
        own.keep(batch, "r", events("r", 1_000))
        assert len(own) <= EVENTS_KEPT
    assert own.take(5, "r") is None
    assert own.take(6, "r") == events("r", 1_000)
    own.keep(10, "r", events("r", EVENTS_KEPT + 1))
    assert len(own) == 0


def test_only_what_somebody_listens_to_is_kept() -> None:
    connection = MagicMock(spec=Connection)
    with notifications_of("heard") as (notifications, _):
        notifications.announce(connection, [*events("heard", 2), *events("unheard", 3)])
        assert len(notifications._sent) == 2
        assert len(connection.execute.call_args.args[1]["payloads"]) == 2


def test_what_was_sent_before_a_connection_began_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = MagicMock(spec=Connection)
    with notifications_of("heard") as (notifications, hub):
        monkeypatch.setattr(hub, "lost_touch", lambda: notifications._stopping.set())
        notifications.announce(connection, events("heard", 2))
        notifications._receive(connection)
        assert len(notifications._sent) == 0


class Held(list[Event]):
    """Events that are counted slowly."""

    def __init__(self, of: list[Event]) -> None:
        super().__init__(of)
        self.being_counted = threading.Event()
        self.may_be_counted = threading.Event()

    def __len__(self) -> int:
        self.being_counted.set()
        assert self.may_be_counted.wait(5)
        return super().__len__()


def test_one_thread_takes_only_when_the_other_has_kept() -> None:
    own = OwnEvents()
    held = Held(events("r", 2))
    with ThreadPoolExecutor(2) as pool:
        keeping = pool.submit(own.keep, 1, "r", held)
        assert held.being_counted.wait(5)
        taking = pool.submit(own.take, 1, "r")
        with pytest.raises(TimeoutError):
            taking.result(timeout=0.1)
        held.may_be_counted.set()
        keeping.result(timeout=5)
        assert taking.result(timeout=5) is held
    assert len(own) == 0
