"""The proxy ends slow clients and floods of connections, and leaves live streams alone."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import cast

import httpx
import pytest

from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank
from tests.system import haproxy
from tests.system.running_server import RunningServer

PROXY = haproxy.CONFIGURATION
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not haproxy.has_haproxy(), reason="haproxy is not installed"),
]
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/access-tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n"
QUICK_SECONDS = 2
CONNECTIONS = 20


class _Addresses:
    """A server in this process, as `Haproxy` expects one."""

    def __init__(self, server: ServerInThread) -> None:
        self.http_port = int(server.url.rpartition(":")[2])
        self.grpc_target = server.grpc_target


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerInThread, haproxy.Haproxy]]:
    folder = tmp_path_factory.mktemp("proxied")
    quick = re.sub(r"timeout (http-request|client) \d+s", rf"timeout \1 {QUICK_SECONDS}s", PROXY)
    quick = quick.replace("sc0_conn_cur gt 200", f"sc0_conn_cur gt {CONNECTIONS}")
    with ExitStack() as stack:
        server = stack.enter_context(ServerInThread(folder / "home"))
        addresses = cast(RunningServer, _Addresses(server))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(haproxy, "CONFIGURATION", quick)
        proxy = haproxy.Haproxy(folder, {"first": addresses, "second": addresses})
        yield server, stack.enter_context(proxy)


def connected(proxy: haproxy.Haproxy) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])), timeout=10)
    connection.settimeout(0.2)
    return connection


def answer_to_drips(connection: socket.socket) -> bytes:
    """What comes back while one byte after the other is sent."""
    end = time.monotonic() + 8.0
    while time.monotonic() < end:
        try:
            connection.sendall(b"a")
            return connection.recv(65536)
        except TimeoutError:
            continue
    raise AssertionError("the proxy still waits")


@pytest.mark.parametrize("sent", [b"", GET + b"X-Slow: ", POST])
def test_slow_request_gets_408(behind: tuple[ServerInThread, haproxy.Haproxy], sent: bytes) -> None:
    _, proxy = behind
    with connected(proxy) as connection:
        connection.sendall(sent)
        assert answer_to_drips(connection).startswith(b"HTTP/1.1 408 ")


def test_flood_from_one_address_is_refused(behind: tuple[ServerInThread, haproxy.Haproxy]) -> None:
    _, proxy = behind
    with ExitStack() as stack:
        taken = [_is_taken(proxy, stack) for _ in range(2 * CONNECTIONS)]
    assert CONNECTIONS // 2 <= sum(taken) <= CONNECTIONS
    assert not any(taken[CONNECTIONS:])


def _is_taken(proxy: haproxy.Haproxy, stack: ExitStack) -> bool:
    try:
        connection = stack.enter_context(connected(proxy))
        connection.settimeout(0.02)
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionResetError:
        return False


def test_live_stream_outlasts_client_timeout(behind: tuple[ServerInThread, haproxy.Haproxy]) -> None:
    server, proxy = behind
    rank = Rank(server)
    headers = {"Authorization": f"Bearer {server.owner_token}"}
    with httpx.stream("GET", f"{proxy.url}{rank.path}/live", headers=headers, trust_env=False, timeout=10) as live:
        lines = live.iter_lines()
        time.sleep(2 * QUICK_SECONDS)
        rank.report(1, x=1.0)
        assert any('"step":1' in line for line in lines)
