"""Every control version of a run: who asked for what, why, and when the trainer applied it."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc

from isentrope_dashboard import ids
from isentrope_dashboard.components.grid_options import COLUMN, COUNT, NUMERIC, OPTIONS
from isentrope_dashboard.components.panel import icon, panel
from isentrope_dashboard.components.unread import or_unread

_COLUMNS: list[dict[str, Any]] = [
    {
        "field": "time",
        "headerName": "Time",
        "width": 105,
        "cellClass": "num",
        "valueFormatter": {"function": "isentropeTime(params.value)"},
    },
    {"field": "version", "headerName": "Version", "width": 95, "cellClass": "mono"},
    {"field": "author", "headerName": "Author", "width": 115},
    {
        "field": "change",
        "headerName": "Change",
        "flex": 2,
        "minWidth": 190,
        "cellClass": "num",
        "tooltipField": "change",
    },
    {"field": "method", "headerName": "Method", "width": 100},
    {
        "field": "state",
        "headerName": "State",
        "width": 125,
        "cellRenderer": "IsentropeState",
        "tooltipField": "outcome",
    },
    {"field": "requested", "headerName": "Requested", "width": 110, **COUNT},
    {"field": "applied", "headerName": "Applied", "width": 100, **COUNT},
    {
        "field": "latency",
        "headerName": "Latency",
        "width": 100,
        **NUMERIC,
        "valueFormatter": {"function": "isentropeSeconds(params.value)"},
    },
    {"field": "reason", "headerName": "Reason", "flex": 1, "minWidth": 140, "tooltipField": "reason"},
    {"field": "outcome", "headerName": "Outcome", "hide": True},
]


def history_grid() -> dmc.Card:
    """The grid without rows."""
    grid = dag.AgGrid(
        id=ids.HISTORY_GRID,
        rowData=[],
        columnDefs=_COLUMNS,
        getRowId="params.data.id",
        defaultColDef=COLUMN,
        dashGridOptions={**OPTIONS, "localeText": {"noRowsToShow": "No control was pushed yet"}},
        csvExportParams={
            "fileName": "control-history.csv",
            "allColumns": True,
            "processCellCallback": {"function": "isentropeCsvCell(params)"},
        },
        style={"height": None},
        className="grid",
    )
    export = dmc.Button(
        "Export CSV", id=ids.HISTORY_EXPORT, variant="default", size="compact-xs", leftSection=icon("download", 12)
    )
    body = or_unread(ids.HISTORY_GRID, grid)
    return panel("Control history", "Every push, who made it and when the trainer applied it", body, aside=export)
