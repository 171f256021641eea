"""Is it alive, can it work, how is it doing."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from isentrope_server.api.dependencies import BackendDep
from isentrope_server.errors import error_body
from isentrope_server.store import controls, quarantine, runs

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: str


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", response_model=Health)
async def readyz(backend: BackendDep) -> JSONResponse:
    """It can read its database, and its writer runs."""
    try:
        await backend.read(lambda connection: connection.execute(text("SELECT 1")).scalar_one())
    except SQLAlchemyError:
        return JSONResponse(error_body("not_ready", "The database can't be read."), 503)
    if not backend.writer.alive:
        return JSONResponse(error_body("not_ready", "The writer has stopped: reports can't be stored."), 503)
    return JSONResponse({"status": "ready"})


@router.get("/metrics", response_class=PlainTextResponse)
async def prometheus(backend: BackendDep) -> PlainTextResponse:
    """The server's own figures in Prometheus' text format."""
    silent_after = backend.settings.silent_after_seconds

    def counts(connection: Connection) -> list[tuple[str, str, int]]:
        by_status = runs.count_by_status(connection, silent_after_seconds=silent_after)
        return [
            *(("isentrope_runs", f'{{status="{status}"}}', count) for status, count in by_status.items()),
            ("isentrope_records_stored", "", runs.count_records(connection)),
            ("isentrope_records_quarantined", "", quarantine.count(connection)),
            ("isentrope_controls_open", "", controls.count_open(connection)),
        ]

    figures = [
        *await backend.read(counts),
        ("isentrope_writer_jobs_waiting", "", backend.writer.waiting),
        ("isentrope_live_listeners", "", backend.hub.listener_count),
    ]
    return PlainTextResponse(_exposition(figures), media_type="text/plain; version=0.0.4")


def _exposition(figures: list[tuple[str, str, int]]) -> str:
    lines: list[str] = []
    for name, labels, value in figures:
        header = f"# TYPE {name} gauge"
        if header not in lines:
            lines.append(header)
        lines.append(f"{name}{labels} {value}")
    return "\n".join(lines) + "\n"
