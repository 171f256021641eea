"""The audit trail shows every way in which somebody could have changed it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, delete, insert, select, update

from isentrope_server.store import audit
from isentrope_server.store.tables import audit as entries
from isentrope_server.store.tables import audit_head
from isentrope_wire.control import Control
from isentrope_wire.messages import ControlSnapshot
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank


@pytest.fixture
def audited(make_server: MakeServer) -> ServerInThread:
    """A server with a dozen entries: tokens, a run, controls."""
    server = make_server()
    rank = Rank(server)
    for version in range(4):
        server.http.put(
            f"{rank.path}/control",
            json={"method": "clip_v", "mu_low": 0.1 + version, "reason": "µ ≠ 0.1"},
            headers={"If-Match": f'"{version}"'},
        )
    server.http.patch(rank.path, json={"tags": ["a"], "notes": "n"})
    server.token("read")
    return server


def verified(server: ServerInThread, head: str | None = None) -> dict[str, object]:
    answer = server.http.get("/api/v1/audit/verification", params={} if head is None else {"head": head})
    found: dict[str, object] = answer.json()
    return found


def tamper(server: ServerInThread, work: Callable[[Connection], object]) -> None:
    server.backend.writer.submit(lambda transaction: work(transaction.connection)).result(timeout=10)


def keys(connection: Connection) -> list[int]:
    return list(connection.execute(select(entries.c.key).order_by(entries.c.key)).scalars())


def test_an_untouched_trail_is_whole_and_listed_newest_first(audited: ServerInThread) -> None:
    found = verified(audited)
    assert (found["is_whole"], found["broken_at"], found["is_cut"]) == (True, None, False)
    listed = audited.http.get("/api/v1/audit", params={"limit": 3}).json()
    assert listed["items"][0]["action"] == "token.created"
    assert listed["items"][0]["chain_hash"] == found["head"]
    rest = audited.http.get("/api/v1/audit", params={"cursor": listed["next_cursor"]}).json()["items"]
    assert rest[-1]["action"] == "token.created"
    assert rest[-1]["actor"] == "server"
    assert len(rest) + 3 == found["entries"]


@pytest.mark.parametrize("column", ["at", "actor", "action", "subject", "change", "chain_hash"])
def test_a_changed_entry_shows_wherever_it_stands(audited: ServerInThread, column: str) -> None:
    values = {"at": 1.0, "change": {"new": "other"}, "chain_hash": b"0" * 32}
    with audited.backend.database.reading() as connection:
        third = keys(connection)[2]
    tamper(
        audited,
        lambda c: c.execute(
            update(entries).where(entries.c.key == third).values({column: values.get(column, "other")})
        ),
    )
    assert (verified(audited)["is_whole"], verified(audited)["broken_at"]) == (False, third)


@pytest.mark.parametrize("position", [0, 3, -1])
def test_a_missing_entry_shows_at_the_beginning_in_the_middle_and_at_the_end(
    audited: ServerInThread, position: int
) -> None:
    tamper(audited, lambda c: c.execute(delete(entries).where(entries.c.key == keys(c)[position])))
    found = verified(audited)
    assert found["is_whole"] is False
    assert found["is_cut"] is True


def test_two_entries_that_changed_places_show(audited: ServerInThread) -> None:
    def swap(connection: Connection) -> None:
        first, second = keys(connection)[2:4]
        for old, new in ((first, -1), (second, first), (-1, second)):
            connection.execute(update(entries).where(entries.c.key == old).values(key=new))

    tamper(audited, swap)
    assert verified(audited)["is_whole"] is False


def test_an_entry_slipped_in_at_the_end_shows(audited: ServerInThread) -> None:
    def slip_in(connection: Connection) -> None:
        connection.execute(
            insert(entries).values(at=1.0, actor="x", action="x", subject="x", change={}, chain_hash=b"0" * 32)
        )

    tamper(audited, slip_in)
    assert verified(audited)["is_whole"] is False


def test_a_trail_that_was_emptied_with_its_head_shows_against_a_hash_kept_elsewhere(audited: ServerInThread) -> None:
    head = str(verified(audited)["head"])
    assert verified(audited, head)["is_whole"] is True
    audited.token("read")
    assert verified(audited, head)["is_whole"] is True, "an earlier head still stands"

    def make_anew(connection: Connection) -> None:
        connection.execute(delete(entries))
        connection.execute(update(audit_head).values(entries=0, chain_hash=b""))
        audit.record(connection, at=1.0, actor="x", action="x", subject="x", change={})

    tamper(audited, make_anew)
    assert verified(audited)["is_whole"] is True
    found = verified(audited, head)
    assert (found["is_whole"], found["knows_earlier_head"]) == (False, False)


def test_names_that_the_database_keeps_otherwise_do_not_break_the_chain(make_server: MakeServer) -> None:
    server = make_server()
    hostile = ControlSnapshot(version=0, control=Control(reason="a\0b"), author="pro\0be", requested_at=1.0)
    Rank(server, initial_control=hostile)
    assert verified(server)["is_whole"] is True
