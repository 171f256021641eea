"""A proxy ends slow clients and floods of connections, and leaves live streams alone."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest

from isentrope_wire.codec import decode_control
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub
from tests.server.in_thread import ServerInThread
from tests.server.rank import Rank
from tests.system.proxy import Proxy, has_proxy

pytestmark = pytest.mark.slow
needs_haproxy = pytest.mark.skipif(not has_proxy("haproxy"), reason="haproxy is not installed")
needs_nginx = pytest.mark.skipif(not has_proxy("nginx"), reason="nginx is not installed")
both = pytest.mark.parametrize(
    "behind",
    [pytest.param("haproxy", marks=needs_haproxy), pytest.param("nginx", marks=needs_nginx)],
    indirect=True,
)
haproxy = pytest.mark.parametrize(
    "behind", [pytest.param("haproxy", marks=needs_haproxy)], indirect=True
)
Behind = tuple[ServerInThread, Proxy]
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/access-tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n"
QUICK_SECONDS = 2
CONNECTIONS = 20


class _Addresses:
    """Of a server in this process."""

    def __init__(self, server: ServerInThread) -> None:
        self.http_port = int(server.url.rpartition(":")[2])
        self.grpc_target = server.grpc_target


def quick(configuration: str) -> str:
    """With short waits for a client, and few connections."""
    timeouts = (
        r"(timeout http-request|timeout"
        r" client|client_header_timeout|client_body_timeout|send_timeout) \d+s"
    )
    text = re.sub(timeouts, rf"\1 {QUICK_SECONDS}s", configuration)
    return text.replace("sc0_conn_cur gt 200", f"sc0_conn_cur gt {CONNECTIONS}")


@pytest.fixture(scope="module")
def behind(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Behind]:
    folder = tmp_path_factory.mktemp("proxied")
    with ServerInThread(folder / "home") as server:
        addresses = _Addresses(server)
        with Proxy(
            folder, {"first": addresses, "second": addresses}, request.param, quick
        ) as proxy:
            yield server, proxy


def connected(proxy: Proxy) -> socket.socket:
    connection = socket.create_connection(
        ("127.0.0.1", int(proxy.url.rpartition(":")[2])), timeout=10
    )
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


@haproxy
@pytest.mark.parametrize("sent", [b"", GET + b"X-Slow: ", POST])
def test_slow_request_gets_408(behind: Behind, sent: bytes) -> None:
    _, proxy = behind
    with connected(proxy) as connection:
        connection.sendall(sent)
        assert answer_to_drips(connection).startswith(b"HTTP/1.1 408 ")


@haproxy
def test_flood_from_one_address_is_refused(behind: Behind) -> None:
    _, proxy = behind
    with ExitStack() as stack:
        taken = [_is_taken(proxy, stack) for _ in range(2 * CONNECTIONS)]
    assert CONNECTIONS // 2 <= sum(taken) <= CONNECTIONS
    assert not any(taken[CONNECTIONS:])


def _is_taken(proxy: Proxy, stack: ExitStack) -> bool:
    try:
        connection = stack.enter_context(connected(proxy))
        connection.settimeout(0.02)
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionResetError:
        return False


@both
def test_streams_outlast_timeouts_for_clients(behind: Behind) -> None:
    server, proxy = behind
    rank = Rank(server)
    with grpc.insecure_channel(proxy.grpc_target) as channel:
        rank.stub = TelemetryStub(channel)
        request = pb.WatchRequest(run_id=rank.run_id, incarnation="first")
        controls = rank.stub.Watch(request, metadata=rank.metadata, timeout=30)
        time.sleep(2 * QUICK_SECONDS)
        pushed = server.http.put(
            f"{rank.path}/control",
            json={"method": "clip_v", "mu_low": 1},
            headers={"If-Match": '"0"'},
        )
        assert pushed.is_success, pushed.text
        assert any(
            decode_control(message.control).version == 1 for message in controls if message.control
        )
