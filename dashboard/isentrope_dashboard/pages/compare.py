"""Several runs side by side: /compare?run=ID&run=ID&metric=NAME. Which are compared is in the address alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import view as views
from isentrope_dashboard.components import header
from isentrope_dashboard.components.basics import (
    card,
    chip,
    choice,
    place_id,
    row,
    spacer,
    table,
    text,
    wide_table,
)
from isentrope_dashboard.figures.panel import Panel, Shown, metric_panel
from isentrope_dashboard.formatting import MISSING, count, describe, previous_control
from isentrope_dashboard.live import Api, Part, Values
from isentrope_dashboard.pages import charts
from isentrope_dashboard.pages.config import flat
from isentrope_dashboard.theme import DASHES, LINES
from isentrope_dashboard.view import View, address_of
from isentrope_wire.answers import RunDetail, RunSummary, Status
from isentrope_wire.control_answers import ControlVersion
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    ENTROPY_MEAN,
    ENTROPY_PREDICTED_CHANGE,
    METRICS,
    REWARD_MEAN,
    reported_names,
)

PATH = "/compare"
MOST_RUNS = 6
MOST_METRICS = 12
AT_FIRST = (ENTROPY_MEAN, REWARD_MEAN, ENTROPY_PREDICTED_CHANGE, CLIP_FRACTION)
POINTS = 400
HEIGHT = 240
OFFERED = 30
"""Runs that the search shows at once."""
MISSING_CELL = text(MISSING, "dim")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run, with what is known of it."""

    run: RunDetail
    history: Sequence[ControlVersion]
    shown: Shown
    """With its metrics under the names that were chosen."""


async def read(client: AsyncClient, view: View) -> Values:
    """Charts and tables of the runs that the address names."""
    ids = list(dict.fromkeys(view.runs))[:MOST_RUNS]
    panels = [metric_panel(name, HEIGHT, log=view.log) for name in chosen_metrics(view)]
    found = await asyncio.gather(*(_read(client, run_id, panels, view) for run_id in ids))
    known = [one for one in found if one is not None]
    missing = [run_id for run_id, one in zip(ids, found, strict=True) if one is None]
    values: dict[str, Any] = {
        "compare-legend": _legend(known, missing, view) if ids else _how(),
        **dict.fromkeys(("compare-charts", "compare-parameters", "compare-controls")),
    }
    if not known:
        return values
    runs = [one.shown for one in known]
    shown = Shown(scheme=view.scheme, scale=runs[0].scale, first=0, last=0, zoom=view.zoom, runs=runs)
    parameters, controls = _tables(known, everything=view.query.get("all") == "on")
    return {
        **values,
        "compare-charts": [_card(panel, len(runs)) for panel in panels],
        **{place_id("chart", panel.name): charts.figure(panel, shown) for panel in panels},
        "compare-parameters": parameters,
        "compare-controls": controls,
    }


def chosen_metrics(view: View) -> list[str]:
    return list(dict.fromkeys(view.metrics or map(str, AT_FIRST)))[:MOST_METRICS]


async def _read(client: AsyncClient, run_id: str, panels: Sequence[Panel], view: View) -> Compared | None:
    """One run; None of one that does not exist any more."""
    try:
        run, history, latest = await asyncio.gather(
            client.ask(calls.run(run_id)), client.every(calls.control_history(run_id)), client.ask(calls.latest(run_id))
        )
        reported = {item.name for item in latest.items}
        known = reported_names(reported)
        names = {panel.name: panel.name if panel.name in reported else known[METRICS[panel.name]]
                 for panel in panels if panel.name in reported or METRICS.get(panel.name) in known}  # fmt: skip
        own = [metric_panel(name, HEIGHT) for name in names.values()]
        shown = await charts.read_shown(client, view, run, own, points=POINTS, is_live=False, label=run.name)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    series = {name: shown.columns(own) for name, own in names.items()}
    return Compared(run=run, history=history, shown=replace(shown, series=series))


def _card(panel: Panel, runs: int) -> Component:
    says = f"{panel.name} of {runs} runs over steps"
    return charts.panel_card(panel, chart=place_id("chart", panel.name), says=says, name="metric")


def sample(slot: int, view: View) -> html.Span:
    """The line of a run, as the charts draw it."""
    pattern = "" if DASHES[slot] == "solid" else f"stroke-dasharray='{DASHES[slot].replace('px', '')}'"
    line = f"<line x1='0' y1='4' x2='34' y2='4' stroke='{LINES[view.scheme][slot]}' stroke-width='2.5' {pattern}/>"
    drawing = quote(f"<svg xmlns='http://www.w3.org/2000/svg' width='34' height='8'>{line}</svg>")
    style = {"backgroundImage": f'url("data:image/svg+xml,{drawing}")'}
    return html.Span(className="sample", style=style, **{"aria-hidden": "true"})


def _legend(compared: Sequence[Compared], missing: Sequence[str], view: View) -> Component:
    entries = [
        html.Li(
            [
                sample(slot, view),
                html.A(one.run.name, href=address_of(one.run.id), className="strong"),
                text(one.run.id[-6:], "mono dim"),
                chip(one.run.status.capitalize(), "ok" if one.run.status == Status.RUNNING else ""),
                text(f"step {count(one.run.step)}", "num dim"),
            ]
        )
        for slot, one in enumerate(compared)
    ]
    entries += [
        html.Li([chip("Missing", "act", symbol="alert"), text(f"There is no run {run_id}: it was deleted, or the address is wrong.")])
        for run_id in missing
    ]  # fmt: skip
    return html.Ul(entries, className="legend", **{"aria-label": "Compared runs"})


def _how() -> Component:
    return html.Div(
        [html.P("Choose up to six runs above", className="strong"),
         html.P("The address keeps them: a link to it shows the same comparison.", className="dim")],
        className="card empty",
    )  # fmt: skip


def differences(configs: Sequence[Mapping[str, Any]], *, everything: bool = False) -> dict[str, list[str | None]]:
    """The parameters that are not alike, each with its value in every configuration; None: not given."""
    known = [flat(config) for config in configs]
    names = dict.fromkeys(name for one in known for name in one)
    rows = {name: [one.get(name) for one in known] for name in names}
    return {name: values for name, values in rows.items() if everything or len(set(values)) > 1}


def _tables(compared: Sequence[Compared], *, everything: bool) -> tuple[Component, Component]:
    runs = [one.run for one in compared]
    rows = differences([run.config for run in runs], everything=everything)
    alike = "All parameters are alike." if any(run.config for run in runs) else "No run was started with config=."
    parameters = _table(runs, "Parameter", {name: [text(v) if v is not None else None for v in values]
                                            for name, values in rows.items()}) if rows else html.P(alike, className="dim")  # fmt: skip
    versions = sorted({item.version for one in compared for item in one.history}, reverse=True)
    controls = {f"v{number}": [_control(one.history, number) for one in compared] for number in versions}
    return parameters, _table(runs, "Version", controls)


def _control(history: Sequence[ControlVersion], number: int) -> Component | None:
    item = next((item for item in history if item.version == number), None)
    if item is None:
        return None
    where = f"from step {count(item.applied_step)}" if item.applied_step is not None else item.state.lower()
    change = describe(item.control, previous_control(item, history))
    return html.Span([change, text(f" · {where}", "dim")])


def _table(runs: Sequence[RunSummary], first: str, rows: Mapping[str, Sequence[Any]]) -> Component:
    heads = [first, *([run.name, " ", text(run.id[-6:], "mono")] for run in runs)]
    cells = [[name, *(MISSING_CELL if cell is None else cell for cell in cells)] for name, cells in rows.items()]
    return wide_table(table(heads, cells, "parameters plain"), f"{first}s by run")


async def layout(_client: AsyncClient, view: View) -> Component:
    everything = "on" if view.query.get("all") == "on" else "off"
    switch = choice("all", [("off", "What differs"), ("on", "All")], everything, "Parameters shown")
    return html.Div(
        [
            html.Div(id="compare-legend"),
            html.Div(id="compare-charts", className="metric-charts two"),
            card(html.Div(id="compare-parameters"), title="Configuration", beside=switch, name="padded compared-table"),
            card(html.Div(id="compare-controls"), title="Control", name="padded compared-table"),
        ],
        className="stack",
    )


PART = Part(name="compare", read=read, layout=layout)


async def compare_page(client: AsyncClient, view: View) -> tuple[Component, str]:
    part, runs, metrics = await asyncio.gather(PART.component(client, view), _offered_runs(client, view.runs, ""),
                                               _offered_metrics(client, view))  # fmt: skip
    shared: dict[str, Any] = {
        "searchable": True,
        "hidePickedOptions": True,
        "size": "xs",
        "nothingFoundMessage": "Nothing found",
    }
    which = dmc.MultiSelect(
        id={"param": "run"}, data=runs, value=list(view.runs)[:MOST_RUNS], maxValues=MOST_RUNS, placeholder="Search runs",
        **shared, **{"aria-label": f"Runs, at most {MOST_RUNS}"},
    )  # fmt: skip
    what = dmc.MultiSelect(
        id={"param": "metric"}, data=metrics, value=chosen_metrics(view), maxValues=MOST_METRICS, placeholder="Search metrics",
        **shared, **{"aria-label": f"Metrics, at most {MOST_METRICS}"},
    )  # fmt: skip
    looks = row(*charts.looks(view, log=True), name="tools")
    heading = row(html.H2("Compare", className="page-title"), spacer(), looks, name="compare-head")
    return header.page(
        "Compare runs", heading, html.Div([which, what], className="choose"), part, here=PATH
    ), "Compare · Isentrope"


async def _offered_runs(client: AsyncClient, chosen: Sequence[str], wanted: str) -> list[dict[str, str]]:
    """The chosen runs, and those that the server finds."""

    async def named(run_id: str) -> RunSummary | str:
        try:
            return await client.ask(calls.run(run_id))
        except ApiError:
            return run_id

    found = await client.newest(calls.runs(q=wanted or None), OFFERED)
    known = await asyncio.gather(*(named(run_id) for run_id in chosen))
    labels = {one if isinstance(one, str) else one.id: one for one in [*known, *found]}
    return [
        {"value": run_id, "label": f"{run_id} (missing)" if isinstance(one, str) else f"{one.name} · {one.id[-6:]}"}
        for run_id, one in labels.items()
    ]


async def _offered_metrics(client: AsyncClient, view: View) -> list[str]:
    async def names(run_id: str) -> list[str]:
        try:
            return [item.name for item in (await client.ask(calls.latest(run_id))).items]
        except ApiError:
            return []

    found = await asyncio.gather(*map(names, view.runs[:MOST_RUNS]))
    return sorted({*chosen_metrics(view), *(name for one in found for name in one)})


def register(app: Dash, api: Api) -> None:
    """Search runs on the server, and offer the metrics of the chosen runs."""
    runs, metrics = {"param": "run"}, {"param": "metric"}

    @app.callback(
        Output(runs, "data"), Input(runs, "searchValue"), State(views.STORE, "data"), prevent_initial_call=True
    )  # fmt: skip
    async def search(wanted: str | None, stored: dict[str, Any]) -> Any:
        # The picked run's own label is the search text for a moment.
        async with api.open() as client:
            return await _offered_runs(client, View.of(stored).runs, (wanted or "").split(" · ")[0])

    @app.callback(Output(metrics, "data"), Input(runs, "value"), State(views.STORE, "data"), prevent_initial_call=True)
    async def offer(chosen: list[str], stored: dict[str, Any]) -> Any:
        view = View.of(stored)
        async with api.open() as client:
            return await _offered_metrics(client, View(query=view.query, runs=tuple(chosen), metrics=view.metrics))
