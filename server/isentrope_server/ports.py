"""Opening ports, and saying which option to change when one can't be opened."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator
from enum import StrEnum

from isentrope_server.errors import StartupError

_ANY_IPV4 = "0.0.0.0"


class Port(StrEnum):
    """The ports of a server, by the name they have in messages."""

    HTTP = "HTTP"
    GRPC = "gRPC"
    LOCAL = "local HTTP"

    @property
    def option(self) -> str:
        return "ISENTROPE_LOCAL_HTTP_PORT" if self is Port.LOCAL else f"--{self.lower()}-port"


def listening_socket(host: str, port: int, which: Port) -> socket.socket:
    """A socket that listens; the caller closes it. `::` is every address, also those of IPv4; `0.0.0.0` those alone.

    Raises:
        StartupError: the port is taken, or the address is not this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise _no_such_host(host, getattr(error, "strerror", None) or str(error)) from None
    try:
        is_dual = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=is_dual)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_such_host(host, "it is not an address of this machine") from None
        raise port_refused(host, port, which, error.strerror or str(error)) from None


def grpc_address(host: str, port: int) -> str:
    """What gRPC is to listen on, so that it is what an HTTP port of this host listens on: a name has one address.

    Raises:
        StartupError: the port is taken, or the address is not this machine's.
    """
    # gRPC says what is wrong with a port in lines of its own on stderr; the operating system says it in a word.
    with listening_socket(host, port, Port.GRPC) as found:
        address, free_port, *rest = found.getsockname()
    if ":" not in address:
        return f"{address}:{port or (free_port if address == _ANY_IPV4 else 0)}"
    scope = f"%{rest[1]}" if rest[1] else ""
    return f"[{address}{scope}]:{port}"


@contextlib.contextmanager
def without_ipv6(address: str) -> Iterator[None]:
    """While gRPC opens `0.0.0.0`, which it would make every address there is: those of IPv6 are taken meanwhile."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as held:
        if host == _ANY_IPV4:
            # A machine may have no IPv6, or somebody else may have the port there.
            with contextlib.suppress(OSError):
                taken = held.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
                taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                taken.bind(("::", int(port)))
        yield


def port_refused(host: str, port: int, which: Port, why: str) -> StartupError:
    """What to say about a port that can't be opened."""
    return StartupError(
        f"The {which} port {port} on {host} can't be opened: {why}. Choose another with {which.option}."
    )


def _no_such_host(host: str, why: str) -> StartupError:
    return StartupError(
        f"The server can't listen on {host}: {why}. Give an address of this machine with --host, e.g. 127.0.0.1."
    )
