"""The server process: opens the ports, serves until a signal, and reports in one sentence why it
can't start."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from isentrope_server.app import create_app
from isentrope_server.errors import StartupError, error_body
from isentrope_server.home import check_unlocked
from isentrope_server.ports import (
    Certificate,
    Port,
    certificate_of,
    check_transport_security,
    listening_socket,
)
from isentrope_server.settings import Settings

_GRACEFUL_SHUTDOWN_SECONDS = 3
_OPEN_FILES = 65_536
"""Every connection costs one; many systems start a process with 1 024."""
HTTP_CONNECTIONS = 2_000
"""Most connections of each HTTP port; beyond it requests are answered 503, but for `/healthz`: a
restart would not help."""
REQUEST_SECONDS = 10.0
"""From a connection's opening, or the end of an answer, to the end of the next request's
headers."""
_SWITCH_INTERVAL_SECONDS = 0.001
"""A request that reads waits for Python's lock some dozen times; at Python's 5 ms a small answer
took twice as long."""
_CONTAINERS_BETWEEN_COLLECTIONS = 50_000
"""A push of reports makes some thousands, none in a cycle: at Python's 700 a sixth of the time went
into looking."""


class _Server(uvicorn.Server):
    """Leaves signals to `serve`: uvicorn would raise them again before the store is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """Closes a connection that sends no request, or sends its headers too slowly; uvicorn waits for
    ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._close_without_request)

    def on_response_complete(self) -> None:
        self._deadline.cancel()
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._close_without_request)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)

    def _close_without_request(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class _JsonLine(logging.Formatter):
    """One object a line; a traceback is part of its message."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        message = super().format(record)
        return json.dumps(
            {"time": time, "level": record.levelname, "logger": record.name, "message": message}
        )


def log_to_stderr(*, as_json: bool) -> None:
    """Write warnings and errors with time, level and logger."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _JsonLine()
        if as_json
        else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # It warns at every piece that is sent to a client that is gone.
    logging.getLogger("asyncio").setLevel(logging.ERROR)


async def serve(settings: Settings, announce: Callable[[str, int], None]) -> None:
    """Run until SIGTERM or SIGINT; port 0 means any free one. `announce` is called once the server
    answers, with the log-in address for a browser and the gRPC port. StartupError: a port is taken,
    the home or the certificate can't be used, another server has the home, or tokens would be sent
    over the network without TLS."""
    check_transport_security(settings)
    check_unlocked(settings.home)
    # Ports first: a server that can't start leaves no database and no token behind.
    if settings.http_port == settings.grpc_port != 0:
        raise StartupError(
            f"The HTTP and the gRPC port are both {settings.http_port}; they must differ. "
            "Choose another with --http-port or --grpc-port."
        )
    # gRPC opens its port later and would write several lines to stderr on a failure.
    listening_socket(settings.host, settings.grpc_port, Port.GRPC).close()
    _raise_open_files()
    with contextlib.ExitStack() as sockets:
        http_socket = sockets.enter_context(
            listening_socket(settings.host, settings.http_port, Port.HTTP)
        )
        listening = [(http_socket, certificate_of(settings))]
        settings = settings.model_copy(update={"http_port": http_socket.getsockname()[1]})
        if settings.has_tls:
            local = sockets.enter_context(
                listening_socket("127.0.0.1", settings.local_http_port, Port.LOCAL)
            )
            listening.append((local, None))
            settings = settings.model_copy(update={"local_http_port": local.getsockname()[1]})
        app = create_app(settings)
        servers = [http_server(app, certificate) for _, certificate in listening]
        async with app.router.lifespan_context(app):
            _stop_on_signals(servers, app.state.backend.hub.close)
            _tune_interpreter()
            announcing = asyncio.create_task(_announce_when_started(servers, app, announce))
            await asyncio.gather(
                *(
                    server.serve(sockets=[where])
                    for server, (where, _) in zip(servers, listening, strict=True)
                )
            )
            announcing.cancel()


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        wanted = _OPEN_FILES
    else:
        wanted = min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS reports a limit higher than it accepts.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _tune_interpreter() -> None:
    """Tune for many small objects, and for decoding threads that must not delay requests that
    read."""
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    gc.collect()
    # Imported modules stay until the end; collections need not scan them.
    gc.freeze()
    gc.set_threshold(_CONTAINERS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


def http_server(app: FastAPI, certificate: Certificate | None) -> _Server:
    """Make the HTTP server of one port; `serve` runs it."""

    async def unless_crowded(scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = app
        if len(server.server_state.connections) > HTTP_CONNECTIONS and scope.get("path") not in (
            "/healthz",
            f"{app.state.settings.root_path}/healthz",
        ):
            answer = JSONResponse(
                error_body(
                    "too_many_connections",
                    f"More than {HTTP_CONNECTIONS} connections are open; try again.",
                ),
                HTTPStatus.SERVICE_UNAVAILABLE,
                {"Retry-After": "5"},
            )
        await answer(scope, receive, send)

    server = _Server(
        uvicorn.Config(
            unless_crowded,
            # Run by `serve`, so that a failure is reported in one sentence.
            lifespan="off",
            # It would write login addresses, tokens included, to the log.
            access_log=False,
            log_config=None,
            timeout_graceful_shutdown=_GRACEFUL_SHUTDOWN_SECONDS,
            server_header=False,
            http=_Connection,
            ws="none",
            h11_max_incomplete_event_size=16 << 10,
            ssl_context_factory=(
                None if certificate is None else lambda config, default: certificate.context()
            ),
        )
    )
    return server


async def _announce_when_started(
    servers: Sequence[uvicorn.Server], app: FastAPI, announce: Callable[[str, int], None]
) -> None:
    while not all(server.started for server in servers):
        await asyncio.sleep(0.01)
    backend = app.state.backend
    announce(
        f"{backend.settings.http_url}/?token={quote(backend.owner_token, safe='')}",
        app.state.grpc_port,
    )


def _stop_on_signals(servers: Sequence[uvicorn.Server], close: Callable[[], None]) -> None:
    def stop() -> None:
        for server in servers:
            # A second signal ends at once.
            server.force_exit = server.should_exit
            server.should_exit = True
        close()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
