"""Who changed what: every version of a run's control, and for administrators the audit trail of the
run."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.components.basics import RIGHT, card, grid, icon, table, text, wide_table
from isentrope_dashboard.formatting import MISSING, describe, previous_control
from isentrope_dashboard.live import Api, Part, Values, refusal
from isentrope_dashboard.pages.config import flat, moment
from isentrope_dashboard.view import View
from isentrope_wire.answers import AuditEntry, TokenScope
from isentrope_wire.control_answers import ControlVersion
from isentrope_wire.numbers import no_formula

GRID, TRAIL, AGAIN, SAVE, FILE = (
    "audit-grid",
    "audit-trail",
    "audit-again",
    "audit-save",
    "audit-file",
)
MOST_ENTRIES = 200

COLUMNS: Sequence[dict[str, Any]] = (
    {"field": "version", "headerName": "Version", "width": 86, "cellClass": "num"},
    {
        "field": "change",
        "headerName": "Change",
        "flex": 3,
        "minWidth": 240,
        "wrapText": True,
        "autoHeight": True,
    },
    {"field": "state", "headerName": "State", "width": 104},
    {"field": "verdict", "headerName": "Verdict", "width": 92, "tooltipField": "verdict_words"},
    {"field": "author", "headerName": "Author", "width": 104, "tooltipField": "author"},
    {
        "field": "reason",
        "headerName": "Reason",
        "flex": 2,
        "minWidth": 160,
        "wrapText": True,
        "autoHeight": True,
    },
    {"field": "requested", "headerName": "Requested", "width": 176, "cellClass": "num"},
    {"field": "step", "headerName": "At step", "width": 84, **RIGHT},
    {"field": "applied", "headerName": "From step", "width": 92, **RIGHT},
    {
        "field": "latency",
        "headerName": "Latency",
        "width": 92,
        **RIGHT,
        "valueFormatter": {
            "function": "params.value == null ? '–' : params.value.toFixed(1) + ' s'"
        },
    },
    {
        "field": "outcome",
        "headerName": "Outcome",
        "flex": 2,
        "minWidth": 160,
        "wrapText": True,
        "autoHeight": True,
    },
)
FILE_COLUMNS = (*(column["field"] for column in COLUMNS), "verdict_words")


def history_rows(history: Sequence[ControlVersion]) -> list[dict[str, Any]]:
    """Rows of the grid, newest first; all texts are data."""
    return [
        {
            "version": f"v{item.version}",
            "change": describe(item.control, previous_control(item, history)),
            "state": item.state.capitalize(),
            "verdict": MISSING if item.verdict is None else item.verdict.outcome.replace("_", " "),
            "verdict_words": "" if item.verdict is None else item.verdict.message,
            "author": item.author,
            "reason": item.reason,
            "requested": moment(item.requested_at),
            "step": item.requested_step,
            "applied": item.applied_step,
            "latency": None if item.version == 0 else item.latency_seconds,
            "outcome": item.message or item.code,
        }
        for item in sorted(history, key=lambda item: -item.version)
    ]


def format_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The table as a file; no cell of it is a formula to a spreadsheet."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(FILE_COLUMNS)
    writer.writerows([no_formula(row[name]) for name in FILE_COLUMNS] for row in rows)
    return file.getvalue()


async def read(client: AsyncClient, view: View) -> Values:
    return {GRID: history_rows(await client.every(calls.control_history(view.run_id or "")))}


HISTORY = grid(
    GRID,
    COLUMNS,
    row_id="version",
    empty="No control was pushed so far",
    className="grid",
    defaultColDef={
        "wrapHeaderText": True,
        "suppressHeaderMenuButton": False,
        "suppressMovable": False,
    },
    dashGridOptions={"domLayout": "autoHeight", "enableCellTextSelection": True},
)
TO_FILE = dmc.Button(
    "CSV",
    id=SAVE,
    size="compact-xs",
    variant="default",
    leftSection=icon("download", 12),
    **{"aria-label": "Save the control history as CSV"},
)
READ_AGAIN = dmc.Button(
    "Read again", id=AGAIN, size="compact-xs", variant="default", className="needs-server"
)
PART = Part(
    name="audit",
    read=read,
    layout=html.Div(
        [
            card(HISTORY, title="Control history", beside=TO_FILE, name="padded"),
            card(
                html.Div(id=TRAIL),
                title="Audit trail of this run",
                beside=READ_AGAIN,
                name="padded",
            ),
            dcc.Download(id=FILE),
        ],
        className="stack",
    ),
    properties={GRID: "rowData"},
    is_slow=True,
)


def trail(entries: Sequence[AuditEntry]) -> list[Component]:
    rows = [
        [
            *(
                text(cell, "nowrap")
                for cell in (moment(entry.at), entry.actor, entry.action, subject)
            ),
            text(change_words(entry.change), "mono"),
        ]
        for entry in entries
        for subject in ["/".join(entry.subject.split("/")[2:]) or "run"]
    ]
    listed = table(["Time", "Who", "Action", "Subject", "Change"], rows, "plain num", headed=False)
    if entries:
        shown = [wide_table(listed, "Audit entries of this run")]
    else:
        shown = [html.P("No entry is about this run.", className="dim")]
    cut = []
    if len(entries) == MOST_ENTRIES:
        cut = [html.P(f"The newest {MOST_ENTRIES}.", className="small dim")]
    return [*shown, *cut]


def change_words(change: Mapping[str, Any]) -> str:
    """What an entry changed, old and new where both exist; what is empty is no news."""
    old, new = (flat({"": change.get(name)}) for name in ("old", "new"))
    pairs = [
        (
            f"{name.strip('.')} {old[name]} → {new.get(name, 'none')}"
            if name in old
            else f"{name.strip('.')} {new[name]}"
        )
        for name in {**old, **new}
        if old.get(name) != new.get(name)
        and not (old.get(name) in _EMPTY and new.get(name) in _EMPTY)
    ]
    rest = [
        f"{name} {moment(float(value)) if name == 'claimed_at' else value}"
        for name, value in flat(change).items()
        if name.split(".")[0] not in ("old", "new") and value not in _EMPTY
    ]
    return ", ".join(entry.strip() for entry in [*pairs, *rest])


_EMPTY = ("", "null", "{}", "[]", None)


def register(app: Dash, api: Api) -> None:
    """Read the trail when the tab is opened or somebody asks again, and save the history."""

    @api.callback(app, Output(TRAIL, "children"), Input(AGAIN, "n_clicks"), first=True)
    async def show_trail(client: AsyncClient, view: View, _clicks: int | None) -> Any:
        try:
            if (await client.ask(calls.me())).scope is not TokenScope.ADMIN:
                return html.P(
                    "Only tokens of scope admin can read the audit trail.", className="dim"
                )
            return trail(await client.newest(calls.audit(view.run_id or ""), MOST_ENTRIES))
        except ApiError as error:
            return refusal(error)

    @api.callback(app, Output(FILE, "data"), Input(SAVE, "n_clicks"))
    async def save(client: AsyncClient, view: View, _clicks: int) -> Any:
        rows = (await read(client, view))[GRID]
        name = f"{view.run_id}-controls-{time.strftime('%Y%m%d')}.csv"
        return {"content": format_csv(rows), "filename": name, "type": "text/csv"}
