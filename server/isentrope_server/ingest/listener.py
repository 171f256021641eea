"""The port the gRPC methods stand on, and what it takes of its clients."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from isentrope_server.backend import Backend
from isentrope_server.descriptors import shares
from isentrope_server.ingest.servicer import TelemetryServicer
from isentrope_server.ports import Port, grpc_address, port_refused, without_ipv6
from isentrope_server.security.certificate_renewal import renewed_grpc_credentials
from isentrope_server.security.certificates import Certificates
from isentrope_server.security.transport_security import certificates_of
from isentrope_wire.v1 import telemetry_pb2_grpc as pb_grpc

MESSAGE_LIMIT_BYTES = 16 << 20
CALLS_OF_A_CONNECTION = 1_000
"""At once; a rank has a Watch stream and a push or two, and ranks of one process may share a connection. What is beyond
waits at the client, or is UNAVAILABLE: gRPC refuses calls that come faster than it forgets those before."""
IDLE_MILLISECONDS = 60_000
"""A connection without any call is closed; clients open another when they need one. A Watch stream is a call."""
HANDSHAKE_MILLISECONDS = 10_000
"""From a connection's opening to the end of its handshake, with TLS or without."""


async def start_grpc(
    backend: Backend, interceptors: Sequence[grpc.aio.ServerInterceptor]
) -> tuple[grpc.aio.Server, int]:
    """Open the ingest port; returns the server and its port.

    Args:
        interceptors: stand before every method; the gate first.
    Raises:
        StartupError: the port is taken.
    """
    server = grpc.aio.server(
        interceptors=interceptors,
        options=[
            # Without it a second server shares the port silently, and each gets half of the reports.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
            ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_allowed_incoming_connections", shares().grpc),
            ("grpc.max_concurrent_streams", CALLS_OF_A_CONNECTION),
            ("grpc.max_connection_idle_ms", IDLE_MILLISECONDS),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
        ],
    )
    pb_grpc.add_TelemetryServicer_to_server(TelemetryServicer(backend), server)
    settings = backend.settings
    address = grpc_address(settings.host, settings.grpc_port)
    try:
        with without_ipv6(address):
            port = _add_port(server, address, certificates_of(settings))
    except RuntimeError as error:
        raise port_refused(settings.host, settings.grpc_port, Port.GRPC, str(error)) from None
    await server.start()
    return server, port


def _add_port(server: grpc.aio.Server, address: str, certificates: Certificates | None) -> int:
    if certificates is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, renewed_grpc_credentials(certificates))
