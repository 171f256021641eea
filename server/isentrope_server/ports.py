"""The ports of a server: their sockets, their certificate, and where a server without TLS may
listen.

Every error names the option to change.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import grpc

from isentrope_server.errors import StartupError
from isentrope_server.settings import Settings

_ANY_IPV4 = "0.0.0.0"


class Port(StrEnum):
    """The ports of a server, with their names in messages."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    LOCAL = "local HTTP"

    @property
    def option(self) -> str:
        if self is Port.LOCAL:
            return "ISENTROPE_LOCAL_HTTP_PORT"
        return f"--{self.lower()}-port"


def listening_socket(host: str, port: int, which: Port) -> socket.socket:
    """Open a listening socket; the caller closes it. Host `::` is every address, IPv4 included;
    `0.0.0.0` every IPv4 address; port 0 any free one. StartupError, which names the port by
    `which`: it is taken, or the address is not this machine's."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise _no_such_host(host, getattr(error, "strerror", None) or str(error)) from None
    try:
        is_dual = host == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(
            (host, port), family=family, backlog=2048, dualstack_ipv6=is_dual
        )
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_such_host(host, "it is not an address of this machine") from None
        raise port_refused(host, port, which, error.strerror or str(error)) from None
    # Connections inherit it. Without it the body of an answer waits 40 ms for the client's
    # acknowledgement of the headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def grpc_address(host: str, port: int) -> str:
    """The address for gRPC, equal to that of an HTTP port of this host: one address for a name.
    StartupError: as `listening_socket`."""
    # gRPC would write several lines to stderr about a port it can't open.
    with listening_socket(host, port, Port.GRPC) as found:
        address, free_port, *rest = found.getsockname()
    if ":" not in address:
        return f"{address}:{port or (free_port if address == _ANY_IPV4 else 0)}"
    scope = ""
    if rest[1]:
        scope = f"%{rest[1]}"
    return f"[{address}{scope}]:{port}"


@contextlib.contextmanager
def block_ipv6(address: str) -> Iterator[None]:
    """Block IPv6 while gRPC opens `0.0.0.0`, which it would extend to every address."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as held:
        if host == _ANY_IPV4:
            # The machine may have no IPv6, or the port may be taken there.
            with contextlib.suppress(OSError):
                taken = held.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
                taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                taken.bind(("::", int(port)))
        yield


def port_refused(host: str, port: int, which: Port, why: str) -> StartupError:
    return StartupError(
        f"The {which} port {port} on {host} can't be opened: {why}. Choose another with"
        f" {which.option}."
    )


def _no_such_host(host: str, why: str) -> StartupError:
    return StartupError(
        f"The server can't listen on {host}: {why}. Give an address of this machine with --host,"
        " e.g. 127.0.0.1."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """PEM files of both ports' certificate and its key. They are read at the start."""

    file: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Make the HTTP port's TLS context. StartupError: the files can't be used; the message
        names the file and the reason."""
        for option, file in (("--tls-cert", self.file), ("--tls-key", self.key)):
            try:
                file.read_bytes()
            except OSError as error:
                raise StartupError(
                    f"The file {file} of {option} can't be read: {error.strerror}."
                ) from error
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # An empty password: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.file, self.key, password="")
        except (ssl.SSLError, OSError) as error:
            # `ssl.SSLError` is an OSError, too.
            reason = getattr(error, "reason", None) or error.strerror or "it is no PEM"
            raise StartupError(
                f"The certificate {self.file} and the key {self.key} can't be used together:"
                f" {reason.replace('_', ' ').lower()}. Both must be PEM files, the key must belong"
                " to the certificate and have no password."
            ) from error
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Make the gRPC port's credentials. `context` checks the files; gRPC reports no reason."""
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.file.read_bytes())])


def certificate_of(settings: Settings) -> Certificate | None:
    """The certificate of both ports; None without TLS."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificate(file=settings.tls_cert, key=settings.tls_key)


def check_transport_security(settings: Settings) -> None:
    """Check TLS settings before any port is opened. StartupError: an address other machines reach,
    without TLS; or a certificate that can't be used."""
    certificate = certificate_of(settings)
    if certificate is not None:
        certificate.context()
    elif settings.tls_cert is not None or settings.tls_key is not None:
        raise StartupError(
            "TLS needs a certificate and its key: give both --tls-cert and --tls-key, each a PEM"
            " file."
        )
    elif not settings.insecure_i_know and not _is_loopback(settings.host):
        raise StartupError(
            f"Listening on {settings.host} without TLS would send tokens and reports over the"
            " network in the clear. Give --tls-cert and --tls-key, or, where a proxy encrypts,"
            " --insecure-i-know."
        )


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host, with all addresses of its name."""
    if not host:
        return False
    try:
        found = {
            str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        }
    except (OSError, UnicodeError):
        # No address: opening the port reports it.
        return True
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
