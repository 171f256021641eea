"""The list of runs: any number of them, runs that need attention first; filters, and what is done
with chosen ones.

Cells are drawn here and shown as they are by the browser. Names, tags and errors come from runs:
they are children of components, so that the browser shows them as text.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard import live
from isentrope_dashboard import view as views
from isentrope_dashboard.components import basics, header
from isentrope_dashboard.components.header import LEVELS, STATUS, look_of
from isentrope_dashboard.formatting import (
    MISSING,
    count,
    method,
    number,
    percent,
    seconds,
    threshold,
    told_apart,
)
from isentrope_dashboard.live import Api, add_browser_callback, refusal
from isentrope_dashboard.pages import project, start
from isentrope_dashboard.pages.config import flat
from isentrope_dashboard.pages.project import name_filters
from isentrope_dashboard.theme import color_of
from isentrope_dashboard.view import View, address_of, link_to, listed, listed_in
from isentrope_wire.answers import (
    DigestControl,
    HealthLevel,
    RunCounts,
    RunSummary,
    Status,
    TokenScope,
)
from isentrope_wire.diagnosis.course import name_end
from isentrope_wire.methods import Method
from isentrope_wire.metrics import NEWEST_STEPS

GRID = "runs"
BLOCK_ROWS = 50
BLOCKS_KEPT = 6
"""In the browser: all of them are read again every few seconds."""

# What `health` in the address means.
_LEVELS = {
    "act": [HealthLevel.ACT],
    "watch": [HealthLevel.WATCH],
    "healthy": [HealthLevel.HEALTHY, HealthLevel.HOLDING],
}
_STATUSES = {"silent": [Status.SILENT], "ended": [status for status in Status if status.is_over]}
_BY_PROJECT = "project"

Cursor = list[Any] | None
"""Where a block of rows begins: a project where rows are grouped, the cursor of the API, whether
the row of the project was already shown. None: at the top."""


def _column(field: str, name: str, width: int, **more: Any) -> dict[str, Any]:
    return {
        "field": field,
        "headerName": name,
        "width": width,
        "cellRenderer": "Drawn",
        "cellClass": "num",
        **more,
    }


_LARGEST_FIRST = {"sortingOrder": ["desc", "asc", None]}
_UNSORTED = {"sortable": False}
_LAST_STEPS = f"Median of the last {NEWEST_STEPS} steps"
# By the names that the API sorts by.
COLUMNS: Final = [
    _column("attention", "Health", 98),
    _column("name", "Run", 178, flex=1, minWidth=120),
    _column("status", "Status", 150, flex=0.8, minWidth=110),
    _column("share_lost", "Entropy lost", 116, **_LARGEST_FIRST),
    _column("entropy", "Entropy, nats", 138, headerTooltip=_LAST_STEPS, **_LARGEST_FIRST),
    _column("reward", "Reward", 138, headerTooltip=_LAST_STEPS, **_LARGEST_FIRST),
    _column("step", "Step", 104, **basics.RIGHT, **_LARGEST_FIRST),
    _column("control", "Control", 116, **_UNSORTED),
    _column("tags", "Tags, notes", 136, flex=0.5, minWidth=126, **_UNSORTED),
    _column("last_report_at", "Last report", 96, **basics.RIGHT, **_LARGEST_FIRST),
]
_CONFIG, _METRIC = "config.", "metric."
"""Before the name of a parameter, or of a metric whose newest value is shown."""


def columns(view: View) -> list[dict[str, Any]]:
    """The columns that the address names, sorted as it says."""
    known = {column["field"]: column for column in COLUMNS}
    chosen = view.columns or tuple(known)
    if "name" not in chosen:
        chosen = ("name", *chosen)
    sort = view.query.get("sort", "")
    order = {sort.removeprefix("-"): {"sort": "desc" if sort.startswith("-") else "asc"}}
    own = {
        name: _column(
            name, name.partition(".")[2], 120, headerTooltip=name, **basics.RIGHT, **_LARGEST_FIRST
        )
        for name in chosen
        if name.startswith((_CONFIG, _METRIC))
    }
    return [(known | own)[name] | order.get(name, {}) for name in chosen if name in known | own]


async def runs_page(client: AsyncClient, view: View) -> tuple[Component, str]:
    """The list; how to start a run where there is none."""
    counts, me = await asyncio.gather(client.ask(calls.run_counts()), client.ask(calls.me()))
    if not counts.total:
        return await start.start_page(client, view)
    summary, *options = _options(await _counts(client, view), view)
    body = [
        basics.row(
            html.H1("Runs", className="page-title"),
            html.Span(summary, className="dim num", id="runs-summary"),
            html.Span(className="dim num", id="since-looked"),
            basics.spacer(),
            *_actions(me.scope),
            name="runs-head",
        ),
        basics.row(
            *_filters(view, options),
            _columns_menu(view, await _offered(client, view)),
            name="filters",
        ),
        await project.PART.component(client, view),
        html.Section(_grid(view), className="card runs-card"),
        dcc.Store(id="runs-cursors", data={}),
        dcc.Store(id="runs-chosen", data=[]),
        dcc.Store(id="runs-changed", data=0),
        basics.dialog(
            "delete",
            "Delete for good?",
            dmc.Button("Delete", id="delete-confirmed", size="xs", color="red"),
            html.Div(id="delete-words"),
        ),
    ]
    return header.page("", *body, here="/"), "Runs · Isentrope"


def _filters(view: View, options: Sequence[Any]) -> list[Component]:
    healths, projects, tags = options
    statuses = [
        ("", "Any status"),
        *((str(status), words[0]) for status, words in header.STATUS.items()),
    ]
    orders = [
        ("", "Needs attention first"),
        ("newest", "Newest first"),
        (_BY_PROJECT, "Group by project"),
    ]
    find = basics.search(
        "q",
        view.query.get("q", ""),
        "Search name, id, tag, error",
        width=220,
        rightSection=html.Kbd("/"),
    )
    health = basics.choice("health", [], view.query.get("health", ""), "Health")
    health.data = healths
    return [
        find,
        health,
        _select("project", projects, view, 132),
        _select("status", _data(statuses), view, 112),
        _select("tag", tags, view, 112),
        _select("order", _data(orders), view, 168),
    ]


async def _offered(client: AsyncClient, view: View) -> list[dict[str, Any]]:
    """Columns to choose from: the list's own, the parameters of the 30 newest runs, the metrics
    that the newest reports."""
    newest = await client.newest(calls.runs(**name_filters(view)), 30)
    latest = []
    if newest:
        latest = (await client.ask(calls.latest(newest[0].id))).items
    names = {_CONFIG + name for run in newest for name in flat(run.config)} | {
        _METRIC + item.name for item in latest
    }
    groups = [("Columns", [(column["field"], column["headerName"]) for column in COLUMNS])]
    for title, kind in (("Newest value", _METRIC), ("Configuration", _CONFIG)):
        found = sorted(name for name in names.union(view.columns) if name.startswith(kind))
        groups.append((title, [(name, name.removeprefix(kind)) for name in found]))
    return [{"group": title, "items": _data(items)} for title, items in groups]


def _columns_menu(view: View, offered: Sequence[dict[str, Any]]) -> dmc.Popover:
    which = dmc.MultiSelect(
        id={"param": "column"},
        data=list(offered),
        value=list(view.columns) or [column["field"] for column in COLUMNS],
        size="xs",
        w=420,
        maxDropdownHeight=280,
        searchable=True,
        hidePickedOptions=True,
        placeholder="Add a column",
        comboboxProps={"withinPortal": False},
        **{"aria-label": "Columns"},
    )
    button = dmc.Button("Columns", id="columns", variant="default", size="xs")
    # The roles would go to a div around the button, which may have none.
    parts = [dmc.PopoverTarget(button), dmc.PopoverDropdown(which)]
    return dmc.Popover(parts, position="bottom-start", shadow="md", withRoles=False)


def _select(param: str, data: list[dict[str, str]], view: View, width: int) -> dmc.Select:
    return dmc.Select(
        id={"param": param},
        data=data,
        value=view.query.get(param, ""),
        size="xs",
        w=width,
        searchable=len(data) > 6,
        **{"aria-label": param.capitalize()},
    )


def _data(pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"value": value, "label": word} for value, word in pairs]


def _actions(scope: TokenScope) -> list[Component]:
    """What is done with chosen runs; without runs none of it is there."""
    hidden = {"visibility": "hidden"}  # they keep their room: choosing a run moves nothing
    compare = html.A(
        [basics.icon("compare", 13), html.Span("Compare", id="compare-words")],
        id="compare-runs",
        href=link_to("/compare"),
        style=hidden,
        className="button primary",
    )
    delete = dmc.Button("Delete", id="delete-runs", variant="default", size="xs", style=hidden)
    begin = html.A(
        [basics.icon("plus", 13), "Start a run"], href=link_to("/start"), className="button"
    )
    return [
        compare,
        html.Div([delete] if scope == TokenScope.ADMIN else [], className="row"),
        begin,
    ]


def _grid(view: View) -> dag.AgGrid:
    return basics.grid(
        GRID,
        columns(view),
        row_id="id",
        empty="No run passes these filters",
        className="runs-grid",
        rowModelType="infinite",
        dashGridOptions={
            "suppressFieldDotNotation": True,
            "suppressMultiSort": True,
            "rowSelection": {
                "mode": "multiRow",
                "headerCheckbox": False,
                "enableClickSelection": False,
                "isRowSelectable": {"function": "isRun(params)"},
                "hideDisabledCheckboxes": True,
            },
            "selectionColumnDef": {"headerName": "Chosen", "headerClass": "unseen", "width": 40},
            "rowHeight": 40,
            "cacheBlockSize": BLOCK_ROWS,
            "maxBlocksInCache": BLOCKS_KEPT,
            "maxConcurrentDatasourceRequests": 1,  # each block begins where the one before ends
            "isFullWidthRow": {"function": "isProject(params)"},
            "fullWidthCellRenderer": "ProjectRow",
        },
        eventListeners={
            "gridSizeChanged": ["fitColumns(params)"],
            "firstDataRendered": ["fitColumns(params)"],
            "newColumnsLoaded": ["fitColumns(params)"],
            "sortChanged": ["keepSort(params)"],
            "cellKeyDown": ["openRow(params)"],
        },
    )


def filter_of(view: View) -> dict[str, Any] | None:
    """The address's filters as arguments of `calls.runs`; None where no run can pass them."""
    health, status = view.query.get("health", ""), view.query.get("status", "")
    statuses = {*Status} & {*_STATUSES.get(health, Status)}
    if status in {*Status}:
        statuses &= {Status(status)}
    wanted = [str(each) for each in Status if each in statuses]
    if not wanted:
        return None
    asked = None
    if len(wanted) < len(Status):
        asked = wanted
    return {**name_filters(view), "level": _LEVELS.get(health), "status": asked}


async def _counts(client: AsyncClient, view: View) -> RunCounts:
    return await client.ask(calls.run_counts(**name_filters(view)))


def _options(counts: RunCounts, view: View) -> tuple[str, Any, Any, Any]:
    """The line above the list, and what health, project and tag can be."""
    ended = sum(counts.statuses.get(status, 0) for status in _STATUSES["ended"])
    silent, now = counts.statuses.get(Status.SILENT, 0), view.query.get("health")
    numbers = {
        name: sum(counts.levels.get(level, 0) for level in levels)
        for name, levels in _LEVELS.items()
    }
    if silent or now == "silent":
        numbers["silent"] = silent
    numbers["ended"] = ended
    healths = [("", f"All {count(counts.total)}")]
    healths += [(name, f"{name.capitalize()} {count(number)}") for name, number in numbers.items()]
    named = []
    for every, items in (("Any project", counts.projects), ("Any tag", counts.tags)):
        options = [(item.name, f"{item.name} ({count(item.runs)})") for item in items if item.name]
        named.append(_data([("", every), *options]))
    live_runs = counts.statuses.get(Status.RUNNING, 0)
    words = f"{_count_runs(counts)}, {count(live_runs)} live."
    return words, _data(healths), named[0], named[1]


def _count_runs(counts: RunCounts) -> str:
    if counts.total == 1:
        return "1 run"
    return f"{count(counts.total)} runs"


async def read_rows(
    client: AsyncClient, view: View, at: Cursor, size: int = BLOCK_ROWS
) -> tuple[list[dict[str, Any]], Cursor]:
    """One block of `size` rows from `at` on, and where the next one begins; None after the last,
    which may be shorter."""
    wanted = filter_of(view)
    if wanted is None:
        return [], None
    by_project = view.query.get("order") == _BY_PROJECT
    groups = [wanted]
    if by_project:
        projects = (await client.ask(calls.run_counts(**wanted))).projects
        names = [item.name for item in projects if wanted["project"] in (None, item.name)]
        groups = [{**wanted, "project": name} for name in names]
    extra = [name for name in view.columns if name.startswith((_CONFIG, _METRIC))]
    how = {
        "order": "newest" if view.query.get("order") == "newest" else "attention",
        "sort": view.query.get("sort") or None,
        "metric": [name.removeprefix(_METRIC) for name in extra if name.startswith(_METRIC)],
    }
    name, cursor, is_headed = at or [groups[0]["project"] if groups else None, None, not by_project]
    rows: list[dict[str, Any]] = []
    folded = listed_in(view, "fold")
    left = list(dropwhile(lambda group: group["project"] != name, groups))
    for place, group in enumerate(left):
        if not is_headed:
            counts, newest = await asyncio.gather(
                client.ask(calls.run_counts(**group)),
                client.ask(calls.runs(**group, order="newest", limit=project.MOST_RUNS)),
            )
            rows.append(project_row(group["project"], counts, folded, newest.items))
        if not by_project or _folds(group["project"]) not in folded:
            if len(rows) == size:
                return rows, [group["project"], None, True]
            page = await client.ask(
                calls.runs(**group, **how, cursor=cursor, limit=size - len(rows))
            )
            tops = _tops(page.items)
            rows += (shown_row(run, extra, tops) for run in page.items)
            if page.next_cursor is not None:
                return rows, [group["project"], page.next_cursor, True]
        cursor, is_headed = None, False
        if len(rows) == size and place + 1 < len(left):
            return rows, [left[place + 1]["project"], None, False]
    return rows, None


def register(app: Dash, api: Api) -> None:
    """Read blocks of rows, keep the counts up to date, delete chosen runs."""

    @api.callback(
        app,
        Output(GRID, "getRowsResponse"),
        Output("runs-cursors", "data"),
        Input(GRID, "getRowsRequest"),
        State("runs-cursors", "data"),
    )
    async def rows(
        client: AsyncClient, view: View, request: dict[str, Any], cursors: dict[str, Any]
    ) -> Any:
        first, end = request["startRow"], request["endRow"]
        if first and cursors.get(str(first)) is None:
            return {
                "rowData": [],
                "rowCount": first,
            }, no_update  # the list became shorter meanwhile
        sort = "".join(
            "-" * (column["sort"] == "desc") + column["colId"] for column in request["sortModel"]
        )
        view = replace(view, query={**view.query, "sort": sort})  # the address follows
        found, following = await read_rows(client, view, cursors.get(str(first)) if first else None)
        answer = {"rowData": found, "rowCount": first + len(found) if following is None else None}
        return answer, {**cursors, str(end): following}

    offered = [Output({"param": name}, "data") for name in ("health", "project", "tag")]
    changed = (Input(live.NEWS, "data"), Input(views.STORE, "data"))

    @api.callback(app, Output("runs-summary", "children"), *offered, *changed)
    async def show_counts(client: AsyncClient, view: View, *_changed: Any) -> Any:
        return _options(await _counts(client, view), view)

    @app.callback(
        Output(GRID, "columnDefs"),
        Input(views.STORE, "data"),
        State(GRID, "columnDefs"),
        prevent_initial_call=True,
    )
    async def show_columns(stored: dict[str, Any], shown: list[dict[str, Any]]) -> Any:
        chosen = columns(View.read(stored))
        if [column["field"] for column in chosen] != [column["field"] for column in shown]:
            return chosen
        return no_update

    compare = (
        Output("compare-runs", "href"),
        Output("compare-runs", "style"),
        Output("compare-words", "children"),
    )
    choose = (Output("runs-chosen", "data"), *compare, Input(GRID, "selectedRows"))
    add_browser_callback(app, "isentrope_runs.choose", *choose)
    some = (Output("delete-runs", "style"), Input("runs-chosen", "data"))
    add_browser_callback(app, "isentrope_runs.some", *some, first=True)
    add_browser_callback(
        app, "isentrope_runs.refresh", Output("runs-changed", "id"), Input("runs-changed", "data")
    )
    add_browser_callback(
        app, "isentrope_runs.refilter", Output(GRID, "id"), Input(views.STORE, "data")
    )
    _register_changes(app, api)


def _register_changes(app: Dash, api: Api) -> None:
    @app.callback(
        Output("delete-form", "opened"),
        Output("delete-words", "children"),
        Output("delete-refused", "children"),
        Input("delete-runs", "n_clicks"),
        State("runs-chosen", "data"),
        prevent_initial_call=True,
    )
    async def open_delete(_clicks: int, chosen: list[dict[str, Any]]) -> Any:
        names = [
            html.Li([html.B(run["label"]), basics.text(f" {run['id']}", "dim")]) for run in chosen
        ]
        return (
            True,
            ["All reports, controls and alerts of these runs are removed:", html.Ul(names)],
            None,
        )

    @api.callback(
        app,
        Output("delete-form", "opened", allow_duplicate=True),
        Output("delete-refused", "children", allow_duplicate=True),
        Output("runs-changed", "data"),
        Output(GRID, "selectedRows"),
        Input("delete-confirmed", "n_clicks"),
        State("runs-chosen", "data"),
        State("runs-changed", "data"),
    )
    async def delete(
        client: AsyncClient, _view: View, _clicks: int, chosen: list[dict[str, Any]], changed: int
    ) -> Any:
        refused = []
        for run in chosen:
            try:
                await client.ask(calls.delete_run(run["id"]))
            except ApiError as error:
                if error.status != 404:  # somebody else deleted it
                    refused.append(refusal(error))
        return bool(refused), refused, changed + 1, [] if not refused else no_update


Tops: TypeAlias = Mapping[str, tuple[float, float]]
"""Project -> its highest entropy and reward: the small lines of its runs have one scale."""


def _tops(items: Sequence[RunSummary]) -> Tops:
    tops: dict[str, tuple[float, float]] = {}
    for run in items:
        if run.digest is not None:
            lines = run.digest.entropy_line, run.digest.reward_line
            before = tops.get(run.project, (0.0, 0.0))
            entropy, reward = (
                max([top, *(value for value in line if value is not None)])
                for top, line in zip(before, lines, strict=True)
            )
            tops[run.project] = entropy, reward
    return tops


def shown_row(
    run: RunSummary, extra: Sequence[str] = (), tops: Tops = MappingProxyType({})
) -> dict[str, Any]:
    """The run's row; of one that can't be shown its name, and why."""
    with live.Guard() as guard:
        return run_row(run, extra, tops)
    live.log_first(guard.error)
    words = live.failure_in_words(guard.error)
    name = _two_lines(html.A(run.name, href=address_of(run.id), tabIndex=-1), run.id)
    missing = dict.fromkeys((*(column["field"] for column in COLUMNS), *extra), MISSING)
    why = html.Span(words, title=words)
    return {**missing, "id": run.id, "label": run.name, "name": name, "status": why}


def run_row(
    run: RunSummary, extra: Sequence[str] = (), tops: Tops = MappingProxyType({})
) -> dict[str, Any]:
    """The row: what actions need, and the cell of each column; also of the `extra` ones."""
    digest = run.digest
    top_entropy, top_reward = tops.get(run.project, (None, None))
    entropy: Component | str = MISSING
    reward: Component | str = MISSING
    share_lost, active_control, cells = None, None, dict[str, str]()
    if digest:
        entropy = _line(run.id, digest.entropy_line, digest.entropy, top_entropy)
        reward = _line(run.id, digest.reward_line, digest.reward, top_reward)
        share_lost, active_control = digest.share_lost, digest.control
        cells = {_METRIC + name: told_apart(value) for name, value in digest.metrics.items()}
    if extra:
        cells |= {_CONFIG + name: value for name, value in flat(run.config).items()}
    word, tone = health(run)
    planned = ""
    if run.planned_steps:
        planned = f" / {count(run.planned_steps)}"
    return {
        "id": run.id,
        "label": run.name,
        "attention": html.Span(
            [html.I(className="sign"), html.Span(word)], className=f"health-word {tone}"
        ),
        "name": _two_lines(
            html.A(run.name, href=address_of(run.id), tabIndex=-1, title=run.name),
            f"{run.id} · {run.project}",
        ),
        "status": _two_lines(*_status(run)),
        "share_lost": _share_lost(share_lost, tone),
        "entropy": entropy,
        "reward": reward,
        "step": f"{count(run.step)}{planned}",
        "control": _control(active_control),
        "tags": _tags(run),
        **{name: cells.get(name, MISSING) for name in extra},
        "last_report_at": MISSING if run.last_report_at is None else basics.age(run.last_report_at),
    }


def _folds(project: str) -> str:
    """A project in the address's list of those whose runs are not shown."""
    return project or ":"


def project_row(
    name: str, counts: RunCounts, folded: Sequence[str], newest: Sequence[RunSummary] = ()
) -> dict[str, Any]:
    """The row above the runs of a project, which shows and hides them; with entropy and reward of
    the newest ones."""
    is_open = _folds(name) not in folded
    after = [project for project in folded if project != _folds(name)]
    if is_open:
        after.append(_folds(name))
    running, act = counts.statuses.get(Status.RUNNING, 0), counts.levels.get(HealthLevel.ACT, 0)
    notes = [_count_runs(counts)]
    if running:
        notes.append(f"{running} live")
    if act == 1:
        notes.append("1 needs you")
    elif act:
        notes.append(f"{act} need you")
    shows = {
        "aria-expanded": str(is_open).lower(),
        "data-show": json.dumps({"fold": listed(after) if after else None}),
    }
    inside = [
        basics.icon("next", 14),
        html.B(name or "no project"),
        basics.text(" · ".join(notes), "dim"),
    ]
    button = html.Button(inside, type="button", className="project-row", **shows)
    charts = html.Button(
        "Charts",
        type="button",
        className="project-row alone",
        title="Entropy and reward of its runs, above their rows",
        **{"data-show": json.dumps({"project": name, "order": None})},
    )
    cells: list[Component] = [button, _lines_together(newest)]
    if name:
        cells.append(charts)
    return {
        "id": f":project:{name}",  # no run has a colon in its id
        "project": html.Div(cells, role="gridcell", className="project-head"),
    }


def _lines_together(runs: Sequence[RunSummary]) -> html.Div:
    """The small lines of several runs over each other, each in its run's colour."""
    drawn = [(run.id, run.digest) for run in runs if run.digest]
    parts: list[Component] = []
    for title, lines in (
        ("Entropy", [(key, digest.entropy_line) for key, digest in drawn]),
        ("Reward", [(key, digest.reward_line) for key, digest in drawn]),
    ):
        values = [value for _, line in lines for value in line if value is not None]
        if values:
            sparks = [_spark(key, line, max(values)) for key, line in lines]
            parts.append(html.Span([basics.text(title, "dim small"), html.Span(sparks)]))
    return html.Div(parts, className="lines-together", **{"aria-hidden": "true"})


def health(run: RunSummary) -> tuple[str, str]:
    """The word and the tone of a run's health: its level while it reports, and how it ended."""
    digest = run.digest
    if run.status.is_over:
        return _end_in_words(run.status, digest.share_lost if digest else None)
    if run.status == Status.SILENT:
        return "Silent", "watch"
    if digest is None:
        return LEVELS[HealthLevel.NO_DATA][:2]
    return look_of(digest.level, digest.share_lost)[:2]


def _end_in_words(status: Status, share_lost: float | None) -> tuple[str, str]:
    """Word and tone of an ended run, by the share of the entropy that it lost. A failure is said
    here, too: a phone shows the first columns alone."""
    end, word, tone = "Ended", name_end(share_lost), ""
    if word:
        tone = "watch"
    if word in ("collapsed", "exploded"):
        tone = "act"
    if status == Status.FAILED:
        end, tone = "Failed", "act"
    return ", ".join(filter(None, (end, word))), f"none {tone}".strip()


def _two_lines(first: Component | str, second: str) -> html.Div:
    return html.Div(
        [first, html.Span(second, className="dim", title=second)], className="two-lines"
    )


_ERROR_CLASS = re.compile(r"^[\w.]+: ")


def _status(run: RunSummary) -> tuple[Component, str]:
    word, tone, _ = STATUS[run.status]
    digest = run.digest
    reason = ""
    match run.status:
        case Status.RUNNING | Status.SILENT if run.last_report_at is None:
            reason = "no report yet"
        case Status.RUNNING if digest and digest.seconds_per_step is not None:
            reason = f"{seconds(digest.seconds_per_step)} per step"
        case Status.FINISHED if (
            run.planned_steps and run.step is not None and run.step >= run.planned_steps
        ):
            reason = f"all {count(run.planned_steps)} steps"
        case Status.FAILED:
            reason = ""
            if digest:
                reason = _ERROR_CLASS.sub("", digest.reason)
        case Status.SILENT if run.last_report_at is not None:
            minutes = max(1, round((time.time() - run.last_report_at) / 60))
            if minutes < 120:
                reason = f"no report for {minutes} min"
            else:
                reason = f"no report for {minutes // 60} h"
        case Status.ENDED:
            reason = "the process ended without finishing"
    return basics.text(word, tone if run.status in (Status.FAILED, Status.SILENT) else ""), reason


def _share_lost(share: float | None, tone: str) -> Any:
    if share is None or not math.isfinite(share):
        return MISSING
    words, width = percent(abs(share), 0), f"{100 * min(1.0, abs(share)):.0f}%"
    rises = share < 0 and words[0] != "0"
    bar = html.I(
        html.I(className="watch" if rises else tone, style={"width": width}),
        className=f"lost-bar {'rises' * rises}",
    )
    return html.Span([bar, f"+{words}" if rises else words], className="lost-share")


def _tags(run: RunSummary) -> Any:
    if not run.notes:
        return [basics.chip(tag) for tag in run.tags] or MISSING
    if run.tags:
        return _two_lines(html.Span([basics.chip(tag) for tag in run.tags]), run.notes)
    return basics.text(run.notes, "dim")


def _line(
    run_id: str, values: Sequence[float | None], newest: float | None, top: float | None
) -> Any:
    if newest is None:
        return MISSING
    return html.Span([_spark(run_id, values, top), number(newest)])


def _spark(run_id: str, values: Sequence[float | None], top: float | None) -> html.I:
    drawing = basics.sparkline(values, top)
    return html.I(className="spark own", style={"--drawing": drawing, "--own": color_of(run_id)})


def _control(control: DigestControl | None) -> str:
    """The active control in a few characters: `Clip_V µ 1.00`, `hold 75%`."""
    if control is None or (control.method == Method.NONE and control.hold_target is None):
        return MISSING
    if control.hold_target is not None:
        points = [point.partition(":") for point in control.hold_target.split()]
        if len(points) > 1:  # a curve: its steps are on the run's page
            return f"hold {points[0][2]} → {points[-1][2]}"
        return f"hold {control.hold_target}"
    low, high = control.mu_low, control.mu_high
    if low is not None and low == high:
        return f"{method(control.method)} µ {threshold(low)}"
    sides = [
        f"{name} {threshold(value)}"
        for name, value in (("µ₋", low), ("µ₊", high))
        if value is not None
    ]
    return " ".join([method(control.method), *sides])
