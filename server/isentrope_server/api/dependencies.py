"""What routes need: the backend, who asks, the run in the path."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request

from isentrope_server.backend import Backend
from isentrope_server.errors import NotFound
from isentrope_server.security.gate import principal_of
from isentrope_server.security.tokens import Principal
from isentrope_server.store import runs
from isentrope_server.store.runs import Run


async def _backend(request: Request) -> Backend:
    backend = request.app.state.backend
    assert isinstance(backend, Backend)
    return backend


BackendDep = Annotated[Backend, Depends(_backend)]


async def _principal(request: Request) -> Principal:
    return principal_of(request.scope)


PrincipalDep = Annotated[Principal, Depends(_principal)]


async def _run(run_id: Annotated[str, Path(description="The run's id.")], backend: BackendDep) -> Run:
    silent_after = backend.settings.silent_after_seconds
    run = await backend.read(lambda connection: runs.find(connection, run_id, silent_after_seconds=silent_after))
    if run is None:
        raise no_such_run(run_id)
    return run


def no_such_run(run_id: str) -> NotFound:
    return NotFound(f"There is no run {run_id[:140]!r} on this server.", run_id=run_id[:140])


RunDep = Annotated[Run, Depends(_run)]
