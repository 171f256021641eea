"""Several runs on one step axis at /compare?run=<id>&run=<id>, and the panel of all metrics of one run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, no_update

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import ids
from isentrope_dashboard.access import Api
from isentrope_dashboard.components.metrics import OPEN, ComparedRun, comparison_panel, comparison_table, metric_rows
from isentrope_dashboard.components.shell import connection_badge, page
from isentrope_dashboard.figures.lines import EMPTY
from isentrope_dashboard.figures.metric_panels import (
    MOST_LINES,
    MOST_PANELS,
    MetricLine,
    MetricPanel,
    metric_panels_figure,
)
from isentrope_dashboard.ids import run_of_path
from isentrope_dashboard.pages.run import drawing
from isentrope_dashboard.pages.snapshot import View, read_latest
from isentrope_wire.answers import RunSummary, SeriesColumns

PATH = "/compare"
POINTS = 1000
NO_RUN_CHOSEN = "Choose the runs to compare"


def compared_runs(search: str | None) -> list[str]:
    """The runs that an address names, each once."""
    return list(dict.fromkeys(parse_qs((search or "").removeprefix("?")).get("run", [])))[:MOST_LINES]


def compare_page(runs: Sequence[RunSummary], search: str | None) -> dmc.AppShell:
    """The page; its own callback fills it in. Deleted runs are skipped."""
    known = {run.id for run in runs}
    chosen = [run_id for run_id in compared_runs(search) if run_id in known]
    return page("Compare runs", [comparison_panel(runs, chosen)], left=[connection_badge()])


def register_compare(app: Dash, api: Api) -> None:
    """Fill the page when another run or metric is chosen, and every few seconds."""

    @app.callback(
        Output(ids.drawing(ids.COMPARE_GRAPH), "data"),
        Output(ids.COMPARE_TABLE, "children"),
        Output(ids.COMPARE_METRICS, "data"),
        Output(ids.COMPARE_SUBTITLE, "children"),
        Output(ids.BEAT, "data", allow_duplicate=True),
        Input(ids.COMPARE_RUNS, "value"),
        Input(ids.COMPARE_METRICS, "value"),
        Input(ids.COMPARE_POLL, "n_intervals"),
        State(ids.COMPARE_METRICS, "data"),
        prevent_initial_call="initial_duplicate",
    )
    async def compare(
        run_ids: list[str] | None, metrics: list[str] | None, _ticks: int | None, offered: list[dict[str, str]]
    ) -> tuple[Any, ...]:
        chosen, names = (run_ids or [])[:MOST_LINES], (metrics or [])[:MOST_PANELS]
        try:
            async with api.open() as client:
                read = await asyncio.gather(*(_read(client, run_id, names) for run_id in chosen))
        except ApiError:
            return (no_update,) * 5  # asked again with the next tick; without news the page reports it
        drawn = await asyncio.to_thread(_drawn, [run for run, _ in read], [series for _, series in read], names)
        compared = [run for run, _ in read]
        known = sorted({item["value"] for item in offered} | {name for one in compared for name in one.latest})
        return (
            drawn,
            comparison_table(compared, names, [f"var(--line-{slot})" for slot in range(len(compared))]),
            [{"value": name, "label": name} for name in known],
            _subtitle(compared),
            time.time(),
        )


async def _read(client: AsyncClient, run_id: str, names: Sequence[str]) -> tuple[ComparedRun, dict[str, SeriesColumns]]:
    run, latest = await asyncio.gather(client.ask(calls.run(run_id)), read_latest(client, run_id))
    known = [name for name in names if name in latest]
    series = (await client.ask(calls.series(run_id, known, points=POINTS))).series if known else {}
    return ComparedRun(run=run, latest=latest), series


def _drawn(
    compared: Sequence[ComparedRun], series: Sequence[dict[str, SeriesColumns]], names: Sequence[str]
) -> dict[str, Any]:
    titles = [f"{one.run.name} · {one.run.id[-6:]}" for one in compared]
    panels = [
        MetricPanel(
            name,
            [
                MetricLine(title, slot, columns.get(name, EMPTY))
                for slot, (title, columns) in enumerate(zip(titles, series, strict=True))
            ],
        )
        for name in names
    ]
    revision = ",".join([*(one.run.id for one in compared), *names])
    figure = metric_panels_figure(panels, revision=revision, empty=NO_RUN_CHOSEN)
    data: dict[str, Any] = drawing(ids.COMPARE_GRAPH, figure)[ids.drawing(ids.COMPARE_GRAPH)]["data"]
    return data


def _subtitle(compared: Sequence[ComparedRun]) -> str:
    live = sum(one.run.status == "running" for one in compared)
    return f"{len(compared)} run{'s' * (len(compared) != 1)} on one step axis, {live} live"


NO_METRIC_CHOSEN = "Choose a metric above"


def register_all_metrics(app: Dash, api: Api) -> None:
    """Fill the panel when it is opened, when another metric is chosen, and as steps come."""

    @app.callback(
        Output(ids.METRICS_CHOICE, "data"),
        Output(ids.METRICS_GRID, "rowData"),
        Output(ids.drawing(ids.METRICS_GRAPH), "data"),
        Input(ids.METRICS_PANEL, "value"),
        Input(ids.METRICS_CHOICE, "value"),
        Input(ids.WINDOW, "value"),
        Input(ids.WHAT_IF_STEP, "data"),
        State(ids.URL, "pathname"),
        prevent_initial_call=True,
    )
    async def fill(
        opened: str | None, chosen: list[str] | None, window: str, newest: dict[str, Any] | None, path: str | None
    ) -> tuple[Any, Any, Any]:
        run_id = run_of_path(path)
        if opened != OPEN or run_id is None:
            return no_update, no_update, no_update
        names, view = (chosen or [])[:MOST_PANELS], View(window=window)
        last = (newest or {}).get("step")
        first = None if view.steps is None or last is None else max(0, last - view.steps + 1)
        try:
            async with api.open() as client:
                latest = await read_latest(client, run_id)
                known = [name for name in names if name in latest]
                asked = calls.series(run_id, known, from_step=first, points=POINTS)
                series = (await client.ask(asked)).series if known else {}
        except ApiError:
            return no_update, no_update, no_update
        panels = [MetricPanel(name, [MetricLine(name, 0, series.get(name, EMPTY))]) for name in known]
        revision = f"{run_id}:{window}:{','.join(known)}"
        figure = await asyncio.to_thread(metric_panels_figure, panels, revision=revision, empty=NO_METRIC_CHOSEN)
        drawn = drawing(ids.METRICS_GRAPH, figure)[ids.drawing(ids.METRICS_GRAPH)]["data"]
        return sorted(latest), metric_rows(latest), drawn
