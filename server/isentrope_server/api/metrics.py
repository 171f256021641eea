"""Metrics: names and newest values, series, histograms, the report of a step."""

from __future__ import annotations

import difflib
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from sqlalchemy import Connection

from isentrope_server.api.dependencies import (
    BackendDep,
    ReportCursor,
    RunDep,
    StepRangeDep,
    decode,
    read_of,
)
from isentrope_server.api.responses import json_answer
from isentrope_server.errors import NotFound
from isentrope_server.store import runs
from isentrope_server.store.reports import histograms, series, steps
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.runs import Run
from isentrope_wire.answers import (
    REDUCED_SERIES,
    HistogramColumns,
    LatestMetric,
    Page,
    SeriesAnswer,
    StepReport,
)
from isentrope_wire.metrics import HISTOGRAMS, promised_metrics

router = APIRouter(tags=["metrics"])


@router.get("/runs/{run_id}/metrics")
async def list_metrics(run: RunDep, backend: BackendDep) -> Page[LatestMetric]:
    """Every metric the run has reported, with its newest value."""
    items = await read_of(backend, run, lambda connection: series.latest(connection, run.key))
    return Page(items=items, next_cursor=None)


@router.get("/runs/{run_id}/metrics/series", response_model=SeriesAnswer)
async def get_series(
    run: RunDep,
    backend: BackendDep,
    name: Annotated[list[str], Query(min_length=1, max_length=100)],
    wanted: StepRangeDep,
    points: Annotated[
        int | None,
        Query(ge=1, le=100_000, description=f"Points of a series at most. {REDUCED_SERIES}"),
    ] = None,
    since: Annotated[
        str | None, Query(description="`cursor` of an earlier answer: only what is new.")
    ] = None,
) -> Response:
    """Series by name, as columns. A name without a point has empty columns.

    404 `metric_unknown`: the run has reports, but never one of any of these names, and no probe
    promises them.

    A step that several incarnations reported shows the newest one's value, from that one's first
    step on; rank 0 is preferred."""
    if since is None:
        cursor = None
    else:
        cursor = ReportCursor(*decode(since, 2))
    # Not validated: checking a million numbers would take longer than reading them.
    return await read_of(
        backend,
        run,
        lambda connection: json_answer(_answer(connection, run, name, wanted, points, cursor)),
    )


def _answer(
    connection: Connection,
    run: Run,
    names: list[str],
    wanted: StepRange,
    points: int | None,
    since: ReportCursor | None,
) -> SeriesAnswer:
    check_known(run, names, series.names(connection, run.key))
    now = current_cursor(connection, run)
    reset = since is None or since.timeline != now.timeline or since.position > now.position
    after = 0
    if since is not None and not reset:
        after = since.position
    values = series.read(
        connection, run.key, list(dict.fromkeys(names)), wanted, after_position=after
    )
    return SeriesAnswer(
        series={name: series.columns(values[name], points) for name in values},
        cursor=str(now),
        reset=reset,
    )


def check_known(run: Run, names: list[str], reported: frozenset[str]) -> None:
    """Check that at least one name is known; NotFound: the run has reports, but none with any of
    these names."""
    if not reported or not (reported | promised_metrics()).isdisjoint(names):
        return
    nearest = difflib.get_close_matches(names[0], sorted(reported), n=3) or sorted(reported)[:3]
    raise NotFound(
        f"Run {run.id} never reported {', '.join(repr(name[:100]) for name in names[:3])}; "
        f"it reports e.g. {', '.join(nearest)}. `isentrope metrics {run.id}` lists all its"
        " metrics.",
        code="metric_unknown",
        names=[name[:100] for name in names],
    )


def current_cursor(connection: Connection, run: Run) -> ReportCursor:
    """The cursor after everything stored now."""
    return ReportCursor(
        position=runs.last_position(connection, run.key),
        timeline=runs.timeline_version(connection, run.key),
    )


@router.get("/runs/{run_id}/histograms/{name:path}", response_model=HistogramColumns)
async def get_histograms(
    run: RunDep,
    name: str,
    backend: BackendDep,
    wanted: StepRangeDep,
    points: Annotated[int | None, Query(ge=1, le=10_000)] = None,
) -> Response:
    """One histogram per step. With `points`, neighbouring steps with equal bins are added.

    404 `histogram_unknown`: the run has reports, but none with such a histogram, and no probe
    promises it."""
    return await read_of(
        backend, run, lambda c: json_answer(_read_histograms(c, run, name, wanted, points))
    )


def _read_histograms(
    connection: Connection, run: Run, name: str, wanted: StepRange, points: int | None
) -> HistogramColumns:
    found = histograms.read(connection, run.key, name, wanted, points=points)
    if found.step or run.step is None or name in HISTOGRAMS:
        return found
    if not histograms.is_known(connection, run.key, name):
        raise NotFound(
            f"Run {run.id} never reported a histogram {name[:100]!r}; "
            f"GET /api/v1/runs/{run.id}/steps/{run.step} shows those of its newest step.",
            code="histogram_unknown",
            name=name[:100],
        )
    return found


@router.get("/runs/{run_id}/steps/{step}")
async def get_step(
    run: RunDep, step: Annotated[int, Path(ge=0, le=2**63 - 1)], backend: BackendDep
) -> StepReport:
    """The report of one step: scalars, histograms, labels, and the control it was made under."""
    stored = await read_of(backend, run, lambda connection: steps.find(connection, run.key, step))
    if stored is None:
        raise NotFound(f"Run {run.id} has no report of step {step}.", step=step)
    return stored
