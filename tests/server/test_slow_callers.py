"""Idle connections are closed; calls without a token are refused before their message is read."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator

import grpc
import httpx
import pytest

from isentrope_server import serving
from isentrope_server.api import export
from isentrope_server.ingest import servicer
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank, step_report

PATIENCE_SECONDS = 0.4
IDLE_SECONDS = 1.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
SETTINGS_SEEN = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"
MAX_CONCURRENT_STREAMS = 3


@pytest.fixture
def impatient(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> ServerInThread:
    """A server that waits half a second for a handshake, and a second for a call."""
    monkeypatch.setattr(servicer, "IDLE_MILLISECONDS", round(IDLE_SECONDS * 1000))
    monkeypatch.setattr(servicer, "HANDSHAKE_MILLISECONDS", round(PATIENCE_SECONDS * 1000))
    return make_server(heartbeat_seconds=0.1)


def opened(server: ServerInThread, *, http: bool = False) -> socket.socket:
    host, port = (server.url.removeprefix("http://") if http else server.grpc_target).split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.settimeout(10)
    return connection


def read_until_closed(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass


def status_without_a_message(
    server: ServerInThread, method: str, token: str | None
) -> grpc.StatusCode:
    """How a call ends whose message is announced and doesn't come."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(20)
        yield from ()

    path = f"/isentrope_wire.v1.Telemetry/{method}"
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    call = server.channel().stream_unary(path, bytes, bytes)
    try:
        call(nothing(), metadata=metadata, timeout=10)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    finally:
        over.set()
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", ["Hello", "Push", "Watch", "Unknown"])
def test_a_call_without_a_token_is_refused_before_its_message_is_read(
    server: ServerInThread, method: str
) -> None:
    assert status_without_a_message(server, method, None) is grpc.StatusCode.UNAUTHENTICATED


def test_a_connection_may_have_a_thousand_calls_open(server: ServerInThread) -> None:
    with opened(server) as connection:
        connection.sendall(PREFACE + NO_SETTINGS)
        frame = connection.recv(65536)
    length = int.from_bytes(frame[:3])
    settings = dict(struct.iter_unpack(">HI", frame[9 : 9 + length]))
    assert settings[MAX_CONCURRENT_STREAMS] == 1000


@pytest.mark.parametrize("sent", [b"", PREFACE, PREFACE + NO_SETTINGS + SETTINGS_SEEN])
def test_a_connection_without_a_call_is_closed(impatient: ServerInThread, sent: bytes) -> None:
    with opened(impatient) as connection:
        connection.sendall(sent)
        began = time.monotonic()
        read_until_closed(connection)
    assert time.monotonic() - began < 9.0


def test_a_watch_stream_and_its_connection_outlive_every_deadline(
    impatient: ServerInThread,
) -> None:
    rank = Rank(impatient)
    watching = rank.watch()
    began = time.monotonic()
    while time.monotonic() - began < IDLE_SECONDS + PATIENCE_SECONDS:
        assert watching.next_kind() == "heartbeat"
    assert rank.report(0, x=1.0).acked_through == 1
    watching.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"G",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nG",
    ],
)
def test_a_connection_without_a_whole_request_is_closed(
    server: ServerInThread, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", PATIENCE_SECONDS)
    with opened(server, http=True) as connection:
        connection.sendall(sent)
        began = time.monotonic()
        read_until_closed(connection)
    assert time.monotonic() - began < 4.0


def test_beyond_the_limit_of_connections_only_the_liveness_probe_is_answered(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server()
    monkeypatch.setattr(serving, "HTTP_CONNECTIONS", 3)
    with contextlib.ExitStack() as silent:
        for _ in range(4):
            silent.enter_context(opened(server, http=True))
        refused = server.http.get("/api/v1/runs")
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            503,
            "too_many_connections",
        )
        assert server.http.get("/healthz").status_code == 200
    end = time.monotonic() + 10
    while server.http.get("/api/v1/runs").status_code != 200:
        assert time.monotonic() < end


@contextlib.contextmanager
def unread_exports(server: ServerInThread, count: int) -> Iterator[Rank]:
    """A run, and so many exports of it with the owner's token that are begun and not read."""
    rank = Rank(server)
    names = {f"a metric with a {'long ' * 80} name {number}": 1.0 / 3.0 for number in range(200)}
    for step in range(60):
        rank.send(step_report(step, {**names, "loss": 1.0}))
    with contextlib.ExitStack() as unread:
        for _ in range(count):
            connection = unread.enter_context(opened(server, http=True))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(
                f"GET {rank.path}/export?format=jsonl HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Authorization: Bearer {server.owner_token}\r\n\r\n".encode()
            )
        time.sleep(0.3)
        yield rank


def test_exports_that_nobody_reads_keep_others_waiting_for_a_while_only(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "isentrope_server")
    monkeypatch.setattr(export, "UNREAD_SECONDS", 0.5)
    server = make_server()
    with unread_exports(server, 2) as rank:
        whole = server.http.get(f"{rank.path}/export", params={"format": "jsonl"})
    assert len(whole.text.splitlines()) == 60
    ended = [record for record in caplog.records if "was ended" in record.getMessage()]
    assert {record.levelno for record in ended} == {logging.DEBUG}
    assert "owner" in ended[0].getMessage()
    assert "without completing" not in caplog.text


def test_exports_of_one_token_keep_no_other_waiting(make_server: MakeServer) -> None:
    server = make_server()
    other = {"Authorization": f"Bearer {server.token('read')}"}
    with (
        unread_exports(server, 3) as rank,
        httpx.Client(base_url=server.url, headers=other, timeout=20) as beside,
    ):
        answer = beside.get(f"{rank.path}/export", params={"name": "loss", "format": "csv"})
    assert len(answer.text.splitlines()) == 61
