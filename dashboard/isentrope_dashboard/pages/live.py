"""How an open page stays up to date: it asks for news twice a second, and shows what came.

The browser sends what it shows (`Shown`), the answer holds the properties that changed. Between two questions the server
remembers nothing, so that it may restart, and that several servers may answer in turns. New steps come by the cursor of
the series: where they continue what is drawn they are appended to the entropy chart, else it is drawn again. Large parts
and those that change seldom are asked for beside that, every few seconds, so that a slow answer delays no step.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dash import Dash, Input, Output, State, no_update

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import ids
from isentrope_dashboard.access import Api
from isentrope_dashboard.components.load_errors import Reading, load_error_props
from isentrope_dashboard.figures.entropy import Drawn, appended, extension
from isentrope_dashboard.figures.held_entropy import banded_rows
from isentrope_dashboard.figures.lines import StepRow, rows_of
from isentrope_dashboard.pages.routing import control_notifications, runs_props
from isentrope_dashboard.pages.run import (
    FAST_PARTS,
    slow_props,
    snapshot_props,
    step_props,
)
from isentrope_dashboard.pages.snapshot import (
    CHART_METRICS,
    CHART_POINTS,
    Shown,
    View,
    control_signature,
    read_newest,
    read_slow_parts,
    read_snapshot,
)
from isentrope_wire.answers import RunDetail, SeriesAnswer
from isentrope_wire.numbers import read

HEAL_SECONDS = 15.0
"""After that, parts that failed to load are tried again."""
GROWTH_POINTS = 2 * CHART_POINTS
"""A chart of all steps grows to this many points before the server is asked to reduce it again."""


def register(app: Dash, api: Api) -> None:
    """Answer the questions of open pages."""

    @app.callback(
        Output(ids.NEWS, "data"),
        Input(ids.QUESTION, "data"),
        State(ids.PAGE_READY, "data"),
        prevent_initial_call=True,
    )
    async def answer(question: dict[str, Any] | None, run_id: str | None) -> Any:
        if not question or not run_id:
            return no_update
        shown, view = read(Shown, question["shown"]), View.from_json(question["view"])
        try:
            async with api.open() as client:
                return await _news(client, run_id, shown, view)
        except ApiError:
            return {"failed": uuid.uuid4().hex}  # asked again with the next tick; without news the page reports it

    @app.callback(
        Output(ids.SLOW_NEWS, "data"),
        Input(ids.SLOW_QUESTION, "data"),
        State(ids.PAGE_READY, "data"),
        prevent_initial_call=True,
    )
    async def answer_slowly(question: dict[str, Any] | None, run_id: str | None) -> Any:
        if not question or not run_id:
            return no_update
        view = View.from_json(question["view"])
        try:
            async with api.open() as client:
                run = await client.ask(calls.run(run_id))
                parts = await read_slow_parts(client, run, view, with_law=bool(question["law"]))
        except ApiError:
            return {"failed": True, "step": None, "number": uuid.uuid4().hex, "props": {}}
        content = await asyncio.to_thread(slow_props, run.id, parts, view)
        return {"failed": bool(parts.errors), "step": run.step, "number": uuid.uuid4().hex, "props": content}

    @app.callback(
        Output(ids.RUNS_GRID, "rowData"),
        Output(ids.RUNS_COUNT, "children"),
        Output(ids.BEAT, "data"),
        Input(ids.RUNS_POLL, "n_intervals"),
        State(ids.RUNS_GRID, "rowData"),
        prevent_initial_call=True,
    )
    async def list_runs(_ticks: int, rows: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
        try:
            async with api.open() as client:
                content = runs_props(await client.newest(calls.runs(), 200))
        except ApiError:
            return no_update, no_update, no_update
        if content[ids.RUNS_GRID]["rowData"] == rows:
            return no_update, no_update, time.time()
        return content[ids.RUNS_GRID]["rowData"], content[ids.RUNS_COUNT]["children"], time.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class _New:
    """What came since the page was last changed."""

    run: RunDetail
    series: SeriesAnswer
    rows: Sequence[StepRow]
    chart: Drawn
    """The entropy chart with the new rows."""


async def _news(client: AsyncClient, run_id: str, shown: Shown, view: View) -> dict[str, Any]:
    """The properties that changed, and what the page shows with them."""
    run = await client.ask(calls.run(run_id))
    if shown.failed and time.time() - shown.read_at >= HEAL_SECONDS:
        return await _whole(client, run, shown, view)
    if not shown.cursor:  # the chart failed to load
        return await _newest(client, run, shown, view, "", shown.chart)
    series = await client.ask(calls.series(run_id, CHART_METRICS, since=shown.cursor))
    rows = rows_of(series.series)
    chart = None if series.reset else appended(shown.chart, rows)
    full = chart is not None and chart.points > GROWTH_POINTS and view.steps is None
    if chart is None or full or view.window != shown.window or control_signature(run) != shown.control:
        return await _whole(client, run, shown, view)
    if rows:
        return await _continued(client, shown, _New(run=run, series=series, rows=rows, chart=chart), view)
    return await _newest(client, run, shown, view, series.cursor, chart)


async def _newest(
    client: AsyncClient, run: RunDetail, shown: Shown, view: View, cursor: str, chart: Drawn
) -> dict[str, Any]:
    """Without anything new for the chart: only the parts that a step, the status or the reader changed."""
    now = shown.after(run, view, cursor, chart)
    if (run.step, run.status, view.split) == (shown.step, shown.status, shown.split):
        return _answered(shown, now, {})
    newest = await read_newest(client, run, Reading())
    return _answered(shown, now, await asyncio.to_thread(step_props, newest, view))


async def _whole(client: AsyncClient, run: RunDetail, shown: Shown, view: View) -> dict[str, Any]:
    snapshot = await read_snapshot(client, run, view)
    content = await asyncio.to_thread(snapshot_props, snapshot, view)
    notifications = control_notifications(snapshot.history, shown.open_versions, shown.newest_version)
    if notifications:
        content[ids.NOTIFICATIONS] = {"sendNotifications": notifications}
    return _answered(shown, Shown.of(snapshot, view), content)


async def _continued(client: AsyncClient, shown: Shown, new: _New, view: View) -> dict[str, Any]:
    reading = Reading()
    newest = await read_newest(client, new.run, reading)
    content = await asyncio.to_thread(step_props, newest, view)
    content |= load_error_props(reading.errors, FAST_PARTS)
    active = new.run.control.active
    rows = banded_rows(new.rows, [] if active is None or not shown.chart.held else [active])
    kept = GROWTH_POINTS if view.steps is None else view.steps
    content[ids.ENTROPY_GRAPH] = {"extendData": extension(rows, kept, held=shown.chart.held)}
    return _answered(shown, shown.after(new.run, view, new.series.cursor, new.chart), content)


def _answered(before: Shown, now: Shown, content: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {"after": before.number, "shown": asdict(now), "props": dict(content)}
