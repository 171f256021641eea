"""Addresses and their pages. Every navigation is a new document; within one, the query says what is shown."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html, set_props
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import live, theme
from isentrope_dashboard import view as views
from isentrope_dashboard.access import Api
from isentrope_dashboard.components import header
from isentrope_dashboard.components.basics import skeleton
from isentrope_dashboard.live import Part, refusal
from isentrope_dashboard.pages import access, compare, run, runs, start
from isentrope_dashboard.view import View

_log = logging.getLogger(__name__)

PAGE, PATH, TITLE, NOTIFICATIONS = "page", "path", "title", "notifications"

Page: TypeAlias = Callable[[AsyncClient, View], Awaitable[tuple[Component, str]]]
"""Reads a page; returns it and the document's title."""

PAGES: Mapping[str, Page] = {
    "": runs.runs_page,
    "/start": start.start_page,
    "/compare": compare.compare_page,
    "/access": access.access_page,
}
"""By path, without a slash at the end. The page of a run is at /runs/ID."""


def is_page(path: str) -> bool:
    """Whether there is a page at this address, though maybe no run of that name."""
    return path.rstrip("/") in PAGES or View(path=path).run_id is not None


def parts_of(view: View) -> Sequence[Part]:
    """What stays up to date on the page of this address."""
    if view.run_id is not None:
        return run.parts_of(view)
    return [compare.PART] if view.path.rstrip("/") == compare.PATH else []


def shell() -> dmc.MantineProvider:
    """The document that is served first; a callback fills the page in."""
    waiting = [skeleton(40), skeleton(64), skeleton(80), skeleton(600)]
    return dmc.MantineProvider(
        [
            dcc.Store(id=views.STORE),
            dcc.Store(id=live.NEWS, data=0),
            dcc.Store(id=PATH),
            dcc.Store(id=TITLE),
            dmc.NotificationContainer(id=NOTIFICATIONS, position="bottom-right", sendNotifications=[]),
            html.Div(html.Div(waiting, className="page waiting", **{"aria-busy": "true"}), id=PAGE),
        ],
        theme=theme.MANTINE,
        defaultColorScheme="auto",
    )


def register(app: Dash, api: Api) -> None:
    """Show the page of an address, and write choices into the address."""
    browser = "isentrope"
    app.clientside_callback(ClientsideFunction(browser, "view"), Output(views.STORE, "data"), Input(PAGE, "id"))
    app.clientside_callback(
        ClientsideFunction(browser, "choose"),
        Output(views.STORE, "data", allow_duplicate=True),
        Input({"param": ALL}, "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction(browser, "path"), Output(PATH, "data"), Input(views.STORE, "data"), State(PATH, "data")
    )
    app.clientside_callback(ClientsideFunction(browser, "title"), Output(TITLE, "id"), Input(TITLE, "data"))

    @app.callback(
        Output(PAGE, "children"),
        Output(TITLE, "data"),
        Input(PATH, "data"),
        State(views.STORE, "data"),
        prevent_initial_call=True,
    )
    async def show_page(_path: str, stored: dict[str, Any]) -> tuple[Component, str]:
        view = View.of(stored)
        try:
            async with api.open() as client:
                page = run.run_page if view.run_id is not None else PAGES.get(view.path.rstrip("/"))
                if page is None:
                    error = ApiError(f"There is no page {view.path}. The list of runs is at /.", status=404)
                    return header.page("No such page", refusal(error)), "No such page · Isentrope"
                return await page(client, view)
        except ApiError as error:
            return header.page("This page can't be shown", refusal(error)), "Isentrope"

    @app.callback(Output("who", "children"), Input("who", "id"))
    async def show_who(_id: str) -> Any:
        try:
            async with api.open() as client:
                me = await client.ask(calls.me())
        except ApiError:
            return []
        return header.who_am_i(me.name, me.scope)

    for page in (run, runs, start, access, compare):
        page.register(app, api)


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


def report_failure(error: Exception) -> None:
    """Report an unexpected failure of a callback: the traceback to the log, one sentence to the page."""
    _log.error("A callback of the dashboard failed.", exc_info=error)
    message = (
        f"{type(error).__name__}: this page may be out of date. Details are in the server's log; reload to continue."
    )
    show = [notification("The dashboard failed", message, "red", key="failure", seconds=30)]
    set_props(NOTIFICATIONS, {"sendNotifications": show})
