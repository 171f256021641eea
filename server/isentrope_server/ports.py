"""The ports of a server: their sockets, their certificates, and where a server without TLS may listen.

Every error names the option to change.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
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
_log = logging.getLogger(__name__)


class Port(StrEnum):
    """The ports of a server, with their names in messages."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    LOCAL = "local HTTP"

    @property
    def option(self) -> str:
        return "ISENTROPE_LOCAL_HTTP_PORT" if self is Port.LOCAL else f"--{self.lower()}-port"


def listening_socket(host: str, port: int, which: Port) -> socket.socket:
    """Open a listening socket; the caller closes it.

    Args:
        host: `::` is every address, IPv4 included; `0.0.0.0` every IPv4 address.
        port: 0: any free one.
        which: names the port in errors.

    Raises:
        StartupError: the port is taken, or the address is not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise _no_such_host(host, getattr(error, "strerror", None) or str(error)) from None
    try:
        is_dual = host == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=is_dual)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_such_host(host, "it is not an address of this machine") from None
        raise port_refused(host, port, which, error.strerror or str(error)) from None
    # Connections inherit it. Without it the body of an answer waits 40 ms for the client's acknowledgement of the headers.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def grpc_address(host: str, port: int) -> str:
    """The address for gRPC, equal to that of an HTTP port of this host: one address for a name.

    Raises:
        StartupError: the port is taken, or the address is not this machine's.
    """
    # gRPC would write several lines to stderr about a port it can't open.
    with listening_socket(host, port, Port.GRPC) as found:
        address, free_port, *rest = found.getsockname()
    if ":" not in address:
        return f"{address}:{port or (free_port if address == _ANY_IPV4 else 0)}"
    scope = f"%{rest[1]}" if rest[1] else ""
    return f"[{address}{scope}]:{port}"


@contextlib.contextmanager
def without_ipv6(address: str) -> Iterator[None]:
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
    """The error of a port that can't be opened."""
    return StartupError(
        f"The {which} port {port} on {host} can't be opened: {why}. Choose another with {which.option}."
    )


def _no_such_host(host: str, why: str) -> StartupError:
    return StartupError(
        f"The server can't listen on {host}: {why}. Give an address of this machine with --host, e.g. 127.0.0.1."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """PEM files of a certificate, its key, and the CA of clients; None: clients need no certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None

    def modified_at(self) -> tuple[int | None, ...]:
        """Time of each file's last change in nanoseconds; None for a file that is missing."""
        files = [file for file in (self.certificate, self.key, self.client_ca) if file is not None]
        return tuple(file.stat().st_mtime_ns if file.exists() else None for file in files)

    def context(self) -> ssl.SSLContext:
        """Make a server's TLS context from the files.

        Raises:
            StartupError: the files can't be used; the message names the file and the reason.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load_pair(context)
        if self.client_ca is not None:
            self._load_client_ca(context, self.client_ca)
        return context

    def grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        """Make gRPC's configuration from the files, checked first, because gRPC reports no reason.

        Raises:
            StartupError: as `context`.
        """
        self.context()
        return grpc.ssl_server_certificate_configuration(
            [(_read("--tls-key", self.key), _read("--tls-cert", self.certificate))],
            root_certificates=None if self.client_ca is None else _read("--tls-client-ca", self.client_ca),
        )

    def _load_pair(self, context: ssl.SSLContext) -> None:
        for option, file in (("--tls-cert", self.certificate), ("--tls-key", self.key)):
            _read(option, file)
        try:
            # An empty password: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password="")
        except (ssl.SSLError, OSError) as error:
            raise StartupError(
                f"The certificate {self.certificate} and the key {self.key} can't be used together: {_reason(error)}. "
                "Both must be PEM files, the key must belong to the certificate and have no password."
            ) from error

    @staticmethod
    def _load_client_ca(context: ssl.SSLContext, client_ca: Path) -> None:
        _read("--tls-client-ca", client_ca)
        try:
            context.load_verify_locations(client_ca)
        except (ssl.SSLError, OSError) as error:
            raise StartupError(
                f"The clients' CA {client_ca} can't be used: {_reason(error)}. It must be a PEM file of certificates."
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED


def grpc_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials of the gRPC port. Renewed files are used from the next connection on.

    Files that can't be used are reported in the log; the port keeps the certificate it had.

    Raises:
        StartupError: the files can't be used.
    """
    read_at = certificates.modified_at()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        # gRPC asks before each handshake; None keeps what it has.
        nonlocal read_at
        modified_at = certificates.modified_at()
        if modified_at == read_at:
            return None
        read_at = modified_at
        try:
            return certificates.grpc_configuration()
        except StartupError as error:
            _log.error("The gRPC port keeps its certificate; the renewed files can't be used: %s", error)
            return None

    return grpc.dynamic_ssl_server_credentials(
        certificates.grpc_configuration(),
        renewed,  # type: ignore[arg-type]  # the stubs forbid None
        require_client_authentication=certificates.client_ca is not None,
    )


def _read(option: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise StartupError(f"The file {file} of {option} can't be read: {error.strerror}.") from error


def _reason(error: OSError) -> str:
    """`ssl.SSLError` is an OSError, too; a file may also disappear after the check."""
    reason = getattr(error, "reason", None) or error.strerror
    return (reason or "it is no PEM").replace("_", " ").lower()


def check_transport_security(settings: Settings) -> None:
    """Check TLS settings before any port is opened.

    Raises:
        StartupError: an address other machines reach, without TLS; or certificates that can't be used.
    """
    if settings.tls_cert is None and settings.tls_key is None and settings.tls_client_ca is None:
        if not settings.insecure_i_know and not _is_loopback(settings.host):
            raise StartupError(
                f"Listening on {settings.host} without TLS would send tokens and reports over the network in the clear. "
                "Give --tls-cert and --tls-key, or, where a proxy encrypts, --insecure-i-know."
            )
        return
    certificates = certificates_of(settings)
    if certificates is None:
        raise StartupError("TLS needs a certificate and its key: give both --tls-cert and --tls-key, each a PEM file.")
    certificates.context()


def certificates_of(settings: Settings) -> Certificates | None:
    """The certificate files of both ports; None without TLS."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificates(certificate=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host, with all addresses of its name."""
    if not host:
        return False
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        # No address: opening the port reports it.
        return True
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
