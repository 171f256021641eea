"""A whole server on real sockets and a real SQLite file, in a thread of the test process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import fastapi._compat.v2
import grpc
import httpx
from pydantic import TypeAdapter

from isentrope_server.app import create_app
from isentrope_server.backend import Backend
from isentrope_server.ports import Port, listening_socket
from isentrope_server.security import tokens
from isentrope_server.serving import http_server
from isentrope_server.settings import Settings
from isentrope_wire.v1.telemetry_pb2_grpc import TelemetryStub

# Each app builds the adapters of its answers again at its first request: most of what a server
# costs.
_adapters: dict[tuple[object, str], TypeAdapter[Any]] = {}


def _adapter(kind: Any, config: Any = None) -> TypeAdapter[Any]:
    key = (kind.__origin__, repr((kind.__metadata__, config)))
    return _adapters.get(key) or _adapters.setdefault(key, TypeAdapter(kind, config=config))


fastapi._compat.v2.TypeAdapter = _adapter  # type: ignore[assignment,attr-defined]

# Tests send wrong tokens by the hundred.
tokens.GUESS_SECONDS = 0.0


class ServerInThread:
    """Use it as a context manager; everything is closed at the end."""

    def __init__(self, home: Path, **settings: object) -> None:
        self.home = home
        self._chosen = {
            "dashboard": False,
            "token": None,
            "database_url": None,
            "grpc_port": 0,
            **settings,
        }
        self._started: Future[None] = Future()
        self._open = ExitStack()
        self.backend: Backend
        self.url: str
        self.grpc_target: str

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        self._started.result(timeout=30)
        self.http = self._open.enter_context(self.client(self.backend.owner_token))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()
        self.stop()

    def stop(self) -> None:
        """Stop serving; safe to repeat."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=30)

    @property
    def owner_token(self) -> str:
        return self.backend.owner_token

    def client(self, token: str | None = None) -> httpx.Client:
        """An HTTP client that sends this token, or none."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, trust_env=False, timeout=10)

    def issue(self, scope: str, name: str | None = None) -> dict[str, Any]:
        """A fresh token of this scope, as the API answers it."""
        answer = self.http.post(
            "/api/v1/access-tokens", json={"scope": scope, "name": name or f"{scope} token"}
        )
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def token(self, scope: str) -> str:
        return str(self.issue(scope)["token"])

    def session(self, token: str | None = None) -> dict[str, str]:
        """The Cookie header of a browser that logged in with this token, or the owner's."""
        with self.client() as browser:
            browser.get("/", params={"token": token or self.owner_token})
            return {
                "Cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
            }

    def channel(self) -> grpc.Channel:
        return self._open.enter_context(grpc.insecure_channel(self.grpc_target))

    def stub(self) -> TelemetryStub:
        return TelemetryStub(self.channel())

    async def _run(self) -> None:
        try:
            await self._serve()
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        with listening_socket("127.0.0.1", 0, Port.HTTP) as bound:
            port = bound.getsockname()[1]
            app = create_app(Settings(home=self.home, http_port=port, **self._chosen))
            self._server = http_server(app, None)
            self._server.config.timeout_graceful_shutdown = 1
            async with app.router.lifespan_context(app):
                self.backend = app.state.backend
                self.url = f"http://127.0.0.1:{port}"
                self.grpc_target = f"127.0.0.1:{app.state.grpc_port}"
                serving = asyncio.create_task(self._server.serve(sockets=[bound]))
                while not self._server.started:
                    await asyncio.sleep(0.005)
                self._started.set_result(None)
                await self._stopping.wait()
                self._server.should_exit = True
                # As `serving` does on a signal: endless answers end before the sockets are closed.
                self.backend.hub.close()
                await serving
