"""Runs: list, read, edit, delete; the gaps in a run's record, its alerts, and its diagnosis."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import AfterValidator, Field, field_validator
from sqlalchemy import Connection

from isentrope_server.api.dependencies import (
    BackendDep,
    Body,
    Limit,
    PrincipalDep,
    RunDep,
    check_still_there,
    page_after,
    page_of,
    read_of,
)
from isentrope_server.api.responses import json_answer
from isentrope_server.backend import Backend
from isentrope_server.control.diagnosis import measured, states_of_checks
from isentrope_server.control.versions import run_control
from isentrope_server.errors import Conflict, NotFound
from isentrope_server.store import access, removal, runs, streams
from isentrope_server.store.access import Principal
from isentrope_server.store.reports import alerts, series
from isentrope_server.store.runs import Run, RunFilter
from isentrope_server.store.writer import Transaction
from isentrope_wire.answers import (
    Alert,
    Gap,
    HealthLevel,
    Page,
    RunCounts,
    RunDetail,
    RunOrder,
    RunSummary,
    Status,
)
from isentrope_wire.diagnosis.check_states import CheckState
from isentrope_wire.diagnosis.health import Diagnosis, diagnose
from isentrope_wire.numbers import part_of, plain_json
from isentrope_wire.reports import NAME_CHARACTERS, cut, is_visible

router = APIRouter(tags=["runs"])

_SORT = (
    "In the place of `order` by a column: "
    + ", ".join(f"`{column}`" for column in runs.SORTED_BY)
    + ", `config.NAME` or `metric.NAME`; `-` before it for the largest first. Runs without a value "
    "come last."
)
_SORT_CHARACTERS = NAME_CHARACTERS + len("-metric.")


def _check_sort(sort: str) -> str:
    column = sort.removeprefix("-")
    kind, _, name = column.partition(".")
    if column not in runs.SORTED_BY and not (kind in runs.NAMED and name):
        columns = ", ".join(runs.SORTED_BY)
        raise ValueError(f"sort needs one of {columns}, config.NAME or metric.NAME; got {sort!r}")
    return sort


class RunEdit(Body):
    """What people may change of a run. Fields that are not given stay."""

    name: str | None = Field(default=None, min_length=1, max_length=NAME_CHARACTERS)
    tags: list[Annotated[str, Field(min_length=1, max_length=100)]] | None = Field(
        default=None, max_length=50
    )
    notes: str | None = Field(default=None, max_length=20_000)

    @field_validator("name")
    @classmethod
    def _is_seen(cls, name: str | None) -> str | None:
        if name is not None and not is_visible(name):
            raise ValueError("a name must have a visible character")
        return name


_Names = Annotated[list[Annotated[str, Field(max_length=NAME_CHARACTERS)]], Query(max_length=100)]


async def _run_filter(
    project: _Names = [],  # noqa: B006  (FastAPI makes a new list for each request)
    status: Annotated[list[Status], Query(max_length=len(Status))] = [],  # noqa: B006
    tag: _Names = [],  # noqa: B006
    level: Annotated[
        list[HealthLevel],
        Query(
            max_length=len(HealthLevel),
            description="Only running runs of this level, or of one of several.",
        ),
    ] = [],  # noqa: B006
    q: Annotated[
        str | None, Query(max_length=200, description="Found in id, name, project, tags or error.")
    ] = None,
) -> RunFilter:
    return RunFilter(projects=project, statuses=status, tags=tag, levels=level, text=q)


RunFilterDep = Annotated[RunFilter, Depends(_run_filter)]


@router.get("/runs", response_model=Page[RunSummary])
async def list_runs(
    backend: BackendDep,
    wanted: RunFilterDep,
    order: RunOrder = RunOrder.NEWEST,
    sort: Annotated[
        Annotated[str, AfterValidator(_check_sort)] | None,
        Query(max_length=_SORT_CHARACTERS, description=_SORT),
    ] = None,
    metric: Annotated[
        _Names, Query(description="Metrics whose newest values the digests are to have.")
    ] = [],  # noqa: B006
    cursor: str | None = None,
    limit: Limit = 50,
) -> Response:
    """Runs with their digests. Of several values of one filter, a run must have one.

    Runs that begin while a client reads with a cursor do not appear on later pages of the newest
    ones. In the order `attention`, and sorted by a column, a run may move from one page to another
    meanwhile."""
    by_attention = order is RunOrder.ATTENTION and sort is None
    after = page_after(cursor, 2 if by_attention else 1)

    def read(connection: Connection) -> Response:
        listed = runs.page(
            connection,
            wanted,
            after=after,
            by_attention=by_attention,
            limit=limit + 1,
            silent_after_seconds=backend.settings.silent_after_seconds,
            sort=sort,
            metrics=metric,
        )
        listed = [_add_metrics(connection, run, metric) for run in listed]
        places = [(run.attention, run.key) if by_attention else (run.key,) for run in listed]
        if sort is not None:
            places = [
                ((after[0] if after else 0) + number,) for number in range(1, len(listed) + 1)
            ]
        items = [part_of(RunSummary, run, notes=cut(run.notes, 200)) for run in listed]
        # Each has its whole configuration, and pages request it every few seconds.
        return json_answer(page_of(list(zip(places, items, strict=True)), limit))

    return await backend.read(read)


def _add_metrics(connection: Connection, run: Run, names: Sequence[str]) -> Run:
    """The run, whose digest has these metrics' newest values, also those that it does not keep."""
    if run.digest is None or run.digest.metrics.keys() >= set(names):
        return run
    missing = set(names) & series.names(connection, run.key) - run.digest.metrics.keys()
    if not missing:
        return run
    values = {item.name: item.value for item in series.latest(connection, run.key, missing)}
    return replace(run, digest=replace(run.digest, metrics={**run.digest.metrics, **values}))


@router.get("/run-counts")
async def count_runs(backend: BackendDep, wanted: RunFilterDep) -> RunCounts:
    """How many runs there are by status, level, project and tag, for the filters of a list of runs.

    It takes the same filters; the counts by a field ignore the filter on this field.
    """
    silent_after = backend.settings.silent_after_seconds
    return await backend.read(lambda c: runs.counts(c, wanted, silent_after_seconds=silent_after))


@router.get("/runs/{run_id}")
async def get_run(run: RunDep, backend: BackendDep) -> RunDetail:
    """One run, with its newest and its active control."""
    return await describe(backend, run)


@router.patch("/runs/{run_id}")
async def edit_run(
    run: RunDep, edit: RunEdit, backend: BackendDep, principal: PrincipalDep
) -> RunDetail:
    """Rename a run, change its tags or notes.

    A run that is resumed keeps the name that people gave it; its id never changes.
    """
    await backend.write(lambda transaction: _edit(transaction, run, edit, principal))
    edited = await backend.read(
        lambda c: runs.find(c, run.id, silent_after_seconds=backend.settings.silent_after_seconds)
    )
    return await describe(backend, edited or run)


@router.delete("/runs/{run_id}", status_code=204)
async def delete_run(run: RunDep, backend: BackendDep, principal: PrincipalDep) -> Response:
    """Delete a run with all its reports. It is hidden at once; its space is returned in the
    background.

    A run that is still reporting is refused.
    """
    if run.status is Status.RUNNING:
        raise Conflict(f"Run {run.id} is still reporting; stop it first.", status=run.status)
    await backend.write(lambda transaction: _delete(transaction, run, principal))
    return Response(status_code=204)


async def describe(backend: Backend, run: Run) -> RunDetail:
    """The run as users read it; NotFound: it was deleted meanwhile."""
    control = await read_of(backend, run, lambda connection: run_control(connection, run))
    return part_of(RunDetail, run, config=plain_json(run.config), control=control)


def _edit(transaction: Transaction, run: Run, edit: RunEdit, principal: Principal) -> None:
    check_still_there(transaction.connection, run)
    runs.edit(transaction.connection, run.key, name=edit.name, tags=edit.tags, notes=edit.notes)
    old = {"name": run.name, "tags": run.tags, "notes": run.notes}
    change = {"old": old, "new": edit.model_dump(exclude_none=True)}
    access.record_audit(
        transaction.connection, principal, "run.edited", f"runs/{run.id}", change, time.time()
    )


def _delete(transaction: Transaction, run: Run, principal: Principal) -> None:
    now = time.time()
    check_still_there(transaction.connection, run)
    removal.hide_run(transaction.connection, run.key, run.id, by=principal.name, now=now)
    change = {"old": {"name": run.name, "project": run.project, "step": run.step}}
    access.record_audit(
        transaction.connection, principal, "run.deleted", f"runs/{run.id}", change, now
    )


@router.get("/runs/{run_id}/gaps")
async def list_gaps(
    run: RunDep, backend: BackendDep, cursor: str | None = None, limit: Limit = 50
) -> Page[Gap]:
    """Newest first. Late records are not a gap."""
    before = page_after(cursor, 2)
    gaps, known = await read_of(
        backend,
        run,
        lambda c: (
            streams.newest_gaps(c, run.key, before=before, limit=limit + 1),
            streams.all_of(c, run.key),
        ),
    )
    page = page_of(gaps, limit)
    if before is None:
        page = replace(page, items=[*backend.acknowledged.gaps(run.id, known)[:limit], *page.items])
    return page


@router.get("/runs/{run_id}/alerts")
async def list_alerts(
    run: RunDep, backend: BackendDep, cursor: str | None = None, limit: Limit = 50
) -> Page[Alert]:
    """Newest first. A resumed run's alerts replace those of the steps it repeats."""
    before = page_after(cursor, 2)
    alerts_ = await read_of(
        backend,
        run,
        lambda connection: alerts.newest_alerts(
            connection, run.key, before=before, limit=limit + 1
        ),
    )
    return page_of(alerts_, limit)


@router.put("/runs/{run_id}/alerts/{alert_id}/acknowledgement")
async def acknowledge_alert(
    run: RunDep,
    alert_id: Annotated[str, Path(description="The alert's id.")],
    backend: BackendDep,
    principal: PrincipalDep,
) -> Alert:
    """Acknowledge an alert: the name of the token and the time are stored. The first is kept.

    A run that goes on from a checkpoint has new alerts for the steps that it makes again; they are
    not acknowledged."""
    return await backend.write(
        lambda transaction: _acknowledge(transaction, run, alert_id, principal)
    )


def _acknowledge(transaction: Transaction, run: Run, alert_id: str, principal: Principal) -> Alert:
    now = time.time()
    check_still_there(transaction.connection, run)
    alert, is_first = alerts.acknowledge(
        transaction.connection, run.key, alert_id, principal.name, now
    )
    if alert is None:
        raise NotFound(f"Run {run.id} has no alert {alert_id[:64]!r}.", alert_id=alert_id[:64])
    if is_first:
        subject, change = (
            f"runs/{run.id}/alerts/{alert.id}",
            {"kind": alert.kind, "step": alert.step},
        )
        access.record_audit(
            transaction.connection, principal, "alert.acknowledged", subject, change, now
        )
    return alert


@router.get("/runs/{run_id}/diagnosis")
async def get_diagnosis(run: RunDep, backend: BackendDep) -> Diagnosis:
    """How the run is doing now: its level, one sentence, the cause, and the control that would stop
    a collapse.

    The level is that of the newest steps, by the rules of the alerts; a control that helps ends it.
    """
    return await read_of(backend, run, lambda connection: diagnose(measured(connection, run)))


@router.get("/runs/{run_id}/checks")
async def list_checks(run: RunDep, backend: BackendDep) -> Page[CheckState]:
    """Every check of why a run does not learn: what it found in the newest fifth of the run (50
    steps at least), or that it has no data, and what would give it some."""
    items = await read_of(backend, run, lambda connection: states_of_checks(connection, run))
    return Page(items=items, next_cursor=None)
