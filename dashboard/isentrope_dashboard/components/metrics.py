"""Every metric a run reported, by its raw name: search, chart a few at a time, read the newest values.

Several runs side by side: which, by which metrics, and their newest values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.grids import COLUMN, COUNT, NUMERIC, OPTIONS
from isentrope_dashboard.components.panel import chart, export_links, panel, scrolling
from isentrope_dashboard.figures.metric_panels import MOST_LINES, MOST_PANELS, PANEL_HEIGHT
from isentrope_dashboard.formatting import count, number
from isentrope_wire.answers import LatestMetric, RunSummary
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

OPEN = "all"
_COLUMNS: list[dict[str, Any]] = [
    {"field": "name", "headerName": "Metric", "flex": 1, "minWidth": 150, "cellClass": "mono", "tooltipField": "name"},
    {
        "field": "value",
        "headerName": "Newest",
        "width": 105,
        **NUMERIC,
        "valueFormatter": {"function": "isentropeNumber(params.value)"},
    },
    {"field": "step", "headerName": "Step", "width": 85, **COUNT},
]


def all_metrics(run_id: str) -> dmc.Card:
    """The panel, closed: what is in it is read when it is opened."""
    choice = dmc.MultiSelect(
        id=ids.METRICS_CHOICE,
        data=[],
        value=[],
        searchable=True,
        clearable=True,
        maxValues=MOST_PANELS,
        hidePickedOptions=True,
        size="sm",
        placeholder="Search by name",
        label=f"Metrics to chart, at most {MOST_PANELS}",
        nothingFoundMessage="No metric of this name",
    )
    search = dmc.TextInput(id=ids.METRICS_FILTER, value="", label="Newest values", placeholder="Filter", size="sm")
    grid = dag.AgGrid(
        id=ids.METRICS_GRID,
        rowData=[],
        columnDefs=_COLUMNS,
        getRowId="params.data.name",
        defaultColDef=COLUMN,
        dashGridOptions={
            **OPTIONS,
            "domLayout": "normal",
            "rowHeight": 30,
            "localeText": {"noRowsToShow": "No metric was reported yet"},
        },
        style={"height": 2 * PANEL_HEIGHT},
        className="grid",
    )
    drawn = chart(ids.METRICS_GRAPH, 2 * PANEL_HEIGHT, "The chosen metrics over steps", grows=False)
    inside = dmc.Grid(
        [
            dmc.GridCol(dmc.Stack([choice, drawn], gap="xs"), span={"base": 12, "md": 8}),
            dmc.GridCol(dmc.Stack([search, grid], gap="xs"), span={"base": 12, "md": 4}),
        ],
        gutter="md",
    )
    opener = dmc.Accordion(
        dmc.AccordionItem(
            [dmc.AccordionControl("Search and chart any metric"), dmc.AccordionPanel(inside)],
            value=OPEN,
        ),
        id=ids.METRICS_PANEL,
        value=None,
        className="all-metrics",
        transitionDuration=0,
    )
    subtitle = "Whatever the probe and the trainer reported, by its raw name"
    return panel("All metrics", subtitle, html.Div(opener), aside=export_links(run_id))


def metric_rows(latest: Mapping[str, LatestMetric]) -> list[dict[str, Any]]:
    """Rows of the grid, by name."""
    return [{"name": name, "value": known.value, "step": known.step} for name, known in sorted(latest.items())]


DEFAULT_METRICS = (ENTROPY_MEAN, REWARD_MEAN)
POLL_MILLISECONDS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run and the newest values of its metrics."""

    run: RunSummary
    latest: Mapping[str, LatestMetric]


def comparison_panel(runs: Sequence[RunSummary], chosen: Sequence[str]) -> dmc.Card:
    """The panel without values.

    Args:
        runs: those that can be chosen.
        chosen: ids of those that are compared at first.
    """
    which = _choice(
        ids.COMPARE_RUNS,
        f"Runs, at most {MOST_LINES}",
        MOST_LINES,
        [{"value": run.id, "label": f"{run.name} · {run.id[-6:]}"} for run in runs],
        list(chosen),
    )
    metrics = _choice(
        ids.COMPARE_METRICS,
        f"Metrics, at most {MOST_PANELS}",
        MOST_PANELS,
        [{"value": name, "label": name} for name in DEFAULT_METRICS],
        list(DEFAULT_METRICS),
    )
    drawn = chart(ids.COMPARE_GRAPH, 3 * PANEL_HEIGHT, "The metrics of the compared runs over steps", grows=False)
    table = html.Div([], id=ids.COMPARE_TABLE)
    body = dmc.Stack(
        [
            dcc.Interval(id=ids.COMPARE_POLL, interval=POLL_MILLISECONDS),
            dmc.SimpleGrid([which, metrics], cols={"base": 1, "sm": 2}, spacing="md"),
            drawn,
            table,
        ],
        gap="md",
    )
    return panel("Compare runs", "", body, subtitle_id=ids.COMPARE_SUBTITLE)


def comparison_table(compared: Sequence[ComparedRun], metrics: Sequence[str], colours: Sequence[str]) -> Any:
    """One row a run, in its line's colour; the last column downloads it.

    Args:
        colours: CSS colours, one for each run.
    """
    head = ["run", "status", "step", *metrics, "export"]
    rows = [
        html.Tr([html.Td(cell) for cell in _cells(one, metrics, colour)])
        for one, colour in zip(compared, colours, strict=False)
    ]
    table = dmc.Table(
        [html.Thead(html.Tr([html.Th(text) for text in head])), html.Tbody(rows)], className="num compare-table"
    )
    return scrolling(table, "Newest values of the compared runs", 520)


def _cells(one: ComparedRun, metrics: Sequence[str], colour: str) -> list[Any]:
    run = one.run
    swatch = html.Span(className="compare-swatch", style={"background": colour}, **{"aria-hidden": "true"})
    link = html.A(run.name, href=f"/runs/{quote(run.id, safe='')}", className="run-link")
    values = [number(known.value, 4) if (known := one.latest.get(name)) else "–" for name in metrics]
    named = dmc.Group([swatch, link, html.Span(run.id[-6:], className="mono")], gap="xs", wrap="nowrap")
    return [named, run.status, count(run.step), *values, export_links(run.id, label="")]


def _choice(component_id: str, label: str, most: int, data: list[dict[str, str]], value: list[str]) -> dmc.MultiSelect:
    return dmc.MultiSelect(
        id=component_id,
        label=label,
        data=data,
        value=value,
        searchable=True,
        maxValues=most,
        hidePickedOptions=True,
        size="sm",
        placeholder="Search",
        nothingFoundMessage="Nothing of this name",
    )
