"""The slow way to stay up to date, for a browser without SharedWorker or while the WebSocket is gone for good."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dash import Dash, Input, State, set_props

from isentrope_dashboard import ids
from isentrope_dashboard.api_client import ApiSource
from isentrope_dashboard.credentials import current_credentials
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.pages.run_content import Props, snapshot_props
from isentrope_dashboard.pages.runs import runs_props
from isentrope_dashboard.records import View
from isentrope_dashboard.snapshots import read_snapshot


def register(app: Dash, source: ApiSource) -> None:
    """Reload a page's content at each tick of an interval that the browser enables only when nothing is live."""

    @app.callback(
        Input(ids.RUN_POLL, "n_intervals"),
        State(ids.PAGE_READY, "data"),
        State(ids.VIEW, "data"),
        prevent_initial_call=True,
    )
    async def poll_run(_ticks: int, run_id: str | None, view: dict[str, Any] | None) -> None:
        if run_id:
            await _refresh_run(source, run_id, View.from_json(view))

    @app.callback(Input(ids.RUNS_POLL, "n_intervals"), prevent_initial_call=True)
    async def poll_runs(_ticks: int) -> None:
        try:
            async with source.open(current_credentials()) as api:
                content = runs_props(await api.runs())
        except (ApiError, ApiUnreachableError):
            return
        show({**content, **_beat()})


async def _refresh_run(source: ApiSource, run_id: str, view: View) -> None:
    try:
        async with source.open(current_credentials()) as api:
            snapshot = await read_snapshot(api, run_id, view)
    except (ApiError, ApiUnreachableError):
        return  # the next tick tries again; the page misses the beat and says so
    content = await asyncio.to_thread(snapshot_props, snapshot, view)
    show({**content, **_beat()})


def _beat() -> Props:
    """Tells the browser that an update arrived."""
    return {ids.POLL_BEAT: {"data": time.time()}}


def show(content: Props) -> None:
    """Send properties to the page, as a side effect of the callback that runs."""
    for component_id, properties in content.items():
        set_props(component_id, dict(properties))
