"""Entropy and reward of a project's runs above their rows in the list: each run in the colour that
it has in its row and in Compare, without choosing any. Shown where the newest runs that pass the
list's filters are of one project."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dash import html

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.figures.chart import EMPTY, Scale
from isentrope_dashboard.figures.panel import Panel, Shown, metric_panel
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages import charts
from isentrope_dashboard.theme import looks_of
from isentrope_dashboard.view import View
from isentrope_wire.answers import Page, RunSummary, SeriesColumns
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN, Metric

PLACE = "project"
MOST_RUNS = 12
POINTS = 200
HEIGHT = 150
DRAWN: Mapping[Metric, str] = {ENTROPY_MEAN: "Entropy", REWARD_MEAN: "Reward"}
_LONGEST = {"project": 500, "tag": 500, "q": 200}  # the API refuses more


def name_filters(view: View) -> dict[str, Any]:
    """The list's filters of the address, but health and status."""
    return {name: view.query.get(name, "")[:length] or None for name, length in _LONGEST.items()}


def newest(view: View) -> calls.Call[Page[RunSummary]]:
    return calls.runs(**name_filters(view), order="newest", limit=MOST_RUNS)


def panel_of(metric: Metric, project: str, runs: int) -> Panel:
    row = metric_panel(str(metric), HEIGHT)
    says = f"{DRAWN[metric]} of the newest {runs} runs of {project} over steps"
    return replace(row, name=f"project-{metric}", title=DRAWN[metric], says=says, from_zero=True)


async def _read_series(
    client: AsyncClient, run: RunSummary, metrics: Sequence[Metric]
) -> dict[str, SeriesColumns]:
    """The metrics of a run by the names that its panels read; none of one that reported none."""
    names = [name for metric in metrics for name in metric.names]
    try:
        found = (await client.ask(calls.series(run.id, names, points=POINTS))).series
    except ApiError as error:
        if error.status == 404:  # deleted meanwhile, or it reported none of them
            return {}
        raise
    series = {}
    for metric in metrics:
        known = [found[name] for name in metric.names if found.get(name, EMPTY).step]
        if known:
            series[f"project-{metric}"] = known[0]
    return series


async def read(client: AsyncClient, view: View) -> Values:
    """The charts; nothing where the newest runs are of several projects, or there are not two."""
    runs = (await client.ask(newest(view))).items
    series = []
    if len({run.project for run in runs}) == 1:
        series = await asyncio.gather(*(_read_series(client, run, list(DRAWN)) for run in runs))
    if sum(map(bool, series)) < 2:
        return {PLACE: None}
    shown = [
        Shown(
            scheme=view.scheme,
            scale=Scale(),
            first=0,
            last=run.step or 0,
            is_live=False,
            smooth=view.smooth,
            label=run.name,
            key=run.id,
            look=look,
            series=of_run,
        )
        for run, of_run, look in zip(runs, series, looks_of([run.id for run in runs]), strict=True)
        if of_run
    ]
    together = Shown(scheme=view.scheme, scale=Scale(), first=0, last=0, zoom=view.zoom, runs=shown)
    project = runs[0].project or "no project"
    panels = [panel_of(metric, project, len(shown)) for metric in DRAWN]
    of_which = f"{project}, {len(shown)} newest runs"
    cards = [charts.panel_card(panel, unit=of_which, says=panel.says) for panel in panels]
    return {
        PLACE: html.Div(cards, className="project-charts"),
        **{f"chart-{panel.name}": charts.figure(panel, together) for panel in panels},
    }


PART = Part(
    name="project-runs",
    read=read,
    layout=html.Div(id=PLACE),
    watches=lambda view: [newest(view)],
)
