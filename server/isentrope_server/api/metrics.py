"""Metrics: names with newest values, and series."""

from __future__ import annotations

import difflib
from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy import Connection

from isentrope_server.api.cursors import ReportCursor, report_cursor
from isentrope_server.api.dependencies import BackendDep, RunDep, StepRangeDep, read_of
from isentrope_server.api.large_answers import json_answer
from isentrope_server.api.numbers import numbers
from isentrope_server.api.schemas import MetricOut, Page, SeriesAnswer
from isentrope_server.errors import UnknownMetric
from isentrope_server.store import runs, series
from isentrope_server.store.runs import Run
from isentrope_server.store.series import Series
from isentrope_server.store.series_parts import StepRange
from isentrope_wire.metrics import promised_metrics

router = APIRouter(tags=["metrics"])


@router.get("/runs/{run_id}/metrics")
async def list_metrics(run: RunDep, backend: BackendDep) -> Page[MetricOut]:
    """Every metric the run has reported, with its newest value."""
    latest = await read_of(backend, run, lambda connection: series.latest(connection, run.key))
    return Page(items=[MetricOut.of(value) for value in latest], next_cursor=None)


@router.get("/runs/{run_id}/metrics/series", response_model=SeriesAnswer)
async def get_series(
    run: RunDep,
    backend: BackendDep,
    name: Annotated[list[str], Query(min_length=1, max_length=100)],
    wanted: StepRangeDep,
    points: Annotated[int | None, Query(ge=1, le=100_000, description="Reduce longer series to so many.")] = None,
    since: Annotated[str | None, Query(description="`cursor` of an earlier answer: only what is new.")] = None,
) -> Response:
    """Series by name, as columns. A name without a point has empty columns.

    404 `metric_unknown`: the run has reports, but never one of any of these names, and no probe promises them.

    A step that several incarnations reported shows the newest one's value, from that one's first step on; rank 0 is
    preferred. Reduced series keep the minimum and maximum of every bucket, so that no spike is lost.
    """
    cursor = None if since is None else report_cursor(since)
    # Columns go out as they are: checking a million numbers against a schema would cost more than reading them.
    return await read_of(
        backend, run, lambda connection: json_answer(_answer(connection, run, name, wanted, points, cursor))
    )


def _answer(
    connection: Connection,
    run: Run,
    names: list[str],
    wanted: StepRange,
    points: int | None,
    since: ReportCursor | None,
) -> dict[str, object]:
    check_known(run, names, series.names(connection, run.key))
    now = current_cursor(connection, run)
    reset = since is None or since.timeline != now.timeline or since.position > now.position
    after = 0 if since is None or reset else since.position
    found = series.read(connection, run.key, list(dict.fromkeys(names)), wanted, after_position=after)
    return {
        "series": {name: _columns(one, points) for name, one in found.items()},
        "cursor": str(now),
        "reset": reset,
    }


def check_known(run: Run, names: list[str], reported: frozenset[str]) -> None:
    """Raises UnknownMetric where all names must be mistaken. Among known ones a stranger only has no points."""
    if not reported or not (reported | promised_metrics()).isdisjoint(names):
        return
    nearest = difflib.get_close_matches(names[0], sorted(reported), n=3) or sorted(reported)[:3]
    raise UnknownMetric(
        f"Run {run.id} never reported {', '.join(repr(name[:100]) for name in names[:3])}; "
        f"it reports e.g. {', '.join(nearest)}. `isentrope metrics {run.id}` lists all its metrics.",
        names=[name[:100] for name in names],
    )


def current_cursor(connection: Connection, run: Run) -> ReportCursor:
    """Everything stored up to this moment."""
    return ReportCursor(
        position=runs.last_position(connection, run.key), timeline=runs.timeline_version(connection, run.key)
    )


def _columns(one: Series, points: int | None) -> dict[str, object]:
    reduced = None if points is None else series.reduce(one, points)
    if reduced is None:
        return {"step": one.steps.tolist(), "value": numbers(one.values), "min": None, "max": None}
    return {
        "step": reduced.steps.tolist(),
        "value": numbers(reduced.values),
        "min": numbers(reduced.minima),
        "max": numbers(reduced.maxima),
    }
