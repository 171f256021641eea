"""TLS for both ports, and where a server without it may listen: on this machine alone."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from pathlib import Path

import grpc

from isentrope_server.errors import StartupError
from isentrope_server.settings import Settings


def check_transport_security(settings: Settings) -> None:
    """Before anything is opened.

    Raises:
        StartupError: an address other machines reach, without TLS; or certificates that can't be used.
    """
    if settings.tls_cert is None and settings.tls_key is None and settings.tls_client_ca is None:
        if not settings.insecure_i_know and not _is_loopback(settings.host):
            raise StartupError(
                f"Listening on {settings.host} without TLS would send tokens and reports over the network in the clear. "
                "Give --tls-cert and --tls-key, or, where something else encrypts, --insecure-i-know."
            )
        return
    if settings.tls_cert is None or settings.tls_key is None:
        raise StartupError("TLS needs a certificate and its key: give both --tls-cert and --tls-key, each a PEM file.")
    _check_pair(settings.tls_cert, settings.tls_key)
    if settings.tls_client_ca is not None:
        _check_client_ca(settings.tls_client_ca)


def uvicorn_tls(settings: Settings) -> dict[str, object]:
    """uvicorn's arguments for it; none without TLS."""
    if settings.tls_cert is None:
        return {}
    arguments: dict[str, object] = {"ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key}
    if settings.tls_client_ca is not None:
        arguments |= {"ssl_ca_certs": str(settings.tls_client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return arguments


def grpc_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What the gRPC port proves itself with; None without TLS."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    client_ca = None if settings.tls_client_ca is None else settings.tls_client_ca.read_bytes()
    return grpc.ssl_server_credentials(
        [(settings.tls_key.read_bytes(), settings.tls_cert.read_bytes())],
        root_certificates=client_ca,
        require_client_auth=client_ca is not None,
    )


def _check_pair(cert: Path, key: Path) -> None:
    for option, file in (("--tls-cert", cert), ("--tls-key", key)):
        _check_readable(option, file)
    try:
        # An empty password instead of a question on a terminal nobody may be looking at.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        raise StartupError(
            f"The certificate {cert} and the key {key} can't be used together: {_reason(error)}. "
            "Both must be PEM files, the key of this very certificate and without a password."
        ) from error


def _check_client_ca(client_ca: Path) -> None:
    _check_readable("--tls-client-ca", client_ca)
    try:
        ssl.create_default_context(cafile=str(client_ca))
    except ssl.SSLError as error:
        raise StartupError(
            f"The clients' CA {client_ca} can't be used: {_reason(error)}. It must be a PEM file of certificates."
        ) from error


def _check_readable(option: str, file: Path) -> None:
    try:
        file.read_bytes()
    except OSError as error:
        raise StartupError(f"The file {file} of {option} can't be read: {error.strerror}.") from error


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "it is no PEM").replace("_", " ").lower()


def _is_loopback(host: str) -> bool:
    """Whether nothing but this machine reaches the address. A name counts if all its addresses do."""
    if not host:
        return False
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        # No address at all: opening the port says so, in its own words.
        return True
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
