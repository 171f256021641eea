"""The process around the application: sockets, signals, and one sentence when it can't start."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI

from isentrope_server.app import create_app
from isentrope_server.bounded_listener import BoundedListener, CalmExceptionHandler
from isentrope_server.descriptors import raise_limit, shares
from isentrope_server.errors import StartupError
from isentrope_server.home import check_unlocked
from isentrope_server.http_connection import PatientForAWhile
from isentrope_server.ports import Certificates, Port, certificates_of, check_transport_security, listening_socket
from isentrope_server.security.certificate_renewal import RenewedContext
from isentrope_server.settings import Settings
from isentrope_server.websocket_connection import QuietlyRefused

_GRACEFUL_SHUTDOWN_SECONDS = 3
_LONGEST_TURN_SECONDS = 0.001
"""Whoever reads waits for Python's lock some dozen times; at Python's 5 ms a small answer took twice as long."""
_CONTAINERS_BETWEEN_COLLECTIONS = 50_000
"""A push of reports makes some thousands, none in a cycle: at Python's 700 a sixth of the time went into looking."""


_HANDSHAKE_SECONDS = 10.0
"""A browser's takes a few round trips."""


class _Server(uvicorn.Server):
    """Leaves signals to `serve`: uvicorn would raise them again before the store is closed."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's for sockets that listen; it has no setting for how long a TLS handshake may take."""
        patience = None if self.config.ssl is None else _HANDSHAKE_SECONDS
        self.servers = [
            await asyncio.get_running_loop().create_server(
                self._connection,
                sock=listening,
                ssl=self.config.ssl,
                backlog=self.config.backlog,
                ssl_handshake_timeout=patience,
                ssl_shutdown_timeout=patience,
            )
            for listening in sockets or ()
        ]
        self.started = True

    def _connection(self) -> PatientForAWhile:
        return PatientForAWhile(config=self.config, server_state=self.server_state, app_state={})

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings, announce: Callable[[str, int], None]) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        announce: called once, when everything answers, with the address that logs a browser in and the gRPC port.
    Raises:
        StartupError: a port is taken, the home or the certificates can't be used or another server has the home, or the
            network would see tokens.
    """
    check_transport_security(settings)
    check_unlocked(settings.home)
    _check_ports(settings)
    raise_limit()
    asyncio.get_running_loop().set_exception_handler(CalmExceptionHandler())
    with contextlib.ExitStack() as sockets:
        most = shares().http
        http_socket = sockets.enter_context(
            BoundedListener(listening_socket(settings.host, settings.http_port, Port.HTTP), most)
        )
        listening = [(http_socket, certificates_of(settings))]
        settings = settings.model_copy(update={"http_port": http_socket.getsockname()[1]})
        if settings.has_tls:
            local = sockets.enter_context(
                BoundedListener(listening_socket("127.0.0.1", settings.local_http_port, Port.LOCAL), most)
            )
            listening.append((local, None))
            settings = settings.model_copy(update={"local_http_port": local.getsockname()[1]})
        app = create_app(settings)
        servers = [_server(app, certificates) for _, certificates in listening]
        async with app.router.lifespan_context(app):
            _stop_on_signals(servers, app.state.backend.hub.close)
            _set_the_interpreter_up()
            announcing = asyncio.create_task(_announce_when_started(servers, app, announce))
            await asyncio.gather(
                *(server.serve(sockets=[where]) for server, (where, _) in zip(servers, listening, strict=True))
            )
            announcing.cancel()


def _set_the_interpreter_up() -> None:
    """For many small objects, and for threads that take turns: those that decode pushes work, those that read wait."""
    sys.setswitchinterval(_LONGEST_TURN_SECONDS)
    gc.collect()
    # What was imported stays for good, and is not looked through again.
    gc.freeze()
    gc.set_threshold(_CONTAINERS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


def _server(app: FastAPI, certificates: Certificates | None) -> _Server:
    config = uvicorn.Config(
        app,
        # Run here and not by uvicorn, so that what goes wrong can be said in one sentence.
        lifespan="off",
        # It would write login addresses, tokens and all, into the log.
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=_GRACEFUL_SHUTDOWN_SECONDS,
        server_header=False,
        http=PatientForAWhile,
        ws=QuietlyRefused,
        h11_max_incomplete_event_size=16 << 10,
        ws_max_size=16 << 20,
    )
    if certificates is not None:
        # Not by its arguments: it would read the files once, when it starts.
        config.load()
        config.ssl = RenewedContext.of(certificates)
    return _Server(config)


async def _announce_when_started(
    servers: Sequence[uvicorn.Server], app: FastAPI, announce: Callable[[str, int], None]
) -> None:
    while not all(server.started for server in servers):
        await asyncio.sleep(0.01)
    backend = app.state.backend
    announce(f"{backend.settings.http_url}/?token={quote(backend.owner_token, safe='')}", app.state.grpc_port)


def _stop_on_signals(servers: Sequence[uvicorn.Server], close: Callable[[], None]) -> None:
    def stop() -> None:
        for server in servers:
            # The second signal means it.
            server.force_exit = server.should_exit
            server.should_exit = True
        close()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _check_ports(settings: Settings) -> None:
    """Before anything is made: a server that can't start leaves no database and no token behind.

    Raises:
        StartupError: both ports are the same one, or the gRPC port can't be opened.
    """
    if settings.http_port == settings.grpc_port != 0:
        raise StartupError(
            f"The HTTP and the gRPC port are both {settings.http_port}; they must differ. "
            "Choose another with --http-port or --grpc-port."
        )
    # gRPC opens its port itself, later, and would say what is wrong with it in lines of its own on stderr.
    listening_socket(settings.host, settings.grpc_port, Port.GRPC).close()
