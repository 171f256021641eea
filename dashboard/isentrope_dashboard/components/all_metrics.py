"""Every metric a run reported, by its raw name: search, chart a few at a time, read the newest values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.components.export_links import export_links
from isentrope_dashboard.components.grid_options import COLUMN, COUNT, NUMERIC, OPTIONS
from isentrope_dashboard.components.panel import chart, panel
from isentrope_dashboard.figures.metric_panels import MOST_PANELS, PANEL_HEIGHT
from isentrope_dashboard.records import LatestValue

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


def metric_rows(latest: Mapping[str, LatestValue]) -> list[dict[str, Any]]:
    """Rows of the grid, by name."""
    return [{"name": name, "value": known.value, "step": known.step} for name, known in sorted(latest.items())]
