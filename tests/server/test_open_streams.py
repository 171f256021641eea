"""Streams end with their token; a bound token reports its own run; when a token was used last."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest

from isentrope_server.store import access
from isentrope_wire.codec import record_of, record_to_pb
from isentrope_wire.v1 import telemetry_pb2 as pb
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, Watching, step_report

SOON_SECONDS = 8.0
"""Long before it would end by itself, however busy the machine is."""


def issue(server: ServerInThread, scope: str, **bound_to: str) -> dict[str, Any]:
    answer = server.http.post("/api/v1/access-tokens", json={"scope": scope, "name": f"{scope} token", **bound_to})
    assert answer.status_code == 201, answer.text
    created: dict[str, Any] = answer.json()
    return created


def revoke(server: ServerInThread, token: dict[str, Any]) -> None:
    assert server.http.delete(f"/api/v1/access-tokens/{token['id']}").status_code == 204


def seconds_until(end: Callable[[], None]) -> float:
    began = time.monotonic()
    end()
    return time.monotonic() - began


def test_a_live_stream_ends_with_its_token_and_others_go_on(server: ServerInThread) -> None:
    rank = Rank(server)
    leaving, staying = issue(server, "read"), issue(server, "read")
    with (
        server.client(leaving["token"]) as one,
        server.client(staying["token"]) as other,
        one.stream("GET", f"{rank.path}/live") as left,
        other.stream("GET", f"{rank.path}/live") as kept,
    ):
        lines, kept_lines = left.iter_lines(), kept.iter_lines()
        rank.report(1, x=1.0)
        assert next(lines).startswith("id:")
        revoke(server, leaving)
        assert seconds_until(lambda: exhaust(lines)) < SOON_SECONDS
        rank.report(2, x=2.0)
        assert any(line.startswith("data:") and '"step":2' in line for line in kept_lines)


def exhaust(lines: Any) -> None:
    for _ in lines:
        pass


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/v1/access-tokens"), ("PUT", "/control")])
def test_a_request_whose_body_comes_after_the_revocation_does_nothing(
    server: ServerInThread, method: str, path: str
) -> None:
    rank = Rank(server)
    path = path if method == "POST" else rank.path + path
    token = issue(server, "admin")
    etag = server.http.get(f"{rank.path}/control").headers["etag"]
    content = {
        "POST": {"scope": "admin", "name": "successor"},
        "PUT": {"method": "clip_v", "mu_low": 1.0, "reason": "late"},
    }
    body = json.dumps(content[method]).encode()
    address = httpx.URL(server.url)
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {address.netloc.decode()}\r\nAuthorization: Bearer {token['token']}\r\n"
        f"If-Match: {etag}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
        "Connection: close\r\n\r\n"
    )
    with socket.create_connection((address.host, address.port or 80), timeout=10) as connection:
        connection.sendall(head.encode() + body[:5])
        # Sent when the body is waited for: the request was let in.
        assert connection.recv(65536).startswith(b"HTTP/1.1 100")
        revoke(server, token)
        connection.sendall(body[5:])
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 401")
    assert b'"unauthenticated"' in answer
    names = [item["name"] for item in server.http.get("/api/v1/access-tokens").json()["items"]]
    assert "successor" not in names
    assert server.http.get(f"{rank.path}/control").headers["etag"] == etag


def test_a_report_that_comes_after_the_revocation_is_not_stored(server: ServerInThread) -> None:
    rank = Rank(server)
    token = issue(server, "ingest")

    def late() -> Iterator[pb.PushRequest]:
        while token["id"] not in server.backend.tokens.take_uses():
            time.sleep(0.01)
        revoke(server, token)
        record = record_to_pb(record_of(1, step_report(0, {"x": 1.0})))
        yield pb.PushRequest(run_id=rank.run_id, incarnation="first", rank=0, records=[record])

    with grpc.insecure_channel(server.grpc_target) as channel:
        push = channel.stream_unary(
            "/isentrope_wire.v1.Telemetry/Push",
            request_serializer=pb.PushRequest.SerializeToString,
            response_deserializer=pb.PushReply.FromString,
        )
        with pytest.raises(grpc.RpcError) as refused:
            push(late(), metadata=(("authorization", f"Bearer {token['token']}"),), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "revoked" in str(refused.value.details())
    assert server.http.get(f"{rank.path}/metrics").json()["items"] == []


def test_a_watch_ends_with_its_token(server: ServerInThread) -> None:
    rank = Rank(server)
    token = issue(server, "ingest")
    rank.metadata = (("authorization", f"Bearer {token['token']}"),)
    watching = rank.watch()
    assert watching.next_kind() == "heartbeat"
    revoke(server, token)
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as refused:
        until_the_end(watching)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert time.monotonic() - began < SOON_SECONDS


def until_the_end(watching: Watching) -> None:
    while True:
        watching.next_kind()


def test_a_token_that_another_server_revoked_is_noticed(make_server: MakeServer) -> None:
    server = make_server()
    token = issue(server, "read")
    server.backend.writer.submit(lambda t: access.revoke_token(t.connection, token["id"], time.time())).result(10)
    with server.client(token["token"]) as client:
        end = time.monotonic() + SOON_SECONDS
        while client.get("/api/v1/runs").status_code == 200:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_last_use_of_a_token_is_recorded(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isentrope_server.housekeeping.RELOAD_SECONDS", 0.05)
    monkeypatch.setattr("isentrope_server.housekeeping.NOTE_USES_SECONDS", 0.05)
    server = make_server()
    used, unused = issue(server, "read"), issue(server, "read")
    assert used["last_used_at"] is None
    with server.client(used["token"]) as client:
        client.get("/api/v1/runs")

    def last_used(token: dict[str, Any]) -> float | None:
        listed = server.http.get("/api/v1/access-tokens").json()["items"]
        at: float | None = next(item["last_used_at"] for item in listed if item["id"] == token["id"])
        return at

    end = time.monotonic() + SOON_SECONDS
    while last_used(used) is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert last_used(used) == pytest.approx(time.time(), abs=5)
    assert last_used(unused) is None


def reports_as(server: ServerInThread, token: dict[str, Any], **described: Any) -> Rank:
    """A run that reports with this token from its Hello on."""

    class Bound(Rank):
        def hello(self) -> Any:
            self.metadata = (("authorization", f"Bearer {token['token']}"),)
            return super().hello()

    return Bound(server, **described)


def refused_code(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    code: grpc.StatusCode = refused.value.code()
    return code


@pytest.mark.parametrize(
    ("bound_to", "own", "foreign"),
    [
        ({"run": "mine-1"}, {"run_id": "mine-1"}, {"run_id": "other-1"}),
        ({"run": "by name"}, {"run_id": "named-1", "name": "by name"}, {"run_id": "named-2", "name": "other"}),
        ({"project": "p"}, {"run_id": "in-p", "project": "p"}, {"run_id": "in-q", "project": "q"}),
        (
            {"run": "both", "project": "p"},
            {"run_id": "both", "project": "p"},
            {"run_id": "both-elsewhere", "name": "both", "project": "q"},
        ),
    ],
)
def test_a_bound_token_reports_its_own_run_and_no_other(
    make_server: MakeServer, bound_to: dict[str, str], own: dict[str, Any], foreign: dict[str, Any]
) -> None:
    server = make_server(heartbeat_seconds=0.1)
    token = issue(server, "ingest", **bound_to)
    assert {name: token[name] for name in bound_to} == bound_to
    rank = reports_as(server, token, **own)
    assert rank.report(1, x=1.0).acked_through == 1
    assert rank.watch().next_kind() == "heartbeat"
    assert refused_code(lambda: reports_as(server, token, **foreign)) is grpc.StatusCode.PERMISSION_DENIED
    foreigner = Rank(server, **foreign)
    foreigner.metadata = rank.metadata
    for call in (foreigner.hello, lambda: foreigner.report(1, x=1.0), lambda: foreigner.watch().next_kind()):
        assert refused_code(call) is grpc.StatusCode.PERMISSION_DENIED


def test_a_bound_token_cannot_take_over_another_project_s_run_by_calling_it_its_own(server: ServerInThread) -> None:
    token = issue(server, "ingest", project="mine")
    theirs = Rank(server, project="theirs")
    code = refused_code(
        lambda: reports_as(server, token, run_id=theirs.run_id, incarnation="second", project="mine", name="a run")
    )
    assert code is grpc.StatusCode.PERMISSION_DENIED


def test_only_tokens_that_report_are_bound(server: ServerInThread) -> None:
    answer = server.http.post("/api/v1/access-tokens", json={"scope": "read", "run": "r"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unprocessable")
