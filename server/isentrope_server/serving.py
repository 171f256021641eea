"""The process around the application: sockets, signals, and one sentence when it can't start."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI

from isentrope_server.app import create_app
from isentrope_server.errors import StartupError
from isentrope_server.ports import Port, listening_socket
from isentrope_server.settings import Settings

_GRACEFUL_SHUTDOWN_SECONDS = 3


class _Server(uvicorn.Server):
    """Leaves signals to `serve`: uvicorn would raise them again before the store is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings, announce: Callable[[str, int], None]) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        announce: called once, when everything answers, with the address that logs a browser in and the gRPC port.
    Raises:
        StartupError: a port is taken, or the home can't be used.
    """
    _check_ports(settings)
    with listening_socket(settings.host, settings.http_port, Port.HTTP) as http_socket:
        settings = settings.model_copy(update={"http_port": http_socket.getsockname()[1]})
        app = create_app(settings)
        server = _Server(
            uvicorn.Config(
                app,
                # Run here and not by uvicorn, so that what goes wrong can be said in one sentence.
                lifespan="off",
                # It would write login addresses, tokens and all, into the log.
                access_log=False,
                log_level="warning",
                timeout_graceful_shutdown=_GRACEFUL_SHUTDOWN_SECONDS,
                server_header=False,
                ws_max_size=16 << 20,
            )
        )
        async with app.router.lifespan_context(app):
            _stop_on_signals(server, app.state.backend.hub.close)
            announcing = asyncio.create_task(_announce_when_started(server, app, announce))
            await server.serve(sockets=[http_socket])
            announcing.cancel()


async def _announce_when_started(server: uvicorn.Server, app: FastAPI, announce: Callable[[str, int], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    backend = app.state.backend
    announce(f"{backend.settings.http_url}/?token={quote(backend.owner_token, safe='')}", app.state.grpc_port)


def _stop_on_signals(server: uvicorn.Server, close: Callable[[], None]) -> None:
    def stop() -> None:
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
