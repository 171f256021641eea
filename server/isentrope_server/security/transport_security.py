"""TLS for both ports, and where a server without it may listen: on this machine alone."""

from __future__ import annotations

import ipaddress
import socket

from isentrope_server.errors import StartupError
from isentrope_server.security.certificates import Certificates
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
    certificates = certificates_of(settings)
    if certificates is None:
        raise StartupError("TLS needs a certificate and its key: give both --tls-cert and --tls-key, each a PEM file.")
    certificates.context()


def certificates_of(settings: Settings) -> Certificates | None:
    """The files both ports prove themselves with; None without TLS."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificates(certificate=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)


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
