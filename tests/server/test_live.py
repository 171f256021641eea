"""The live stream sends what is committed, once, and continues where a listener stopped."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
from httpx_sse import ServerSentEvent, connect_sse

from isentrope_server.api.dependencies import ReportCursor
from isentrope_server.api.metrics import current_cursor
from isentrope_server.live import QUEUE_LENGTH
from isentrope_server.store import runs
from isentrope_server.store.writer import RunChanged, Transaction
from isentrope_wire.reports import RunFinished
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, stored_step
from tests.system.running_server import wait_for


class Stream:
    """An open live stream, read on demand."""

    def __init__(self, client: httpx.Client, path: str, **headers: str) -> None:
        self._context = connect_sse(client, "GET", f"{path}/live", headers=headers, timeout=10)
        self._events: Iterator[ServerSentEvent] = self._context.__enter__().iter_sse()

    def next(self) -> tuple[str, dict[str, Any], str]:
        event = next(self._events)
        return event.event, json.loads(event.data), event.id

    def close(self) -> None:
        self._context.__exit__(None, None, None)


def wait_for_listener(server: ServerInThread, count: int = 1) -> None:
    wait_for(lambda: server.backend.hub.listener_count >= count)


def test_step_control_and_finish_are_sent_once_committed(make_server: MakeServer) -> None:
    server = make_server()
    rank = Rank(server)
    stream = Stream(server.http, rank.path)
    wait_for_listener(server)
    time.sleep(0.1)
    rank.report(0, entropy__mean=0.5, bad=float("nan"))
    kind, data, _ = stream.next()
    assert kind == "step"
    assert data == {
        "step": 0,
        "recorded_at": 1_700_000_000.0,
        "control_version": 0,
        "rank": 0,
        "scalars": {"entropy/mean": 0.5, "bad": "NaN"},
    }
    with server.client(server.owner_token) as other:
        other.put(
            f"{rank.path}/control",
            json={"method": "none", "reason": "why"},
            headers={"If-Match": '"0"'},
        )
    kind, data, _ = stream.next()
    assert (kind, data["version"], data["state"], data["reason"]) == (
        "control",
        1,
        "PENDING",
        "why",
    )
    rank.hello()
    assert stream.next()[1]["state"] == "DELIVERED"
    rank.send(RunFinished(status="finished", finished_at=time.time()))
    received = [stream.next() for _ in range(2)]
    assert {(kind, data.get("state") or data["status"]) for kind, data, _ in received} == {
        ("control", "EXPIRED"),
        ("run", "finished"),
    }
    stream.close()


def test_a_returning_listener_misses_nothing(server: ServerInThread, rank: Rank) -> None:
    rank.report(0, x=0.0)
    cursor = server.http.get(f"{rank.path}/metrics/series", params={"name": "x"}).json()["cursor"]
    rank.report(1, x=1.0)
    rank.report(2, x=2.0)
    stream = Stream(server.http, rank.path, **{"Last-Event-ID": cursor})
    events = [stream.next() for _ in range(2)]
    assert [data["step"] for _, data, _ in events] == [1, 2]
    stream.close()
    stream = Stream(server.http, rank.path, **{"Last-Event-ID": events[0][2]})
    assert stream.next()[1]["step"] == 2
    rank.report(3, x=3.0)
    assert stream.next()[1]["step"] == 3
    stream.close()


def test_listener_ahead_of_a_restored_database_gets_everything_again(
    server: ServerInThread, rank: Rank
) -> None:
    rank.report(0, x=0.0)
    with server.backend.database.reading() as connection:
        found = runs.find(connection, rank.run_id, silent_after_seconds=60)
        assert found is not None
        now = current_cursor(connection, found)
    ahead = ReportCursor(position=now.position + 100, timeline=now.timeline)
    stream = Stream(server.http, rank.path, **{"Last-Event-ID": str(ahead)})
    kind, data, event_id = stream.next()
    assert (kind, data["step"], event_id) == ("step", 0, str(now))
    rank.report(1, x=1.0)
    assert stream.next()[1]["step"] == 1
    stream.close()


def test_steps_of_other_runs_are_not_sent(server: ServerInThread) -> None:
    mine, other = Rank(server), Rank(server)
    cursor = server.http.get(f"{mine.path}/metrics/series", params={"name": "x"}).json()["cursor"]
    stream = Stream(server.http, mine.path, **{"Last-Event-ID": cursor})
    other.report(0, x=0.0)
    mine.report(9, x=0.0)
    assert stream.next()[1]["step"] == 9
    stream.close()


def test_listener_that_lost_events_gets_the_current_state(
    server: ServerInThread, rank: Rank
) -> None:
    stream = Stream(server.http, rank.path)
    wait_for_listener(server)
    time.sleep(0.1)

    def edit_amid_many_steps(transaction: Transaction) -> None:
        run_key = runs.key_of(transaction.connection, rank.run_id)
        assert run_key is not None
        runs.edit(transaction.connection, run_key, name=None, tags=["seen"], notes=None)
        transaction.announce(RunChanged(run_id=rank.run_id))
        for step in range(QUEUE_LENGTH):
            transaction.announce(stored_step(rank.run_id, step))

    server.backend.writer.submit(edit_amid_many_steps).result(timeout=10)
    kind, data, _ = stream.next()
    if data["tags"] == []:
        # That the run began may reach later listeners: news between servers take a moment.
        kind, data, _ = stream.next()
    assert (kind, data["tags"]) == ("run", ["seen"])
    stream.close()


def test_open_streams_do_not_hold_up_the_end(make_server: MakeServer) -> None:
    server = make_server()
    rank = Rank(server)
    watching = rank.watch(timeout=30)
    stream = Stream(server.http, rank.path)
    wait_for_listener(server, 2)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    stopping.join(timeout=10)
    assert not stopping.is_alive()
    watching.close()
    stream.close()
