"""Liveness, readiness, and the server's figures for Prometheus."""

from __future__ import annotations

import asyncio
import math
import time

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.api.dependencies import BackendDep
from isentrope_server.backend import Backend
from isentrope_server.counters import ServerFigures
from isentrope_server.errors import error_body
from isentrope_server.store import runs
from isentrope_server.store.controls import count_by_state
from isentrope_server.store.database import (
    Database,
    is_disk_full,
    is_standby,
    newest_version,
    refuses_file_writes,
    refuses_writes,
    version_of,
)
from isentrope_server.store.reports.records import totals
from isentrope_server.store.writer import WriterStopped
from isentrope_wire import __version__
from isentrope_wire.answers import Health

router = APIRouter(tags=["health"])

_READER_SECONDS = 3.0
WRITER_SECONDS = 2.0
"""A writer that has not begun a piece of work by then is stuck, or its disk is."""
_REMEMBERED_SECONDS = 0.5
"""A result is reused for this long: the route needs no token, and many requests must cost
little."""


_DISK_FULL = ("disk_full", "The disk of the database is full: reports wait with their trainers.")


_UNWRITABLE_FILE = (
    "The database takes no writes: its disk refuses them (mounted read only, a quota that is "
    "used up, or an I/O error). Reports wait with their trainers."
)
_READ_ONLY = (
    "database_unwritable",
    "The database is read only (transaction_read_only): reports wait with their trainers.",
)


class Readiness:
    """Checks whether the server can do its work, at most twice a second."""

    def __init__(self) -> None:
        self._looking = asyncio.Lock()
        self._found, self._found_at = ("", ""), -math.inf

    async def look(self, backend: Backend) -> tuple[str, str]:
        """What is in the way and why, both empty where nothing is."""
        async with self._looking:
            if time.monotonic() - self._found_at > _REMEMBERED_SECONDS:
                self._found, self._found_at = await _examine(backend), time.monotonic()
            return self._found


@router.get("/healthz")
async def tell_alive() -> Health:
    """The process answers. The database is not checked: a restart would not repair it."""
    return Health(status="ok")


@router.get("/readyz", response_model=Health)
async def tell_ready(request: Request, backend: BackendDep) -> JSONResponse:
    """Reports can be stored and read now: the database answers, its schema is this server's, its
    writer writes.

    503 `not_ready` names the cause: `database_unreachable`, `disk_full`, `database_unwritable`,
    `database_file` (removed, replaced or damaged, it or its -wal), `schema_differs`,
    `writer_stopped` or `writer_stuck`.
    """
    readiness: Readiness = request.app.state.readiness
    cause, reason = await readiness.look(backend)
    if cause:
        return JSONResponse(error_body("not_ready", reason, {"cause": cause}), 503)
    return JSONResponse({"status": "ready"})


async def _examine(backend: Backend) -> tuple[str, str]:
    if not backend.writer.alive:
        return "writer_stopped", "The writer has stopped: reports can't be stored."
    try:
        if is_disk_full(backend.database):
            return _DISK_FULL
        async with asyncio.timeout(_READER_SECONDS):
            found = await backend.read(_look_at)
        if backend.database.opened_file is not None:
            backend.database.opened_file.check()
        async with asyncio.timeout(WRITER_SECONDS):
            # It writes nothing, which costs no fsync but waits in the writer's queue; of no run, so
            # that no other server is waited for.
            if await backend.write(lambda t: refuses_writes(t.connection), run_id=""):
                return _READ_ONLY
    except WriterStopped as error:
        return "writer_stopped", str(error)
    except SQLAlchemyError as error:
        return _cause_of(error, backend.database)
    except TimeoutError:
        return "writer_stuck", "The database doesn't take reports in time."
    return found


def _cause_of(error: SQLAlchemyError, database: Database) -> tuple[str, str]:
    if database.opened_file is not None and database.opened_file.fault:
        return "database_file", database.opened_file.fault
    if is_disk_full(database, error):
        return _DISK_FULL
    if refuses_file_writes(error):
        return "database_unwritable", _UNWRITABLE_FILE
    # The reason is in the log only: the route needs no token.
    return "database_unreachable", "The database doesn't answer."


def _look_at(connection: Connection) -> tuple[str, str]:
    """Whether the database takes writes, in tables of this server's version."""
    if is_standby(connection):
        return "writer_stopped", "The database is a standby: reports can't be stored."
    has, wants = version_of(connection), newest_version()
    differs = f"The database's schema is version {has}, this server's {wants}."
    if has == wants:
        return ("", "")
    return ("schema_differs", differs)


_GAUGES = {
    "records_stored": "Records of all runs.",
    "records_quarantined": "Quarantined records.",
    "gaps": "Ranges of lost records.",
    "records_in_gaps": "Records in those ranges.",
    "tokens": "Active tokens.",
    "writer_jobs_waiting": "Jobs in the writer's queue.",
    "live_listeners": "Open streams for controls.",
}


@router.get("/metrics", response_class=PlainTextResponse)
async def get_figures(request: Request, backend: BackendDep) -> PlainTextResponse:
    """Counters and timings of the server, and totals of its database. No label names a run."""
    figures: ServerFigures = request.app.state.figures
    silent_after = backend.settings.silent_after_seconds
    statuses, states, stored = await backend.read(
        lambda c: (
            runs.count_by_status(c, silent_after_seconds=silent_after),
            count_by_state(c),
            totals(c),
        )
    )
    stored |= {
        "writer_jobs_waiting": backend.writer.waiting,
        "live_listeners": backend.hub.listener_count,
    }
    now = CollectorRegistry()
    for name, help in _GAUGES.items():
        Gauge(f"isentrope_{name}", help, registry=now).set(stored[name])
    for name, help, label, numbers in (
        ("runs", "Runs by their status.", "status", statuses),
        ("controls", "Control versions by their state.", "state", states),
        ("build", "Always 1.", "version", {__version__: 1}),
    ):
        gauge = Gauge(f"isentrope_{name}", help, [label], registry=now)
        for value, number in numbers.items():
            gauge.labels(value.lower()).set(number)
    text = generate_latest(figures.registry) + generate_latest(now)
    return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)
