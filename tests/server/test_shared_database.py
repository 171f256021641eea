"""Two servers on one PostgreSQL: both give the same answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import select, text

from isentrope_server import live
from isentrope_server.store.tables import records, runs
from isentrope_server.store.writer import ControlChanged, Event, TokensChanged
from isentrope_wire.backoff import Backoff
from isentrope_wire.numbers import document_of, read_exactly
from tests.server.in_thread import ServerInThread
from tests.server.postgresql import PostgreSQL
from tests.server.rank import Rank
from tests.system.running_server import wait_for

pytestmark = pytest.mark.slow

OWNER_TOKEN = "the-owner-s-at-both-servers-of-one-database"

Pair = tuple[ServerInThread, ServerInThread]


@pytest.fixture(scope="module")
def pair(postgresql: PostgreSQL, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Started at once on a database that no server has ever used."""
    homes = tmp_path_factory.mktemp("pair")
    with postgresql.empty_database() as url, ExitStack() as stack:
        servers = [
            ServerInThread(
                homes / name,
                database_url=url,
                token=OWNER_TOKEN,
                heartbeat_seconds=0.3,
                sweep_interval_seconds=60,
            )
            for name in ("first", "second")
        ]
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(stack.enter_context, servers)
        wait_for(lambda: first.backend.on_duty or second.backend.on_duty)
        yield first, second


def end_listening_sessions(server: ServerInThread) -> None:
    with server.backend.database.writing_engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
                " current_database() AND query NOT LIKE '%pg_stat_activity%' AND pid <>"
                " pg_backend_pid()"
            )
        )


def test_both_know_the_owner_they_were_given_and_each_other_s_runs(pair: Pair) -> None:
    first, second = pair
    assert first.owner_token == second.owner_token == OWNER_TOKEN
    rank = Rank(first)
    rank.report(0, x=1.5)
    assert second.http.get(f"{rank.path}/steps/0").json()["scalars"] == {"x": 1.5}


def test_each_server_keeps_an_owner_of_its_own_where_none_was_given(
    postgresql: PostgreSQL, tmp_path: Path
) -> None:
    with (
        postgresql.new_database() as url,
        ServerInThread(tmp_path / "first", database_url=url) as first,
        ServerInThread(tmp_path / "second", database_url=url) as second,
    ):
        assert first.owner_token != second.owner_token
        for server in (first, second):
            for token in (first.owner_token, second.owner_token):
                wait_for(
                    lambda server=server, token=token: (  # type: ignore[misc]
                        server.client(token).get("/api/v1/runs").is_success
                    )
                )


def test_a_token_is_known_and_revoked_everywhere_at_once(pair: Pair) -> None:
    first, second = pair
    created = first.http.post(
        "/api/v1/access-tokens", json={"scope": "read", "name": "visitor"}
    ).json()
    with second.client(created["token"]) as visitor:
        wait_for(lambda: visitor.get("/api/v1/runs").status_code == 200, seconds=8)
        first.http.delete(f"/api/v1/access-tokens/{created['id']}")
        wait_for(lambda: visitor.get("/api/v1/runs").status_code == 401, seconds=8)


def test_a_browser_behind_a_proxy_has_one_session_at_both(pair: Pair) -> None:
    first, second = pair
    cookie = {**first.session(), "Host": "localhost:443"}
    for server in (second, first):
        with server.client() as browser:
            assert browser.get("/api/v1/runs", headers=cookie).status_code == 200


def test_ranks_that_report_to_different_servers_share_one_order(pair: Pair) -> None:
    run_id = f"ranks-{time.time_ns()}"
    ranks = [Rank(pair[number % 2], run_id=run_id, rank=number) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda rank: [rank.report(step, x=float(step)) for step in range(25)], ranks))
    with pair[0].backend.database.reading() as connection:
        positions = connection.execute(
            select(records.c.first_position, records.c.last_position)
            .join(runs, runs.c.key == records.c.run_key)
            .where(runs.c.id == run_id)
        ).all()
        assert sorted(n for first, last in positions for n in range(first, last + 1)) == list(
            range(1, 101)
        )
    assert [rank.hello().acked_through for rank in ranks] == [25] * 4


def test_a_control_pushed_at_one_server_reaches_the_probe_at_the_other(pair: Pair) -> None:
    first, second = pair
    rank = Rank(first)
    watching = rank.watch()
    wait_for(lambda: first.backend.hub.is_listened_to(rank.run_id))
    started = time.monotonic()
    document = {"method": "clip_v", "mu_high": 1, "reason": "from the other side"}
    assert (
        second.http.put(
            f"{rank.path}/control", json=document, headers={"If-Match": '"0"'}
        ).status_code
        == 202
    )
    assert watching.next_control().version == 1
    assert time.monotonic() - started < 8.0
    rank.answer(0, 1, "APPLIED", active=1)
    history = second.http.get(f"{rank.path}/control/history").json()["items"]
    assert (history[0]["version"], history[0]["state"]) == (1, "APPLIED")
    watching.close()


def test_of_many_changes_at_both_servers_exactly_one_wins(pair: Pair) -> None:
    rank = Rank(pair[0])

    def put(number: int) -> int:
        with pair[number % 2].client(OWNER_TOKEN) as client:
            headers = {"If-Match": '"0"'}
            return client.put(
                f"{rank.path}/control", json={"method": "none"}, headers=headers
            ).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(put, range(8)))
    assert sorted(statuses) == [202, *[412] * 7]


def test_news_missed_meanwhile_is_sent_afterwards(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for both changes to be committed while there is no listener.
    monkeypatch.setattr(Backoff, "next_pause_seconds", lambda _: 3.0)
    first, second = pair
    rank = Rank(first)
    watching = Rank(second, run_id=rank.run_id, rank=1).watch()
    wait_for(lambda: second.backend.hub.is_listened_to(rank.run_id))
    time.sleep(0.2)
    end_listening_sessions(second)
    with first.client(OWNER_TOKEN) as client:
        client.put(f"{rank.path}/control", json={"method": "none"}, headers={"If-Match": '"0"'})
    assert watching.next_control().version == 1
    watching.close()


def test_exactly_one_server_is_on_duty_and_the_other_takes_over(
    postgresql: PostgreSQL, tmp_path: Path
) -> None:
    with (
        postgresql.new_database() as url,
        ServerInThread(tmp_path / "first", database_url=url) as first,
    ):
        wait_for(lambda: first.backend.on_duty)
        with ServerInThread(tmp_path / "second", database_url=url) as second:
            time.sleep(0.3)
            assert not second.backend.on_duty
            first.stop()
            wait_for(lambda: second.backend.on_duty, seconds=6)


def test_a_notification_is_small_whatever_was_written() -> None:
    run_id = "r" * 128
    events: list[Event] = [*[ControlChanged(run_id=run_id)] * 500, TokensChanged()]
    of_tokens, received = live.news_of(events)
    assert (received.run_id, of_tokens.run_id) == (run_id, "")
    payload = json.dumps(document_of(received))
    assert len(payload) < 200
    assert read_exactly(live.News, json.loads(payload)) == received
