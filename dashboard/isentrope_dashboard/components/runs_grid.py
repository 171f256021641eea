"""Every run, newest first, with a link to its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import dash_ag_grid as dag

from isentrope_dashboard import ids
from isentrope_dashboard.components.grid_options import COLUMN, COUNT, OPTIONS
from isentrope_dashboard.records import RunSummary

# A telephone shows the first three: which run, whether it runs, and how far it is.
_COLUMNS: list[dict[str, Any]] = [
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
        columnDefs=_COLUMNS,
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
