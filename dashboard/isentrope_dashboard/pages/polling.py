"""The slow way to stay up to date, for a browser without SharedWorker or while the WebSocket is gone for good."""

from __future__ import annotations

import asyncio
from typing import Any

from dash import Dash, Input, Output, State, set_props

from isentrope_dashboard import ids
from isentrope_dashboard.api_client import ApiSource
from isentrope_dashboard.credentials import current_credentials
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.pages.routing import run_of_path
from isentrope_dashboard.pages.run_content import Props, snapshot_props
from isentrope_dashboard.pages.runs import runs_props
from isentrope_dashboard.records import View


def register(app: Dash, source: ApiSource) -> None:
    """Reload the whole content at each tick of an interval that the browser enables only when nothing is live."""

    @app.callback(
        Output(ids.POLL, "disabled", allow_duplicate=True),
        Input(ids.POLL, "n_intervals"),
        State(ids.URL, "pathname"),
        State(ids.PAGE_READY, "data"),
        prevent_initial_call=True,
    )
    async def poll(_ticks: int, path: str | None, ready: str | None) -> bool:
        if ready is not None:
            await _refresh(source, run_of_path(path))
        return False


async def _refresh(source: ApiSource, run_id: str | None) -> None:
    try:
        async with source.open(current_credentials()) as api:
            if run_id is None:
                show(runs_props(await api.runs()))
            else:
                snapshot = await api.snapshot(run_id, View())
                show(await asyncio.to_thread(snapshot_props, snapshot, View()))
    except (ApiError, ApiUnreachableError):
        return  # the next tick tries again; the age of the last report tells how old the page is


def show(content: Props) -> None:
    """Send properties to the page."""
    for component_id, properties in content.items():
        sent: dict[str, Any] = dict(properties)
        set_props(component_id, sent)
