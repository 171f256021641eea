"""The gRPC channel to a server's ingest, encrypted where its address says so."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from isentrope.trusted_servers import Credentials
from isentrope_wire import environment


def open_channel(target: str, options: Sequence[tuple[str, int]] = ()) -> grpc.Channel:
    """A channel; nothing is sent yet.

    Args:
        target: host:port, with `https://` in front where the server has TLS.
        options: of gRPC.

    Raises:
        ConfigurationError: a certificate file can't be read.
    """
    address = environment.host_and_port(target)
    # A proxy could not reach this machine's own addresses.
    given = [*options, ("grpc.enable_http_proxy", 0 if environment.is_on_this_machine(address) else 1)]
    if not environment.is_encrypted(target):
        return grpc.insecure_channel(address, options=given)
    ca, key, certificate = Credentials.from_environment().pem()
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate), options=given)
