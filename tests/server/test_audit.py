"""The audit trail shows every way in which somebody could have changed it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select, update

from isentrope_server.store import access
from isentrope_server.store.access import Verification
from isentrope_server.store.tables import audit as entries
from isentrope_server.store.tables import audit_head
from isentrope_wire.control import Control
from isentrope_wire.reports import ControlSnapshot, RunFinished
from isentrope_wire.v1 import telemetry_pb2 as pb
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

DATABASES = ("sqlite", "postgresql")


@pytest.fixture(scope="module")
def audited(still_server: ServerInThread) -> ServerInThread:
    """A server with a dozen entries: tokens, a run, controls."""
    rank = Rank(still_server)
    for version in range(4):
        still_server.http.put(
            f"{rank.path}/control",
            json={"method": "clip_v", "mu_low": 0.1 + version, "reason": "µ ≠ 0.1"},
            headers={"If-Match": f'"{version}"'},
        )
    still_server.http.patch(rank.path, json={"tags": ["a"], "notes": "n"})
    still_server.token("read")
    return still_server


def verified(server: ServerInThread, head: str | None = None) -> dict[str, object]:
    answer = server.http.get("/api/v1/audit/verification", params={} if head is None else {"head": head})
    found: dict[str, object] = answer.json()
    return found


def tamper(server: ServerInThread, work: Callable[[Connection], object]) -> None:
    server.backend.writer.submit(lambda transaction: work(transaction.connection)).result(timeout=10)


def found_after(
    server: ServerInThread, work: Callable[[Connection], object], *, earlier_head: bytes | None = None
) -> Verification:
    """What a look at the trail finds after this change, which is undone."""
    with server.backend.database.writing_engine.connect() as connection, connection.begin() as transaction:
        work(connection)
        found = access.verify_audit(connection, earlier_head=earlier_head)
        transaction.rollback()
    assert verified(server)["is_whole"] is True
    return found


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


def test_trail_of_one_run_holds_its_controls_alone(audited: ServerInThread) -> None:
    every = audited.http.get("/api/v1/audit", params={"limit": 500}).json()["items"]
    run = next(item["subject"] for item in every if item["action"] == "control.requested").split("/")[1]
    found = audited.http.get("/api/v1/audit", params={"run": run, "limit": 500}).json()["items"]
    expected = [item for item in every if item["subject"].split("/")[:2] == ["runs", run]]
    assert found == expected
    assert 0 < len(found) < len(every)
    assert audited.http.get("/api/v1/audit", params={"run": run[:-1]}).json()["items"] == []


@pytest.mark.parametrize("column", ["at", "actor", "action", "subject", "change", "chain_hash", "token_id"])
def test_changed_entry_is_found_in_any_place(audited: ServerInThread, column: str) -> None:
    values = {"at": 1.0, "change": {"new": "other"}, "chain_hash": b"0" * 32}
    with audited.backend.database.reading() as connection:
        third = keys(connection)[2]
    change = update(entries).where(entries.c.key == third).values({column: values.get(column, "other")})
    found = found_after(audited, lambda c: c.execute(change))
    assert (found.is_whole, found.broken_at) == (False, third)


@pytest.mark.parametrize("position", [0, 3, -1])
def test_a_missing_entry_shows_at_the_beginning_in_the_middle_and_at_the_end(
    audited: ServerInThread, position: int
) -> None:
    found = found_after(audited, lambda c: c.execute(delete(entries).where(entries.c.key == keys(c)[position])))
    assert (found.is_whole, found.is_cut) == (False, True)


def test_two_entries_that_changed_places_show(audited: ServerInThread) -> None:
    def swap(connection: Connection) -> None:
        first, second = keys(connection)[2:4]
        for old, new in ((first, -1), (second, first), (-1, second)):
            connection.execute(update(entries).where(entries.c.key == old).values(key=new))

    assert not found_after(audited, swap).is_whole


def test_an_entry_slipped_in_at_the_end_shows(make_server: MakeServer) -> None:
    def slip_in(connection: Connection) -> None:
        connection.execute(
            insert(entries).values(at=1.0, actor="x", action="x", subject="x", change={}, chain_hash=b"0" * 32)
        )

    server = make_server()
    tamper(server, slip_in)
    with server.backend.database.reading() as connection:
        last = keys(connection)[-1]
    assert (verified(server)["is_whole"], verified(server)["broken_at"]) == (False, last)


def test_a_trail_that_was_emptied_with_its_head_shows_against_a_hash_kept_elsewhere(audited: ServerInThread) -> None:
    head = str(verified(audited)["head"])
    assert verified(audited, head)["is_whole"] is True
    audited.token("read")
    assert verified(audited, head)["is_whole"] is True, "an earlier head is still valid"

    def rebuild(connection: Connection) -> None:
        connection.execute(delete(entries))
        connection.execute(update(audit_head).values(entries=0, chain_hash=b""))
        access.record_audit(connection, at=1.0, actor="x", action="x", subject="x", change={})

    assert found_after(audited, rebuild).is_whole
    found = found_after(audited, rebuild, earlier_head=bytes.fromhex(head))
    assert (found.is_whole, found.knows_earlier_head) == (False, False)


def test_names_that_the_database_keeps_otherwise_do_not_break_the_chain(make_server: MakeServer) -> None:
    server = make_server()
    hostile = ControlSnapshot(version=0, control=Control(reason="a\0b"), author="pro\0be", requested_at=1.0)
    Rank(server, initial_control=hostile)
    assert verified(server)["is_whole"] is True


def newest(server: ServerInThread, action: str) -> dict[str, Any]:
    items = server.http.get("/api/v1/audit", params={"limit": 100}).json()["items"]
    found: dict[str, Any] = next(item for item in items if item["action"] == action)
    return found


def issue(server: ServerInThread, scope: str, name: str) -> dict[str, Any]:
    answer = server.http.post("/api/v1/access-tokens", json={"scope": scope, "name": name})
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


class ReportsAs(Rank):
    """A run whose reports come with this token."""

    def __init__(self, server: ServerInThread, token: dict[str, Any], **described: Any) -> None:
        self.token = token
        super().__init__(server, **described)

    def hello(self) -> pb.HelloReply:
        self.metadata = (("authorization", f"Bearer {self.token['token']}"),)
        return super().hello()


def test_reported_author_and_time_are_kept_as_reported(make_server: MakeServer) -> None:
    server = make_server()
    token = issue(server, "ingest", "node 7")
    claimed = ControlSnapshot(version=3, control=Control(reason="r"), author="owner", requested_at=1.0)
    rank = ReportsAs(server, token, initial_control=claimed, started_at=1000.0)
    entry = newest(server, "control.initial")
    assert (entry["actor"], entry["token_id"]) == ("node 7", token["id"])
    assert entry["at"] == pytest.approx(time.time(), abs=30)
    assert (entry["change"]["claimed_author"], entry["change"]["claimed_at"]) == ("owner", 1000.0)
    assert entry["change"]["new"]["reason"] == "r"
    (item,) = server.http.get(f"{rank.path}/control/history").json()["items"]
    assert (item["version"], item["author"]) == (3, "run (owner)")
    assert verified(server)["is_whole"] is True


@pytest.mark.parametrize(
    ("claimed", "author"),
    [("", "run"), ("trainer", "run"), ("ada", "run (ada)"), ("run (ada)", "run (ada)"), ("run", "run")],
)
def test_a_run_s_first_control_has_an_author_that_no_token_is_called(
    server: ServerInThread, claimed: str, author: str
) -> None:
    brought = ControlSnapshot(version=0, control=Control(), author=claimed, requested_at=1.0)
    rank = Rank(server, initial_control=brought)
    assert server.http.get(f"{rank.path}/control/history").json()["items"][0]["author"] == author
    assert server.http.post("/api/v1/access-tokens", json={"scope": "ingest", "name": author}).status_code == 422


def test_every_entry_of_a_token_s_doing_holds_its_id(make_server: MakeServer) -> None:
    server = make_server()
    rank = Rank(server)
    first, second = (issue(server, "admin", "ada") for _ in range(2))
    for version, token in enumerate((first, second)):
        with server.client(token["token"]) as client:
            put = client.put(f"{rank.path}/control", json={"method": "none"}, headers={"If-Match": f'"{version}"'})
            assert put.status_code == 202
    with server.client(second["token"]) as client:
        client.patch(rank.path, json={"notes": "n"})
        client.delete(f"/api/v1/access-tokens/{first['id']}")
        rank.send(RunFinished(status="finished", step=1, finished_at=time.time(), error=""))
        assert client.delete(rank.path).status_code == 204
    items = server.http.get("/api/v1/audit", params={"limit": 100}).json()["items"]
    by_ada = [(item["action"], item["token_id"]) for item in items if item["actor"] == "ada"][::-1]
    assert by_ada == [
        ("control.requested", first["id"]),
        ("control.requested", second["id"]),
        ("control.superseded", second["id"]),
        ("run.edited", second["id"]),
        ("token.revoked", second["id"]),
        ("run.deleted", second["id"]),
    ]
    assert {item["token_id"] for item in items if item["actor"] in ("server", "rank 0")} == {None}
    owners = {item["token_id"] for item in items if item["actor"] == "owner"}
    assert len(owners) == 1
    assert owners.isdisjoint({None, first["id"], second["id"]})
    assert verified(server)["is_whole"] is True


@pytest.mark.parametrize(
    "name",
    [
        "owner",
        " Owner",
        "SERVER",
        "rank 0",
        "rank 0, rank 1",
        "rank",
        "run",
        "run (ada)",
        "command  line",
        "\uff4fwner",
    ],
)
def test_no_token_is_called_what_somebody_else_is(server: ServerInThread, name: str) -> None:
    answer = server.http.post("/api/v1/access-tokens", json={"scope": "read", "name": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unprocessable")
    assert repr(name) in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["ada\nserver", "ada\x1b[2J", "ada\u200b", "\u202eada", "ada\0", "   "])
def test_token_names_have_no_invisible_characters(server: ServerInThread, name: str) -> None:
    answer = server.http.post("/api/v1/access-tokens", json={"scope": "read", "name": name})
    assert answer.status_code == 422


@pytest.mark.parametrize("name", ["rankine", "run 7", "server room", "\u00b5-test", "owner of node 3", "\u6797"])
def test_other_names_are_free(server: ServerInThread, name: str) -> None:
    assert issue(server, "read", name)["name"] == name
