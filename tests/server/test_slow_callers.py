"""Idle gRPC connections are closed; calls without a token are refused before their message is read."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from isentrope_server.ingest import servicer
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank

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


def opened(server: ServerInThread) -> socket.socket:
    host, port = server.grpc_target.split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.settimeout(10)
    return connection


def read_until_closed(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass


def status_without_a_message(server: ServerInThread, method: str, token: str | None) -> grpc.StatusCode:
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
def test_a_call_without_a_token_is_refused_before_its_message_is_read(server: ServerInThread, method: str) -> None:
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


def test_a_watch_stream_and_its_connection_outlive_every_deadline(impatient: ServerInThread) -> None:
    rank = Rank(impatient)
    watching = rank.watch()
    began = time.monotonic()
    while time.monotonic() - began < IDLE_SECONDS + PATIENCE_SECONDS:
        assert watching.next_kind() == "heartbeat"
    assert rank.report(0, x=1.0).acked_through == 1
    watching.close()
