"""What a run is: its parameters, name, tags and notes, the process that reports it, and how its
reports arrive."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.components.basics import (
    Content,
    card,
    chip,
    row,
    search,
    spacer,
    table,
    text,
)
from isentrope_dashboard.components.header import RUN_SELECT, choice_of
from isentrope_dashboard.formatting import (
    MISSING,
    count,
    method,
    number,
    percent,
    seconds,
    significant,
)
from isentrope_dashboard.live import Api, Part, Values
from isentrope_dashboard.pages import charts
from isentrope_dashboard.view import View, link_to
from isentrope_wire import metrics
from isentrope_wire.answers import Gap, Me, RunDetail, SeriesColumns, Status, TokenScope
from isentrope_wire.reports import OUTPUT

LAST_STEPS = 20
"""Whose mean the times are."""
MOST_GAPS = 100
COUNTERS: Sequence[tuple[str, metrics.Metric]] = (
    ("Reports accepted", metrics.PROBE_ACCEPTED_REPORTS),
    ("Reports dropped", metrics.PROBE_DROPPED_REPORTS),
    ("Without tokens or histograms", metrics.PROBE_LEFT_OUT_REPORTS),
    ("Records spooled", metrics.PROBE_SPOOLED_RECORDS),
    ("Records acknowledged", metrics.PROBE_ACKNOWLEDGED_RECORDS),
    ("Failures inside the probe", metrics.PROBE_FAILURES),
)
MACHINE: Sequence[tuple[str, metrics.Metric]] = (
    ("Tokens a second", metrics.SYSTEM_TOKENS_PER_SECOND),
    ("Device memory in tensors", metrics.SYSTEM_DEVICE_MEMORY),
    ("Device memory, most taken", metrics.SYSTEM_DEVICE_PEAK_MEMORY),
    ("Device utilisation", metrics.SYSTEM_DEVICE_UTILISATION),
    ("Host memory", metrics.SYSTEM_HOST_MEMORY),
)
SAVE, SAVED, KNOWN = "config-save", "config-saved", "config-known"
FIELDS = ("name", "tags", "notes")

Fact = tuple[str, Content]


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A nested configuration as `policy.layers` -> `2`; lists without objects, and empty ones, stay
    in one line."""
    found: dict[str, str] = {}
    for name, value in config.items():
        inside = value
        if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            inside = {str(number): item for number, item in enumerate(value)}
        if isinstance(inside, Mapping) and inside:
            found |= flat(inside, f"{prefix}{name}.")
        else:
            if isinstance(value, str):
                found[f"{prefix}{name}"] = value
            else:
                found[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False)
    return found


async def read(client: AsyncClient, view: View) -> Values:
    run_id = view.run_id or ""
    run = await client.ask(calls.run(run_id))
    first = max(0, (run.step or 0) - LAST_STEPS + 1)
    latest, gaps, paces, probe = await asyncio.gather(
        client.ask(calls.latest(run_id)),
        client.newest(calls.gaps(run_id), MOST_GAPS),
        charts.read_metric(client, run_id, metrics.TIME_STEP_SECONDS, from_step=first),
        charts.read_metric(client, run_id, metrics.PROBE_SECONDS, from_step=first),
    )
    newest = {item.name: item.value for item in latest.items}
    return {
        "config-error": _error(run),
        "config-parameters": parameters(run.config, view.query.get("find", "")),
        "config-run": facts(_about(run)),
        "config-system": facts(system_facts(newest, paces, probe)),
        "config-gaps": _gaps(gaps),
    }


def facts(items: Sequence[Fact]) -> html.Dl:
    pairs = [
        html.Div([html.Dt(name), html.Dd(MISSING if value in (None, "") else value)])
        for name, value in items
    ]
    return html.Dl(pairs, className="facts")


def parameters(config: Mapping[str, Any], find: str) -> Component:
    """The table of the parameters whose name or value has these words."""
    wanted = find.strip().lower()
    known = flat(config)
    found = {
        name: value
        for name, value in known.items()
        if wanted in name.lower() or wanted in value.lower()
    }
    if not found:
        return html.P(
            "No parameter has this in it" if known else "The run was started without config=",
            className="dim",
        )
    return table([], list(found.items()), "parameters mono")


def system_facts(
    newest: Mapping[str, float], paces: SeriesColumns, probe: SeriesColumns
) -> list[Fact]:
    """What the probe costs, and what it delivered. Means are of the last steps."""
    pace, cost = _mean(paces), _mean(probe)
    if pace is None or cost is None or pace <= 0:
        share = None
    else:
        share = cost / pace
    lag = newest.get(metrics.PROBE_DELIVERY_LAG_SECONDS)
    counters: list[Fact] = [
        (words, count(int(newest[name])))
        for words, name in COUNTERS
        if math.isfinite(newest.get(name, math.nan))
    ]
    return [
        ("Time of a step", seconds(pace)),
        ("Of it the probe", seconds(cost)),
        ("Share", percent(share)),
        *((words, _written(name, newest[name])) for words, name in MACHINE if name in newest),
        ("Delivery lag", seconds(lag)),
        *counters,
    ]


def _written(name: metrics.Metric, value: float) -> str:
    if name.show is metrics.Show.PERCENT:
        return percent(value, 0)
    if name.unit == "GiB":
        return f"{number(value, 1)}\N{NO-BREAK SPACE}GiB"
    return significant(value)


def _mean(columns: SeriesColumns) -> float | None:
    known = [value for value in columns.value if math.isfinite(value)]
    if known:
        return fmean(known)
    return None


def _about(run: RunDetail) -> list[Fact]:
    capabilities = [chip(method(name.removeprefix("method:"))) for name in run.capabilities]
    # A run that was sent later, from a spool, was made here after it had ended.
    made = "Created"
    if run.finished_at is not None and run.finished_at < run.created_at:
        made = "Received"
    return [
        ("Run", html.Span(run.id, className="mono")),
        ("Project", run.project),
        ("Probe", run.probe_version),
        ("Ranks", count(run.world_size)),
        ("Attempts", count(run.incarnations)),
        (made, moment(run.created_at)),
        ("Finished", moment(run.finished_at)),
        (
            "Can carry out",
            (
                html.Div(capabilities, className="chips")
                if capabilities
                else "nothing: it can't be controlled"
            ),
        ),
    ]


def moment(at: float | None) -> str:
    if at is None:
        return MISSING
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _error(run: RunDetail) -> list[Component]:
    if not run.error:
        return []
    title = "Error"
    if run.status == Status.FAILED:
        title = "The trainer reported an error"
    error, _, output = run.error.partition(OUTPUT)
    parts = (
        (html.Span(title, className="failed"), "Traceback", error, ""),
        ("The last lines of its output", "Output", output, "tail"),
    )
    return [
        card(
            html.Pre(
                html.Code(words),
                className=f"trace mono {look}",
                tabIndex=0,
                role="region",
                **{"aria-label": says},
            ),
            title=head,
            name="padded",
        )
        for head, says, words, look in parts
        if words
    ]


def _gaps(gaps: Sequence[Gap]) -> Component:
    if not gaps:
        return html.P("No record was lost before it reached the server.", className="dim")
    rows = [
        [
            text(gap.incarnation, "mono"),
            str(gap.rank),
            f"{count(gap.first_seq)} – {count(gap.last_seq)}",
            gap.reason,
        ]
        for gap in gaps
    ]
    return table(["Attempt", "Rank", "Records", "Reason"], rows, "plain num", headed=False)


def _restored(run: RunDetail, me: Me) -> list[Component]:
    if me.restored is None or run.created_at > me.restored.at:
        return []
    words = (
        f"The database was restored on {moment(me.restored.at)} from a backup whose newest report"
        f" came on {moment(me.restored.newest_report_at)}. What came later is here as far as it was"
        " sent again."
    )
    return [html.P(words, className="dim")]


async def layout(client: AsyncClient, view: View) -> Component:
    """Parameters at the left; the run, its delivery and its files at the right."""
    run, me = await asyncio.gather(client.ask(calls.run(view.run_id or "")), client.ask(calls.me()))
    may_edit = me.scope in (TokenScope.CONTROL, TokenScope.ADMIN)
    find = search("find", view.query.get("find", ""), "Search parameters", leftSection=None)
    places = {
        name: html.Div(id=f"config-{name}")
        for name in ("error", "parameters", "run", "system", "gaps")
    }
    left = card(places["parameters"], title="Parameters", beside=find, name="padded")
    right = [
        _form(run) if may_edit else _words(run),
        card(places["run"], title="Run", name="padded"),
        card(
            places["system"],
            html.H3("Lost records", className="small dim"),
            places["gaps"],
            *_restored(run, me),
            title="System",
            name="padded",
        ),
        card(_exports(run), title="Export", name="padded"),
    ]
    columns = html.Div(
        [html.Div(left), html.Div(right, className="stack")], className="config-columns"
    )
    return html.Div([places["error"], columns], className="config")


def _form(run: RunDetail) -> html.Section:
    known = {"name": run.name, "tags": run.tags, "notes": run.notes}
    return card(
        dmc.TextInput(id="config-name", label="Name", value=run.name, size="xs"),
        dmc.TagsInput(
            id="config-tags", label="Tags", value=run.tags, size="xs", placeholder="Add a tag"
        ),
        dmc.Textarea(
            id="config-notes",
            label="Notes",
            value=run.notes,
            size="xs",
            autosize=True,
            minRows=3,
            maxRows=12,
        ),
        row(
            html.Span(id=SAVED, className="small dim", role="status"),
            spacer(),
            dmc.Button("Save", id=SAVE, size="xs", className="needs-server"),
        ),
        dcc.Store(id=KNOWN, data=known),
        title="Name, tags and notes",
        name="padded form",
    )


def _words(run: RunDetail) -> html.Section:
    tags = None
    if run.tags:
        tags = html.Div([chip(tag) for tag in run.tags], className="chips")
    notes = None
    if run.notes:
        notes = html.Div(run.notes, className="notes")
    return card(
        facts([("Name", run.name), ("Tags", tags), ("Notes", notes)]),
        html.P(
            "Your token can read this run; changing these needs one of scope control.",
            className="small dim",
        ),
        title="Name, tags and notes",
        name="padded",
    )


def _exports(run: RunDetail) -> Component:
    address = link_to(f"/api/v1/runs/{quote(run.id, safe='')}/export?labels=true&format=")
    links = [
        html.A(words, href=address + kind, download=f"{run.id}.{kind}", className="file")
        for words, kind in (("CSV", "csv"), ("JSON lines", "jsonl"), ("Parquet", "parquet"))
    ]
    return html.Div(
        [row(*links), html.P("Every report of every rank and attempt.", className="small dim")]
    )


def changes_of(known: Mapping[str, Any], entered: Mapping[str, Any]) -> dict[str, Any]:
    """What was edited, so that somebody else's edit of another field is not undone."""
    return {
        name: entered[name]
        for name in FIELDS
        if (entered[name] or known[name]) and entered[name] != known[name]
    }


def register(app: Dash, api: Api) -> None:
    @api.callback(
        app,
        Output(SAVED, "children"),
        Output(KNOWN, "data"),
        Output(RUN_SELECT, "data"),
        Input(SAVE, "n_clicks"),
        *(State(f"config-{name}", "value") for name in FIELDS),
        State(KNOWN, "data"),
        State(RUN_SELECT, "data"),
        running=[(Output(SAVE, "loading"), True, False)],
    )
    async def save(
        client: AsyncClient,
        view: View,
        _clicks: int,
        name: str,
        tags: list[str],
        notes: str,
        known: dict[str, Any],
        choices: list[dict[str, str]],
    ) -> tuple[str, dict[str, Any], list[dict[str, str]]]:
        edited = changes_of(known, {"name": name, "tags": tags or [], "notes": notes or ""})
        if not edited:
            return "Nothing was changed", known, choices
        wanted = (edited.get(field) for field in FIELDS)
        try:
            run = await client.ask(calls.edit_run(view.run_id or "", *wanted))
        except ApiError as error:
            return f"Not saved: {error}", known, choices
        others = [choice for choice in choices if choice["value"] != run.id]
        known = {"name": run.name, "tags": run.tags, "notes": run.notes}
        return "Saved", known, [choice_of(run), *others]


PART = Part(name="config", read=read, layout=layout, is_slow=True)
