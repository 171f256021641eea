"""Addresses and their pages, the list of runs at /, and notifications. Every navigation is a new document."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, set_props
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import ids
from isentrope_dashboard.access import Api
from isentrope_dashboard.components.control_panel import outcome_text
from isentrope_dashboard.components.grids import run_rows, runs_grid
from isentrope_dashboard.components.load_errors import RUNS, Reading
from isentrope_dashboard.components.panel import panel
from isentrope_dashboard.components.shell import connection_badge, page
from isentrope_dashboard.formatting import describe, previous_control
from isentrope_dashboard.ids import run_of_path
from isentrope_dashboard.pages import metrics
from isentrope_dashboard.pages.run import Props, run_page
from isentrope_dashboard.pages.snapshot import View, read_slow_parts, read_snapshot
from isentrope_wire.answers import RunSummary
from isentrope_wire.control_answers import ControlVersion

POLL_MILLISECONDS = 2000


def runs_page(runs: Sequence[RunSummary]) -> dmc.AppShell:
    """Every run with a link to its page."""
    content = runs_props(runs)
    grid = runs_grid()
    grid.rowData = content[ids.RUNS_GRID]["rowData"]
    compare = dmc.Button("Compare", id=ids.COMPARE_BUTTON, variant="default", size="compact-xs", disabled=True)
    card = panel("Runs", content[ids.RUNS_COUNT]["children"], grid, aside=compare, subtitle_id=ids.RUNS_COUNT)
    return page("Runs", [dcc.Interval(id=ids.RUNS_POLL, interval=POLL_MILLISECONDS), card], left=[connection_badge()])


def runs_props(runs: Sequence[RunSummary]) -> Props:
    """Component id -> properties of the list."""
    live = sum(run.status == "running" for run in runs)
    return {
        ids.RUNS_GRID: {"rowData": run_rows(runs)},
        ids.RUNS_COUNT: {"children": f"{len(runs)} runs, {live} live" if len(runs) != 1 else f"1 run, {live} live"},
    }


_log = logging.getLogger(__name__)

_TITLES = {
    "APPLIED": ("Applied", "teal"),
    "PARTIAL": ("Applied by some ranks only", "orange"),
    "REJECTED": ("Rejected by the trainer", "red"),
    "EXPIRED": ("Expired", "orange"),
}


def notification(title: str, message: str, color: str, *, key: str, seconds: float = 8) -> dict[str, Any]:
    """One notification for `NotificationContainer.sendNotifications`."""
    return {
        "action": "show",
        "id": key,
        "title": title,
        "message": message,
        "color": color,
        "autoClose": int(1000 * seconds),
        "closeButtonProps": {"aria-label": "Close this notification"},
    }


def control_notifications(
    history: Sequence[ControlVersion], open_versions: Sequence[int], newest_version: int
) -> list[dict[str, Any]]:
    """One notification for each control version that has reached its final state.

    Args:
        history: Newest first.
        open_versions: Those that had no final state when the page was last changed.
        newest_version: The newest one then.
    """
    shown = []
    for item in history:
        if item.state in _TITLES and (item.version in open_versions or item.version > newest_version):
            title, color = _TITLES[item.state]
            what = describe(item.control, previous_control(item, history))
            message = f"v{item.version}: {what}, {outcome_text(item)}"
            shown.append(notification(title, message, color, key=f"control-{item.version}-{item.state}"))
    return shown


def alert(title: str, message: str, color: str = "red") -> dmc.Alert:
    """A message in the place of a page that can't be shown."""
    return dmc.Alert(message, title=title, color=color, variant="light", radius="lg")


def report_failure(error: Exception) -> None:
    """Report an unexpected failure of a callback: the traceback to the log, one sentence to the page."""
    _log.error("A callback of the dashboard failed.", exc_info=error)
    message = (
        f"{type(error).__name__}: this page may be out of date. Details are in the server's log; reload to continue."
    )
    show = [notification("The dashboard failed", message, "red", key="failure", seconds=30)]
    set_props(ids.NOTIFICATIONS, {"sendNotifications": show})


_RUNS_PATHS = ("", "/", "/runs", "/runs/")
_COMPARE_PATHS = (metrics.PATH, metrics.PATH + "/")


def is_page(path: str) -> bool:
    """Whether there is a page at this address, though maybe no run of that name."""
    return run_of_path(path) is not None or path in (*_RUNS_PATHS, *_COMPARE_PATHS)


def register(app: Dash, api: Api) -> None:
    """Show the page of an address."""

    @app.callback(
        Output(ids.PAGE, "children"),
        Output(ids.PAGE_READY, "data"),
        Output(ids.TITLE, "data"),
        Input(ids.URL, "pathname"),
        State(ids.URL, "search"),
    )
    async def show_page(path: str | None, search: str | None) -> tuple[Component, str | None, str]:
        try:
            async with api.open() as client:
                return await _page_of(client, path, search)
        except ApiError as error:
            return _refusal(_title(error.status), str(error))


async def _page_of(client: AsyncClient, path: str | None, search: str | None) -> tuple[Component, str | None, str]:
    """The page, the run it shows ("" for the list), and the document's title."""
    run_id = run_of_path(path)
    if run_id is not None:
        view = View()
        reading = Reading()
        run = await client.ask(calls.run(run_id))
        snapshot, slow, runs = await asyncio.gather(
            read_snapshot(client, run, view),
            read_slow_parts(client, run, view, with_law=True),
            reading.part(RUNS, _runs(client), []),
        )
        shown = await asyncio.to_thread(run_page, snapshot, slow, runs, view, reading.errors.get(RUNS, ""))
        return shown, run_id, f"{run.name} · Isentrope"
    if path is None or path in _RUNS_PATHS:
        return runs_page(await _runs(client)), "", "Runs · Isentrope"
    if path in _COMPARE_PATHS:
        return metrics.compare_page(await _runs(client), search), "", "Compare runs · Isentrope"
    return _refusal("No such page", f"There is no page {path}. The list of runs is at /.")


async def _runs(client: AsyncClient) -> list[RunSummary]:
    return await client.newest(calls.runs(), 200)


def _refusal(title: str, message: str) -> tuple[Component, None, str]:
    return page(title, [alert(title, message)]), None, f"{title} · Isentrope"


def _title(status: int | None) -> str:
    titles = {401: "Not signed in", 403: "Not allowed", 404: "No such run"}
    return titles.get(status or 0, f"The server answered {status}")
