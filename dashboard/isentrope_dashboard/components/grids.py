"""The grids: every run, newest first, and every control version of a run.

Their theme is made of CSS variables, because the packaged ones link to the outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import dash_ag_grid as dag
import dash_mantine_components as dmc

from isentrope_dashboard import ids
from isentrope_dashboard.components.load_errors import or_load_error
from isentrope_dashboard.components.panel import icon, panel
from isentrope_wire.answers import RunSummary

OPTIONS: dict[str, Any] = {
    "theme": {"function": "themeQuartz.withParams(isentropeGridTheme)"},
    "rowHeight": 36,
    "headerHeight": 36,
    "animateRows": False,
    "domLayout": "autoHeight",
    "enableCellTextSelection": True,
}
COLUMN: dict[str, Any] = {"sortable": True, "resizable": True}
NUMERIC: dict[str, Any] = {"type": "rightAligned", "cellClass": "num ag-right-aligned-cell"}
COUNT: dict[str, Any] = {**NUMERIC, "valueFormatter": {"function": "isentropeCount(params.value)"}}

# A telephone shows the first three: which run, whether it runs, and how far it is.
_RUN_COLUMNS: list[dict[str, Any]] = [
    {"field": "name", "headerName": "Run", "flex": 2, "minWidth": 140, "cellRenderer": "IsentropeRunLink"},
    {"field": "status", "headerName": "Status", "width": 120, "cellRenderer": "IsentropeState"},
    {"field": "step", "headerName": "Step", "width": 100, **COUNT},
    {"field": "planned", "headerName": "Planned", "width": 100, **COUNT},
    {"field": "id", "headerName": "Id", "flex": 1, "minWidth": 140, "cellClass": "mono"},
    {"field": "project", "headerName": "Project", "flex": 1, "minWidth": 110},
    {
        "field": "created",
        "headerName": "Started",
        "width": 175,
        "valueFormatter": {"function": "isentropeDate(params.value)"},
    },
    {
        "field": "reported",
        "headerName": "Last report",
        "width": 175,
        "valueFormatter": {"function": "isentropeDate(params.value)"},
    },
]


def runs_grid() -> dag.AgGrid:
    """The grid without rows."""
    return dag.AgGrid(
        id=ids.RUNS_GRID,
        rowData=[],
        columnDefs=_RUN_COLUMNS,
        getRowId="params.data.id",
        defaultColDef=COLUMN,
        dashGridOptions={
            **OPTIONS,
            "localeText": {"noRowsToShow": "No run yet: start one with `isentrope demo`"},
            "rowSelection": {"mode": "multiRow", "headerCheckbox": False, "enableClickSelection": False},
            "selectionColumnDef": {"headerName": "Pick", "width": 62},
        },
        style={"height": None},
        className="grid",
    )


def run_rows(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Rows of the grid in the order given."""
    return [
        {
            "id": run.id,
            "name": run.name,
            "href": f"/runs/{quote(run.id, safe='')}",
            "project": run.project,
            "status": run.status,
            "step": run.step,
            "planned": run.planned_steps,
            "created": run.created_at,
            "reported": run.last_report_at,
        }
        for run in runs
    ]


_HISTORY_COLUMNS: list[dict[str, Any]] = [
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
        columnDefs=_HISTORY_COLUMNS,
        getRowId="params.data.id",
        defaultColDef=COLUMN,
        dashGridOptions={**OPTIONS, "localeText": {"noRowsToShow": "No control pushed yet"}},
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
    body = or_load_error(ids.HISTORY_GRID, grid)
    return panel("Control history", "Every push, its author, and when the trainer applied it", body, aside=export)
