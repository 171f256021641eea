"""Both ports listen on the same addresses, and on no other."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from isentrope_server.ports import Port, listening_socket
from tests.server.test_process import grpc_port, up


def has_ipv6() -> bool:
    try:
        with closing(socket.create_server(("::1", 0), family=socket.AF_INET6)):
            return True
    except OSError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6"),
]


def answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("0.0.0.0", {"127.0.0.1"}),
        ("::", {"127.0.0.1", "::1"}),
        ("::1", {"::1"}),
        ("localhost", None),
    ],
)
def test_both_ports_listen_on_the_same_addresses(
    tmp_path: Path, host: str, reached: set[str] | None
) -> None:
    for _ in range(2):  # another process may listen on the same port of another address, once
        with up(tmp_path, ISENTROPE_HOST=host, ISENTROPE_INSECURE_I_KNOW="1") as (process, url, _):
            ports = int(url.rpartition(":")[2]), grpc_port(process)
            http, grpc = (
                {host for host in ("127.0.0.1", "::1") if answers(host, port)} for port in ports
            )
        # Which address a name has is the system's to say.
        if http == grpc and (http == reached or (reached is None and len(http) == 1)):
            return
    pytest.fail(f"HTTP is reached by {http}, gRPC by {grpc}")


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_headers() -> None:
    with (
        listening_socket("127.0.0.1", 0, Port.HTTP) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
