"""What routes need: the backend, who asks, the run in the path, the steps in the query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Depends, Path, Query, Request
from sqlalchemy import Connection

from isentrope_server.backend import Backend
from isentrope_server.errors import NotFound, Unprocessable
from isentrope_server.security.gate import principal_of
from isentrope_server.security.tokens import Principal
from isentrope_server.store import runs
from isentrope_server.store.runs import Run
from isentrope_server.store.series_parts import StepRange

_T = TypeVar("_T")


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
        raise no_such_run(run_id, await backend.read(lambda connection: runs.newest_named(connection, run_id)))
    return run


async def read_of(backend: Backend, run: Run, query: Callable[[Connection], _T]) -> _T:
    """Read of a run that may have been deleted since it was looked up: pieces of it would be left.

    Raises:
        NotFound: it was.
    """

    def read(connection: Connection) -> _T:
        # On one connection everything is of one moment.
        check_still_there(connection, run)
        return query(connection)

    return await backend.read(read)


def check_still_there(connection: Connection, run: Run) -> None:
    """Raises NotFound where the run was deleted since it was looked up."""
    if runs.key_of(connection, run.id) != run.key:
        raise no_such_run(run.id)


def no_such_run(run_id: str, newest_of_that_name: str | None = None) -> NotFound:
    """
    Args:
        newest_of_that_name: the id of the newest run whose name was given for its id.
    """
    said = f"There is no run {run_id[:140]!r} on this server."
    if newest_of_that_name is None:
        return NotFound(said, run_id=run_id[:140])
    return NotFound(
        f"{said[:-1]}; that is a name, and the newest run of that name has the id {newest_of_that_name}.",
        run_id=run_id[:140],
        newest_of_that_name=newest_of_that_name,
    )


StepParam = Annotated[int | None, Query(ge=0, le=2**63 - 1)]


async def _step_range(from_step: StepParam = None, to_step: StepParam = None) -> StepRange:
    if from_step is not None and to_step is not None and from_step > to_step:
        raise Unprocessable(
            f"from_step must not lie behind to_step, got {from_step} > {to_step}: no step is in between.",
            from_step=from_step,
            to_step=to_step,
        )
    return StepRange(first=from_step, last=to_step)


StepRangeDep = Annotated[StepRange, Depends(_step_range)]
RunDep = Annotated[Run, Depends(_run)]
