"""Certificates that are renewed while the server runs: every handshake begins with the files as they are now.

There is no timer: a new connection looks at the files' times and sizes, and reads them only where these have changed.
New files that can't be used change nothing; the log says so once, and the old certificate is shown as long as it lasts.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import grpc

from isentrope_server.errors import StartupError
from isentrope_server.ports import Certificates

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_FileStates = tuple[tuple[int, int, int] | None, ...]
"""Time, size and number of each file; None: it is not there. A link counts as what it leads to."""


class RenewedContext(ssl.SSLContext):
    """A context for a listening port that takes each connection with the newest certificates that can be used."""

    _newest: _Newest[ssl.SSLContext]

    @classmethod
    def of(cls, certificates: Certificates) -> RenewedContext:
        """
        Raises:
            StartupError: the files can't be used.
        """
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._newest = _Newest(certificates, certificates.context, port="HTTP")
        return context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """What an event loop asks of a context for each connection."""
        newest = self._newest.get()[0]
        return newest.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def renewed_grpc_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials for the gRPC port; the library asks before each handshake whether there are new ones.

    Raises:
        StartupError: the files can't be used.
    """
    newest = _Newest(certificates, certificates.grpc_configuration, port="gRPC")

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        configuration, is_new = newest.get()
        return configuration if is_new else None

    return grpc.dynamic_ssl_server_credentials(
        newest.get()[0],
        renewed,  # type: ignore[arg-type]  # None: no change
        require_client_authentication=certificates.client_ca is not None,
    )


class _Newest(Generic[_T]):
    """What was made of the files when they could last be used. Any thread may ask."""

    def __init__(self, certificates: Certificates, make: Callable[[], _T], *, port: str) -> None:
        self._certificates = certificates
        self._make = make
        self._port = port
        self._lock = threading.Lock()
        self._seen = _states(certificates.files)
        self._made = make()
        self._refused = ""

    def get(self) -> tuple[_T, bool]:
        """It, and whether it is new since the last call."""
        with self._lock:
            now = _states(self._certificates.files)
            is_new = now != self._seen and self._renewed(now)
            return self._made, is_new

    def _renewed(self, now: _FileStates) -> bool:
        made, refused = self._try()
        if _states(self._certificates.files) != now:
            # Somebody is writing them just now; the next connection looks again.
            return False
        self._seen = now
        if made is None:
            self._say_refused(refused)
            return False
        self._made, self._refused = made, ""
        _log.info("The %s port shows a renewed certificate, %s.", self._port, self._certificates.certificate)
        return True

    def _try(self) -> tuple[_T | None, str]:
        try:
            return self._make(), ""
        except StartupError as error:
            return None, str(error)

    def _say_refused(self, reason: str) -> None:
        if reason != self._refused:
            self._refused = reason
            _log.error("The %s port goes on with the old certificate, the new one is refused. %s", self._port, reason)


def _states(files: tuple[Path, ...]) -> _FileStates:
    return tuple(_state(file) for file in files)


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
