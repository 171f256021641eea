"""Puts a server together: routes, middleware, store, gRPC port and pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

import httpx
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware

from isentrope_server.alerting import keep_sending
from isentrope_server.api import (
    admin,
    control,
    export,
    health,
    law,
    metrics,
    openapi,
    responses,
    runs,
    tokens,
)
from isentrope_server.api.dependencies import refuse_unknown_parameters
from isentrope_server.api.export import ExportFormat
from isentrope_server.backend import open_backend, run_in_background
from isentrope_server.counters import MeasuredRequests, ServerFigures
from isentrope_server.digests import keep_digests_current
from isentrope_server.housekeeping import (
    end_expired_controls,
    keep_acknowledged,
    keep_house,
    keep_tokens_current,
)
from isentrope_server.ingest.servicer import start_grpc
from isentrope_server.security.gate import BodyLimit, Gate, GrpcGate, RootPath
from isentrope_server.security.sessions import BrowserSessions
from isentrope_server.settings import Settings
from isentrope_server.store import access
from isentrope_wire import __version__

API_PREFIX = "/api/v1"
_GRPC_GRACE_SECONDS = 1.0
_COMPRESSED_FROM_BYTES = 1_000
_COMPRESSION_LEVEL = 2
"""Level of zlib, of 9. Level 2 compresses numbers as JSON to 44 % at 100 MB/s, level 6 to 43 % at
20 MB/s."""
_COMPRESSED_ALREADY = ExportFormat.PARQUET.media_type
_ROUTERS = (
    runs.router,
    metrics.router,
    tokens.router,
    export.router,
    law.router,
    control.router,
    admin.router,
)
_ALL_METHODS = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]


def create_app(settings: Settings) -> FastAPI:
    """Make the server as one ASGI application; its lifespan opens the store and the gRPC port. The
    pages are attached last, where their library is installed; they add the CSP hashes of their
    inline scripts to `app.state.script_hashes`."""
    app = FastAPI(
        title="Isentrope",
        version=__version__,
        lifespan=_lifespan,
        # Both pages load their scripts from another host; `api/openapi.py` serves the first from
        # this one.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.settings = settings
    app.state.script_hashes = []
    app.state.figures = ServerFigures()
    app.state.readiness = health.Readiness()
    responses.install(app)
    _add_routes(app)
    openapi.install(app)
    if settings.dashboard and find_spec("dash") is not None:
        import_module("isentrope_dashboard.app").attach(app, settings.root_path)
    # Middleware added last runs first: the gate is before every page, and refusals are timed, too.
    app.add_middleware(BodyLimit)
    # Compression leaks nothing (BREACH): no answer contains both a secret and text of another
    # client, and other sites' pages get no cookie.
    app.add_middleware(
        GZipMiddleware,
        minimum_size=_COMPRESSED_FROM_BYTES,
        compresslevel=_COMPRESSION_LEVEL,
        exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, _COMPRESSED_ALREADY),
    )
    app.add_middleware(
        Gate,
        state=app.state,
        allowed_hosts=(*settings.allowed_hosts, settings.host, settings.public_host),
        metrics_open=settings.metrics_open,
        root_path=settings.root_path,
    )
    app.add_middleware(MeasuredRequests, figures=app.state.figures)
    app.add_middleware(RootPath, root_path=settings.root_path)
    return app


def _add_routes(app: FastAPI) -> None:
    app.include_router(health.router)
    app.include_router(admin.browser_router)
    app.include_router(openapi.router)
    for router in _ROUTERS:
        app.include_router(
            router, prefix=API_PREFIX, dependencies=[Depends(refuse_unknown_parameters)]
        )
    # Unknown addresses of the API must not reach a page's catch-all route.
    app.add_api_route(
        "/api{rest:path}",
        _nothing_here,
        methods=_ALL_METHODS,
        include_in_schema=False,
        response_model=None,
    )


async def _nothing_here(rest: str) -> NoReturn:
    """Answer 404, or 405 where another method has a route."""
    path = f"/api{rest}".removeprefix(API_PREFIX)
    allowed: set[str] = set()
    for router in _ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.path_regex.match(path):
                allowed.update(route.methods or ())
    if allowed:
        raise HTTPException(405, headers={"Allow": ", ".join(sorted(allowed))})
    raise HTTPException(404)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    async with open_backend(settings) as backend:
        app.state.backend = backend
        session_key = await backend.write(
            lambda transaction: access.ensure_session_key(transaction.connection)
        )
        app.state.sessions = BrowserSessions(session_key, settings.root_path)
        gate = GrpcGate(backend.tokens, app.state.figures)
        grpc_server, app.state.grpc_port = await start_grpc(backend, [gate])
        async with run_in_background(
            keep_house(backend),
            keep_tokens_current(backend),
            keep_acknowledged(backend),
            end_expired_controls(backend),
            keep_digests_current(backend),
            *(keep_sending(backend, url) for url in settings.notify),
        ):
            try:
                if settings.dashboard:
                    # Dash builds its routes on the first request, which must not be a deep link.
                    transport = httpx.ASGITransport(app)
                    async with httpx.AsyncClient(
                        transport=transport, base_url="http://localhost"
                    ) as client:
                        await client.get(
                            "/", headers={"Authorization": f"Bearer {backend.owner_token}"}
                        )
                yield
            finally:
                backend.hub.close()
                await grpc_server.stop(_GRPC_GRACE_SECONDS)
