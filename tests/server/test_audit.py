"""The audit trail has every change with the name and the token of its author; names of tokens."""

from __future__ import annotations

import time
from typing import Any

import pytest

from isentrope_wire.control import Control
from isentrope_wire.reports import ControlSnapshot, RunFinished
from isentrope_wire.v1 import telemetry_pb2 as pb
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank


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


def test_trail_is_listed_newest_first_page_by_page(audited: ServerInThread) -> None:
    listed = audited.http.get("/api/v1/audit", params={"limit": 3}).json()
    assert listed["items"][0]["action"] == "token.created"
    rest = audited.http.get("/api/v1/audit", params={"cursor": listed["next_cursor"]}).json()[
        "items"
    ]
    assert rest[-1]["action"] == "token.created"
    assert rest[-1]["actor"] == "server"
    numbers = [item["number"] for item in [*listed["items"], *rest]]
    assert numbers == sorted(set(numbers), reverse=True)


def test_trail_of_one_run_holds_its_controls_alone(audited: ServerInThread) -> None:
    every = audited.http.get("/api/v1/audit", params={"limit": 500}).json()["items"]
    run = next(item["subject"] for item in every if item["action"] == "control.requested").split(
        "/"
    )[1]
    found = audited.http.get("/api/v1/audit", params={"run": run, "limit": 500}).json()["items"]
    expected = [item for item in every if item["subject"].split("/")[:2] == ["runs", run]]
    assert found == expected
    assert 0 < len(found) < len(every)
    assert audited.http.get("/api/v1/audit", params={"run": run[:-1]}).json()["items"] == []


def newest(server: ServerInThread, action: str) -> dict[str, Any]:
    items = server.http.get("/api/v1/audit", params={"limit": 100}).json()["items"]
    found: dict[str, Any] = next(item for item in items if item["action"] == action)
    return found


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
    token = server.issue("ingest", "node 7")
    claimed = ControlSnapshot(
        version=3, control=Control(reason="r"), author="owner", requested_at=1.0
    )
    rank = ReportsAs(server, token, initial_control=claimed, started_at=1000.0)
    entry = newest(server, "control.initial")
    assert (entry["actor"], entry["token_id"]) == ("node 7", token["id"])
    assert entry["at"] == pytest.approx(time.time(), abs=30)
    assert (entry["change"]["claimed_author"], entry["change"]["claimed_at"]) == ("owner", 1000.0)
    assert entry["change"]["new"]["reason"] == "r"
    (item,) = server.http.get(f"{rank.path}/control/history").json()["items"]
    assert (item["version"], item["author"]) == (3, "run (owner)")


@pytest.mark.parametrize(
    ("claimed", "author"),
    [
        ("", "run"),
        ("trainer", "run"),
        ("ada", "run (ada)"),
        ("run (ada)", "run (ada)"),
        ("run", "run"),
    ],
)
def test_a_run_s_first_control_has_an_author_that_no_token_is_called(
    server: ServerInThread, claimed: str, author: str
) -> None:
    brought = ControlSnapshot(version=0, control=Control(), author=claimed, requested_at=1.0)
    rank = Rank(server, initial_control=brought)
    assert server.http.get(f"{rank.path}/control/history").json()["items"][0]["author"] == author
    assert (
        server.http.post(
            "/api/v1/access-tokens", json={"scope": "ingest", "name": author}
        ).status_code
        == 422
    )


def test_every_entry_of_a_token_s_doing_holds_its_id(make_server: MakeServer) -> None:
    server = make_server()
    rank = Rank(server)
    first, second = (server.issue("admin", "ada") for _ in range(2))
    for version, token in enumerate((first, second)):
        with server.client(token["token"]) as client:
            put = client.put(
                f"{rank.path}/control",
                json={"method": "none"},
                headers={"If-Match": f'"{version}"'},
            )
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
        "\uff4fwner",
    ],
)
def test_no_token_is_called_what_somebody_else_is(server: ServerInThread, name: str) -> None:
    answer = server.http.post("/api/v1/access-tokens", json={"scope": "read", "name": name})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unprocessable")
    assert repr(name) in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "name", ["ada\nserver", "ada\x1b[2J", "ada\u200b", "\u202eada", "ada\0", "   "]
)
def test_token_names_have_no_invisible_characters(server: ServerInThread, name: str) -> None:
    answer = server.http.post("/api/v1/access-tokens", json={"scope": "read", "name": name})
    assert answer.status_code == 422
