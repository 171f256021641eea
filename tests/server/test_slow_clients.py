"""A client that sends or reads too slowly loses its connection; the others don't notice."""

from __future__ import annotations

import json
import socket
import ssl
import time

import pytest

from isentrope_server import http_connection
from tests.server.conftest import MakeServer
from tests.server.in_thread import ServerInThread

PATIENCE_SECONDS = 0.4
SOON_SECONDS = 8.0
"""Less than a client waits, however busy the machine is."""


@pytest.fixture
def impatient(make_server: MakeServer, monkeypatch: pytest.MonkeyPatch) -> ServerInThread:
    """A server that waits less than half a second for anybody."""
    for awaited in list(http_connection._SECONDS):
        monkeypatch.setitem(http_connection._SECONDS, awaited, PATIENCE_SECONDS)
    monkeypatch.setattr(http_connection, "STALL_SECONDS", PATIENCE_SECONDS)
    return make_server()


def opened(server: ServerInThread) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.settimeout(10)
    return connection


def everything_from(connection: socket.socket | ssl.SSLSocket) -> bytes:
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def drip(connection: socket.socket, text: bytes, seconds: float) -> None:
    """A byte now and then, as long as the other side takes them."""
    end = time.monotonic() + seconds
    for byte in text:
        if time.monotonic() > end:
            return
        try:
            connection.sendall(bytes((byte,)))
        except OSError:
            return
        time.sleep(0.05)


def drip_until_refused(connection: socket.socket, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        connection.sendall(b" ")


def body_of(answer: bytes) -> dict[str, dict[str, str]]:
    body: dict[str, dict[str, str]] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return body


def test_headers_that_come_a_byte_at_a_time_are_not_waited_for(impatient: ServerInThread) -> None:
    began = time.monotonic()
    with opened(impatient) as connection:
        drip(connection, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + b"a" * 1000, SOON_SECONDS)
        answer = everything_from(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert body_of(answer)["error"]["code"] == "too_slow"
    assert time.monotonic() - began < SOON_SECONDS


def test_a_connection_that_says_nothing_is_closed(impatient: ServerInThread) -> None:
    with opened(impatient) as connection:
        began = time.monotonic()
        everything_from(connection)
    assert time.monotonic() - began < SOON_SECONDS


def test_a_further_request_of_a_kept_connection_has_a_deadline_too(impatient: ServerInThread) -> None:
    with opened(impatient) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        began = time.monotonic()
        drip(connection, b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"a" * 1000, SOON_SECONDS)
        assert b" 408 " in everything_from(connection)
    assert time.monotonic() - began < SOON_SECONDS


def test_a_body_that_does_not_come_is_not_waited_for(impatient: ServerInThread) -> None:
    with opened(impatient) as connection:
        connection.sendall(
            b"POST /api/v1/access-tokens HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + impatient.owner_token.encode() + b"\r\nContent-Length: 500\r\n\r\n"
        )
        began = time.monotonic()
        drip(connection, b'{"scope": "read", "name": "' + b"a" * 400, SOON_SECONDS)
        everything_from(connection)
    assert time.monotonic() - began < SOON_SECONDS
    assert len(impatient.http.get("/api/v1/access-tokens").json()["items"]) == 1


def test_an_answer_nobody_reads_is_given_up(impatient: ServerInThread) -> None:
    document = impatient.http.get("/openapi.json").content
    request = (
        b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
        + impatient.owner_token.encode()
        + b"\r\n\r\n"
    )
    with opened(impatient) as connection:
        # More than the buffers on the way take.
        connection.sendall(request * ((12 << 20) // len(document)))
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            drip_until_refused(connection, 20.0)


def test_a_quick_client_keeps_its_connection_beyond_every_deadline(impatient: ServerInThread) -> None:
    with opened(impatient) as connection:
        for _ in range(4):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            received = b""
            while not received.endswith(b'{"status":"ok"}'):
                received += (part := connection.recv(65536))
                assert part, "it was closed"
            time.sleep(PATIENCE_SECONDS / 2)


@pytest.mark.parametrize(
    ("request_text", "status", "code"),
    [
        (b"GET /" + b"a" * 20_000, 431, "headers_too_large"),
        (b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 20_000, 431, "headers_too_large"),
        (b"this is no HTTP\r\n\r\n", 400, "no_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", 400, "no_http"),
    ],
)
def test_what_is_no_request_gets_the_one_error_body(
    server: ServerInThread, request_text: bytes, status: int, code: str
) -> None:
    with opened(server) as connection:
        connection.sendall(request_text)
        answer = everything_from(connection)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    error = body_of(answer)["error"]
    assert set(error) == {"code", "message", "details"}
    assert error["code"] == code
