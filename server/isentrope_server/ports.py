"""Opening ports, and saying which option to change when one can't be opened."""

from __future__ import annotations

import errno
import socket
from enum import StrEnum

from isentrope_server.errors import StartupError


class Port(StrEnum):
    """The ports of a server, by the name they have in messages."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    LOCAL = "local HTTP"

    @property
    def option(self) -> str:
        return "ISENTROPE_LOCAL_HTTP_PORT" if self is Port.LOCAL else f"--{self.lower()}-port"


def listening_socket(host: str, port: int, which: Port) -> socket.socket:
    """A socket that listens; the caller closes it.

    Raises:
        StartupError: the port is taken, or the address is not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise _no_such_host(host, getattr(error, "strerror", None) or str(error)) from None
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_such_host(host, "it is not an address of this machine") from None
        raise port_refused(host, port, which, error.strerror or str(error)) from None


def port_refused(host: str, port: int, which: Port, why: str) -> StartupError:
    """What to say about a port that can't be opened."""
    return StartupError(
        f"The {which} port {port} on {host} can't be opened: {why}. Choose another with {which.option}."
    )


def _no_such_host(host: str, why: str) -> StartupError:
    return StartupError(
        f"The server can't listen on {host}: {why}. Give an address of this machine with --host, e.g. 127.0.0.1."
    )
