"""The page of one run: its state in the bar, and tabs that are mounted when they are opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard import view as views
from isentrope_dashboard.components import header
from isentrope_dashboard.components.basics import spacer
from isentrope_dashboard.live import Api, Part, Values, add_browser_callback
from isentrope_dashboard.pages import (
    audit,
    charts,
    compare,
    config,
    control,
    distributions,
    metrics,
    overview,
    steps,
    tokens,
)
from isentrope_dashboard.view import View
from isentrope_wire.control_answers import ControlVersion

TAB = "tab"
"""Id of the store with the name of the tab that is open."""
TABS_BAR = "tabs"
TAB_BODY = "tab-body"
OTHER_RUNS = 50
SEED_TABS = ("overview", "metrics")
"""They can draw the mean and the range of a run's seeds."""

Tools = Callable[[View, Sequence[ControlVersion], int], Component]
"""Of the view, the newest controls, and how many other runs differ from the run in the seed
alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """One tab: its parts side by side, and what is to the right of the tabs' names."""

    label: str
    parts: Sequence[Part]
    tools: Tools | None = None
    register: Callable[[Dash, Api], None] | None = None
    """Callbacks beside those of the parts."""


TABS: Mapping[str, Tab] = {
    "overview": Tab(
        label="Overview",
        parts=[overview.PART, overview.CHECKS, control.PART],
        tools=charts.tools,
        register=control.register,
    ),
    "tokens": Tab(label="Tokens", parts=[steps.PART, tokens.PART]),
    "distributions": Tab(
        label="Distributions", parts=[steps.PART, distributions.PART], tools=charts.tools
    ),
    "metrics": Tab(label="Metrics", parts=[metrics.PART], tools=metrics.tools),
    "config": Tab(label="Config", parts=[config.PART], register=config.register),
    "audit": Tab(label="Audit", parts=[audit.PART], register=audit.register),
}


async def _read_state(client: AsyncClient, view: View) -> Values:
    run = await client.ask(calls.run(view.run_id or ""))
    return {"run-state": header.run_state(run), header.TITLE: header.run_title(run)}


STATE = Part(name="run", read=_read_state, properties={header.TITLE: "title"}, is_slow=True)


def parts_of(view: View) -> Sequence[Part]:
    """What stays up to date on a run's page."""
    return [STATE, *TABS[opened(view)].parts]


def opened(view: View) -> str:
    """The name of the tab that is open."""
    if view.tab in TABS:
        return view.tab
    return "overview"


async def run_page(client: AsyncClient, view: View) -> tuple[Component, str]:
    """The page with its open tab, and the document's title."""
    run_id = view.run_id or ""
    run = await client.ask(calls.run(run_id))
    others, body, tools = await asyncio.gather(
        compare.newest_runs(client, OTHER_RUNS), tab_body(client, view), _tools(client, view)
    )
    tabs = dmc.Tabs(
        [dmc.TabsList([dmc.TabsTab(tab.label, value=name) for name, tab in TABS.items()])],
        value=opened(view),
        id=TABS_BAR,
        className="tabs needs-server",
    )
    bar = html.Nav(
        [tabs, spacer(), html.Div(tools, id="tab-tools")],
        className="row bar",
        **{"aria-label": "Tabs and view"},
    )
    body = html.Div(body, id=TAB_BODY)
    stores = [dcc.Store(id=TAB, data=view.tab)]
    return header.page(
        run.name, body, *stores, middle=header.run_middle(run, others), below=bar
    ), header.run_title(run)


async def tab_body(client: AsyncClient, view: View) -> Component:
    name = opened(view)
    placed = [part for part in TABS[name].parts if part.layout is not None]
    parts = await asyncio.gather(*(part.component(client, view) for part in placed))
    # The id is the one that the tab's `aria-controls` names.
    return html.Div(
        list(parts),
        className=f"tab-page tab-{name}",
        id=f"{TABS_BAR}-panel-{name}",
        role="tabpanel",
    )


async def _tools(client: AsyncClient, view: View) -> Any:
    tools = TABS[opened(view)].tools
    if tools is None:
        return []
    run_id = view.run_id or ""
    history, run = await asyncio.gather(
        client.newest(calls.control_history(run_id), 20), client.ask(calls.run(run_id))
    )
    return tools(
        view, history, len(await compare.seeds_of(client, run)) if opened(view) in SEED_TABS else 0
    )


def register(app: Dash, api: Api) -> None:
    for tab in TABS.values():
        if tab.register is not None:
            tab.register(app, api)

    add_browser_callback(
        app, "isentrope.tab", Output(TAB, "data"), Input(views.STORE, "data"), State(TAB, "data")
    )
    add_browser_callback(app, "isentrope.openTab", Output(TABS_BAR, "id"), Input(TABS_BAR, "value"))
    chosen = (Output(header.RUN_SELECT, "id"), Input(header.RUN_SELECT, "value"))
    add_browser_callback(app, "isentrope.openRun", *chosen, first=True)
    outputs = (
        Output(TAB_BODY, "children"),
        Output("tab-tools", "children"),
        Output(TABS_BAR, "value"),
    )

    @api.callback(app, *outputs, Input(TAB, "data"))
    async def open_tab(client: AsyncClient, view: View, tab: str) -> tuple[Component, Any, str]:
        body, tools = await asyncio.gather(tab_body(client, view), _tools(client, view))
        return body, tools, tab
