"""Address -> page. Every navigation is a new document, so a page never has to undo another.

The list of runs at /.

Notifications and error messages. All text reaches the page as text nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, set_props
from dash.development.base_component import Component

from isentrope_dashboard import ids
from isentrope_dashboard.access import current_credentials
from isentrope_dashboard.api_client import ApiClient, ApiSource
from isentrope_dashboard.components.control_panel import outcome_text
from isentrope_dashboard.components.grids import run_rows, runs_grid
from isentrope_dashboard.components.load_errors import RUNS, Reading
from isentrope_dashboard.components.panel import panel
from isentrope_dashboard.components.shell import connection_badge, page, slow_interval
from isentrope_dashboard.controls import ControlItem
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.formatting import describe, previous_in_force
from isentrope_dashboard.ids import run_of_path
from isentrope_dashboard.pages import metrics
from isentrope_dashboard.pages.run import Props, run_page
from isentrope_dashboard.pages.snapshot import RunSnapshot, View, read_snapshot
from isentrope_dashboard.records import RunSummary


def runs_page(runs: Sequence[RunSummary]) -> dmc.AppShell:
    """Every run with a link to its page."""
    content = runs_props(runs)
    grid = runs_grid()
    grid.rowData = content[ids.RUNS_GRID]["rowData"]
    compare = dmc.Button("Compare", id=ids.COMPARE_BUTTON, variant="default", size="compact-xs", disabled=True)
    card = panel("Runs", content[ids.RUNS_COUNT]["children"], grid, aside=compare, subtitle_id=ids.RUNS_COUNT)
    return page("Runs", [slow_interval(ids.RUNS_POLL), card], left=[connection_badge()])


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


def control_notifications(snapshot: RunSnapshot, changed: tuple[ControlItem, ...]) -> list[dict[str, Any]]:
    """One notification for each control version that just came to its end."""
    shown = []
    for item in changed:
        if item.state in _TITLES:
            title, color = _TITLES[item.state]
            what = describe(item.values, previous_in_force(item, snapshot.history))
            message = f"v{item.version}: {what}, {outcome_text(item)}"
            shown.append(notification(title, message, color, key=f"control-{item.version}-{item.state}"))
    return shown


def alert(title: str, message: str, color: str = "red") -> dmc.Alert:
    """A message in the place of a page that can't be shown."""
    return dmc.Alert(message, title=title, color=color, variant="light", radius="lg")


def report_failure(error: Exception) -> None:
    """A callback failed in a way nobody foresaw: the log gets the whole of it, the page one sentence."""
    _log.error("A callback of the dashboard failed.", exc_info=error)
    message = f"{type(error).__name__}: this page may be out of date. The server's log says more; reload to go on."
    show = [notification("The dashboard failed", message, "red", key="failure", seconds=30)]
    set_props(ids.NOTIFICATIONS, {"sendNotifications": show})


_RUNS_PATHS = ("", "/", "/runs", "/runs/")
_COMPARE_PATHS = (metrics.PATH, metrics.PATH + "/")


def is_page(path: str) -> bool:
    """Whether there is a page at this address, though maybe no run of that name."""
    return run_of_path(path) is not None or path in (*_RUNS_PATHS, *_COMPARE_PATHS)


def register(app: Dash, source: ApiSource) -> None:
    """Let the address decide which page is shown."""

    @app.callback(
        Output(ids.PAGE, "children"),
        Output(ids.PAGE_READY, "data"),
        Output(ids.TITLE, "data"),
        Input(ids.URL, "pathname"),
        State(ids.URL, "search"),
    )
    async def show_page(path: str | None, search: str | None) -> tuple[Component, str | None, str]:
        try:
            async with source.open(current_credentials()) as api:
                return await _page_of(api, path, search)
        except ApiError as error:
            return _refusal(_title(error.status), str(error))
        except ApiUnreachableError as error:
            return _refusal("No answer from the server", str(error))


async def _page_of(api: ApiClient, path: str | None, search: str | None) -> tuple[Component, str | None, str]:
    """The page, the run it shows ("" for the list), and the document's title."""
    run_id = run_of_path(path)
    if run_id is not None:
        view = View()
        reading = Reading()
        snapshot, runs = await asyncio.gather(read_snapshot(api, run_id, view), reading.part(RUNS, api.runs(), []))
        shown = await asyncio.to_thread(run_page, snapshot, runs, view, reading.unread.get(RUNS, ""))
        return shown, run_id, f"{snapshot.run.name} · Isentrope"
    if path is None or path in _RUNS_PATHS:
        return runs_page(await api.runs()), "", "Runs · Isentrope"
    if path in _COMPARE_PATHS:
        return metrics.compare_page(await api.runs(), search), "", "Compare runs · Isentrope"
    return _refusal("No such page", f"There is no page {path}. The list of runs is at /.")


def _refusal(title: str, message: str) -> tuple[Component, None, str]:
    return page(title, [alert(title, message)]), None, f"{title} · Isentrope"


def _title(status: int) -> str:
    titles = {401: "Not signed in", 403: "Not allowed", 404: "No such run"}
    return titles.get(status, f"The server answered {status}")
