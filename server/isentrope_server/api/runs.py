"""Runs: list, look at, write on, delete.

What a run's record lacks, and why.

What a run's probe thought a person should know.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Self

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from isentrope_server.api import dependencies
from isentrope_server.api.dependencies import BackendDep, PrincipalDep, RunDep, check_still_there, read_of
from isentrope_server.api.responses import json_answer
from isentrope_server.api.schemas import Page, RunDetail, RunEdit, RunSummary
from isentrope_server.backend import Backend
from isentrope_server.control.state import standing
from isentrope_server.errors import Conflict
from isentrope_server.security.tokens import Principal
from isentrope_server.store import access, removal, runs, streams
from isentrope_server.store.reports import attachments
from isentrope_server.store.reports.attachments import StoredAlert
from isentrope_server.store.runs import Run, RunFilter, Status
from isentrope_server.store.streams import StoredGap
from isentrope_server.store.writer import RunChanged, Transaction

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
    before_key = None if cursor is None else dependencies.decode(cursor, 1)[0]
    wanted = RunFilter(project=project, status=status, text=q)

    def read(connection: Connection) -> Response:
        silent_after = backend.settings.silent_after_seconds
        found = runs.page(connection, wanted, before_key=before_key, limit=limit + 1, silent_after_seconds=silent_after)
        items = found[:limit]
        # Each holds its whole configuration, and pages ask every few seconds.
        return json_answer(
            {
                "items": [RunSummary.of(run).model_dump(mode="json") for run in items],
                "next_cursor": dependencies.encode(items[-1].key) if len(found) > limit else None,
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
    access.record_audit(
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
    access.record_audit(
        transaction.connection,
        at=now,
        actor=principal.name,
        token_id=principal.token_id,
        action="run.deleted",
        subject=f"runs/{run.id}",
        change={"old": {"name": run.name, "project": run.project, "step": run.step}},
    )
    transaction.announce(RunChanged(run_id=run.id))


class GapOut(BaseModel):
    """Records of one rank that were lost before they reached the server."""

    incarnation: str
    rank: int
    first_seq: int
    last_seq: int
    reason: str = Field(description="What the probe's spool says: a full queue, a full disk, a damaged segment.")

    @classmethod
    def of(cls, gap: StoredGap) -> Self:
        return cls(
            incarnation=gap.incarnation,
            rank=gap.rank,
            first_seq=gap.first_seq,
            last_seq=gap.last_seq,
            reason=gap.reason,
        )


@router.get("/runs/{run_id}/gaps")
async def list_gaps(
    run: RunDep,
    backend: BackendDep,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Page[GapOut]:
    """Newest first. What is not lost but late is no gap."""
    before = None
    if cursor is not None:
        stream_key, first_seq = dependencies.decode(cursor, 2)
        before = (stream_key, first_seq)
    found = await read_of(backend, run, lambda c: streams.newest_gaps(c, run.key, before=before, limit=limit + 1))
    items = found[:limit]
    return Page(
        items=[GapOut.of(item) for item in items],
        next_cursor=dependencies.encode(items[-1].stream_key, items[-1].first_seq) if len(found) > limit else None,
    )


class AlertOut(BaseModel):
    """One alert, said at the step it was found."""

    step: int
    recorded_at: float
    kind: str = Field(
        description="collapse, explosion, self_check, prediction, dead_knob, zero_advantage, not_finite or left_out."
    )
    reason: str
    evidence: Mapping[str, float | None] = Field(description="The numbers the reason is made from.")

    @classmethod
    def of(cls, alert: StoredAlert) -> Self:
        return cls(
            step=alert.step,
            recorded_at=alert.recorded_at,
            kind=alert.kind,
            reason=alert.reason,
            evidence=alert.evidence,
        )


@router.get("/runs/{run_id}/alerts")
async def list_alerts(
    run: RunDep,
    backend: BackendDep,
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Page[AlertOut]:
    """Newest first. A resumed run's alerts replace those of the steps it repeats."""
    before = None
    if cursor is not None:
        position, number = dependencies.decode(cursor, 2)
        before = (position, number)
    found = await read_of(
        backend, run, lambda connection: attachments.newest_alerts(connection, run.key, before=before, limit=limit + 1)
    )
    items = found[:limit]
    return Page(
        items=[AlertOut.of(item) for item in items],
        next_cursor=dependencies.encode(items[-1].position, items[-1].number) if len(found) > limit else None,
    )
