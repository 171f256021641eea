"""Fills the panel of all metrics while it is open."""

from __future__ import annotations

import asyncio
from typing import Any

from dash import Dash, Input, Output, State, no_update

from isentrope_dashboard import ids
from isentrope_dashboard.api_client import ApiSource
from isentrope_dashboard.components.all_metrics import OPEN, metric_rows
from isentrope_dashboard.credentials import current_credentials
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.figures.metric_panels import MOST_PANELS, MetricLine, MetricPanel, metric_panels_figure
from isentrope_dashboard.pages.routing import run_of_path
from isentrope_dashboard.pages.run_content import drawing
from isentrope_dashboard.records import SeriesColumns, View

POINTS = 1000
NOTHING_CHOSEN = "Choose a metric above"


def register(app: Dash, source: ApiSource) -> None:
    """Read anew when it is opened, when another metric is chosen, and as steps come."""

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
            async with source.open(current_credentials()) as api:
                latest = await api.latest(run_id)
                known = [name for name in names if name in latest]
                series = await api.series(run_id, known, from_step=first, points=POINTS) if known else {}
        except (ApiError, ApiUnreachableError):
            return no_update, no_update, no_update
        panels = [MetricPanel(name, [MetricLine(name, 0, series.get(name, SeriesColumns()))]) for name in known]
        revision = f"{run_id}:{window}:{','.join(known)}"
        figure = await asyncio.to_thread(metric_panels_figure, panels, revision=revision, empty=NOTHING_CHOSEN)
        drawn = drawing(ids.METRICS_GRAPH, figure)[ids.drawing(ids.METRICS_GRAPH)]["data"]
        return sorted(latest), metric_rows(latest), drawn
