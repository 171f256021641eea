"""Runs: list, look at, write on, delete."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy import Connection

from isentrope_server.api import cursors
from isentrope_server.api.dependencies import BackendDep, PrincipalDep, RunDep, check_still_there, read_of
from isentrope_server.api.large_answers import json_answer
from isentrope_server.api.schemas import Page, RunDetail, RunEdit, RunSummary
from isentrope_server.backend import Backend
from isentrope_server.control.view import standing
from isentrope_server.errors import Conflict
from isentrope_server.security.tokens import Principal
from isentrope_server.store import audit, removal, runs
from isentrope_server.store.events import RunChanged
from isentrope_server.store.runs import Run, RunFilter, Status
from isentrope_server.store.writer import Transaction

router = APIRouter(tags=["runs"])


@router.get("/runs", response_model=Page[RunSummary])
async def list_runs(
    backend: BackendDep,
    project: str | None = None,
    status: Status | None = None,
    q: Annotated[str | None, Query(max_length=200, description="Found in id, name or project.")] = None,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Runs by when the server first heard of them, newest first.

    A cursor stands behind a run of that order: runs that begin while somebody reads on are neither told nor shift a page.
    """
    before_key = None if cursor is None else cursors.decode(cursor, 1)[0]
    wanted = RunFilter(project=project, status=status, text=q)

    def read(connection: Connection) -> Response:
        silent_after = backend.settings.silent_after_seconds
        found = runs.page(connection, wanted, before_key=before_key, limit=limit + 1, silent_after_seconds=silent_after)
        items = found[:limit]
        # Each holds its whole configuration, and pages ask every few seconds.
        return json_answer(
            {
                "items": [RunSummary.of(run).model_dump(mode="json") for run in items],
                "next_cursor": cursors.encode(items[-1].key) if len(found) > limit else None,
            }
        )

    return await backend.read(read)


@router.get("/runs/{run_id}")
async def get_run(run: RunDep, backend: BackendDep) -> RunDetail:
    """One run, with the control it has and should have."""
    return await describe(backend, run)


@router.patch("/runs/{run_id}")
async def edit_run(run: RunDep, edit: RunEdit, backend: BackendDep, principal: PrincipalDep) -> RunDetail:
    """Change tags or notes."""
    await backend.write(lambda transaction: _edit(transaction, run, edit, principal))
    edited = await backend.read(
        lambda c: runs.find(c, run.id, silent_after_seconds=backend.settings.silent_after_seconds)
    )
    return await describe(backend, edited or run)


@router.delete("/runs/{run_id}", status_code=204)
async def delete_run(run: RunDep, backend: BackendDep, principal: PrincipalDep) -> Response:
    """Delete a run with all it reported. It is out of sight at once; its space is given back in the background.

    A run that is still reporting is refused.
    """
    if run.status is Status.RUNNING:
        raise Conflict(f"Run {run.id} is still reporting; stop it first.", status=run.status)
    await backend.write(lambda transaction: _delete(transaction, run, principal))
    return Response(status_code=204)


async def describe(backend: Backend, run: Run) -> RunDetail:
    """The run as users read it.

    Raises:
        NotFound: it was deleted since it was looked up.
    """
    return RunDetail.described(run, await read_of(backend, run, lambda connection: standing(connection, run)))


def _edit(transaction: Transaction, run: Run, edit: RunEdit, principal: Principal) -> None:
    check_still_there(transaction.connection, run)
    runs.edit(transaction.connection, run.key, tags=edit.tags, notes=edit.notes)
    audit.record(
        transaction.connection,
        at=time.time(),
        actor=principal.name,
        token_id=principal.token_id,
        action="run.edited",
        subject=f"runs/{run.id}",
        change={"old": {"tags": list(run.tags), "notes": run.notes}, "new": edit.model_dump(exclude_none=True)},
    )
    transaction.announce(RunChanged(run_id=run.id))


def _delete(transaction: Transaction, run: Run, principal: Principal) -> None:
    now = time.time()
    check_still_there(transaction.connection, run)
    removal.take_out_of_sight(transaction.connection, run.key, run.id, by=principal.name, now=now)
    audit.record(
        transaction.connection,
        at=now,
        actor=principal.name,
        token_id=principal.token_id,
        action="run.deleted",
        subject=f"runs/{run.id}",
        change={"old": {"name": run.name, "project": run.project, "step": run.step}},
    )
    transaction.announce(RunChanged(run_id=run.id))
