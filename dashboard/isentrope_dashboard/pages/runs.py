"""The list of runs at /."""

from __future__ import annotations

from collections.abc import Sequence

import dash_mantine_components as dmc

from isentrope_dashboard import ids
from isentrope_dashboard.components.panel import panel
from isentrope_dashboard.components.runs_grid import run_rows, runs_grid
from isentrope_dashboard.components.shell import page, slow_interval
from isentrope_dashboard.components.status_line import connection_badge
from isentrope_dashboard.pages.run_content import Props
from isentrope_dashboard.records import RunSummary


def runs_page(runs: Sequence[RunSummary]) -> dmc.AppShell:
    """Every run with a link to its page."""
    content = runs_props(runs)
    grid = runs_grid()
    grid.rowData = content[ids.RUNS_GRID]["rowData"]
    compare = dmc.Button("Compare", id=ids.COMPARE_BUTTON, variant="default", size="compact-xs", disabled=True)
    card = panel("Runs", content[ids.RUNS_COUNT]["children"], grid, aside=compare, subtitle_id=ids.RUNS_COUNT)
    return page("Runs", [slow_interval(ids.RUNS_POLL), card], left=[connection_badge()])


def runs_props(runs: Sequence[RunSummary]) -> Props:
    """Component id -> properties of the list."""
    live = sum(run.status == "running" for run in runs)
    return {
        ids.RUNS_GRID: {"rowData": run_rows(runs)},
        ids.RUNS_COUNT: {"children": f"{len(runs)} runs, {live} live" if len(runs) != 1 else f"1 run, {live} live"},
    }
