"""Address -> page. Every navigation is a new document, so a page never has to undo another."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

from dash import Dash, Input, Output, State
from dash.development.base_component import Component

from isentrope_dashboard import ids
from isentrope_dashboard.api_client import ApiClient, ApiSource
from isentrope_dashboard.components.shell import page
from isentrope_dashboard.credentials import current_credentials
from isentrope_dashboard.errors import ApiError, ApiUnreachableError
from isentrope_dashboard.pages import compare
from isentrope_dashboard.pages.notice import alert
from isentrope_dashboard.pages.run import run_page
from isentrope_dashboard.pages.runs import runs_page
from isentrope_dashboard.records import View
from isentrope_dashboard.snapshots import read_snapshot
from isentrope_dashboard.unread import RUNS, Reading

_RUN_PREFIX = "/runs/"
_RUNS_PATHS = ("", "/", "/runs", "/runs/")
_COMPARE_PATHS = (compare.PATH, compare.PATH + "/")


def run_of_path(path: str | None) -> str | None:
    """The run a page's address names; None for any other address."""
    if not path or not path.startswith(_RUN_PREFIX):
        return None
    return unquote(path.removeprefix(_RUN_PREFIX)).strip("/") or None


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
        return compare.compare_page(await api.runs(), search), "", "Compare runs · Isentrope"
    return _refusal("No such page", f"There is no page {path}. The list of runs is at /.")


def _refusal(title: str, message: str) -> tuple[Component, None, str]:
    return page(title, [alert(title, message)]), None, f"{title} · Isentrope"


def _title(status: int) -> str:
    titles = {401: "Not signed in", 403: "Not allowed", 404: "No such run"}
    return titles.get(status, f"The server answered {status}")
