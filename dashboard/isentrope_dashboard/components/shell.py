"""The frame around every page: header, colour-scheme switch, notifications and the stores a page needs.

Which run, how far it is, and how fresh what is shown is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from isentrope_dashboard import ids, theme
from isentrope_dashboard.components.panel import icon
from isentrope_dashboard.formatting import count, seconds
from isentrope_dashboard.records import RunSummary, StepRow
from isentrope_wire.metrics import TIME_STEP_SECONDS

TICK_MILLISECONDS = 1000
POLL_MILLISECONDS = 5000


def shell() -> dmc.MantineProvider:
    """The document that is served first; a callback fills the page in."""
    return dmc.MantineProvider(
        [
            dcc.Location(id=ids.URL),
            dcc.Location(id=ids.NAVIGATED, refresh=True),
            dcc.Store(id=ids.TEMPLATES, data=dict(theme.TEMPLATES)),
            dcc.Store(id=ids.LIVE_BEAT),
            dcc.Store(id=ids.POLL_BEAT),
            dcc.Store(id=ids.PAGE_READY),
            dcc.Store(id=ids.TITLE),
            dcc.Interval(id=ids.TICK, interval=TICK_MILLISECONDS),
            dmc.NotificationContainer(id=ids.NOTIFICATIONS, position="bottom-right", sendNotifications=[]),
            html.Div(id=ids.PAGE),
        ],
        theme=theme.MANTINE_THEME,
        defaultColorScheme="auto",
    )


def slow_interval(component_id: str) -> dcc.Interval:
    """Ticks only while the browser says that nothing else keeps the page up to date."""
    return dcc.Interval(id=component_id, interval=POLL_MILLISECONDS, disabled=True)


def page(title: str, body: list[Any], *, left: list[Any] | None = None, right: Component | None = None) -> dmc.AppShell:
    """Header and main part of one page. `title` is read to those who can't see the page."""
    return dmc.AppShell(
        [
            dmc.AppShellHeader(_header(left or [], right)),
            dmc.AppShellMain(
                dmc.Container(
                    [html.H1(title, className="sr-only"), *body], size=1560, px={"base": "sm", "md": "lg"}, py="md"
                )
            ),
        ],
        header={"height": 52},
        padding=0,
    )


def _header(left: list[Any], right: Component | None) -> dmc.Group:
    brand = html.A(
        [html.Span(className="logo", **{"aria-hidden": "true"}), html.Span("Isentrope", className="brand")],
        href="/",
        className="home",
        **{"aria-label": "Isentrope: all runs"},
    )
    toggle = dmc.ColorSchemeToggle(
        id=ids.SCHEME,
        lightIcon=icon("sun"),
        darkIcon=icon("moon"),
        variant="subtle",
        color="gray",
        size="md",
        **{"aria-label": "Toggle colour scheme"},
    )
    beside = [] if right is None else [right]
    # What tells of a lost connection is out of sight as long as there is one: alone it needs no rule beside it.
    rule = [dmc.Divider(orientation="vertical", h=22)] if len(left) > 1 else []
    return dmc.Group(
        [
            dmc.Group([brand, *rule, *left], gap="md", wrap="nowrap"),
            dmc.Group([*beside, toggle], gap="xs", wrap="nowrap"),
        ],
        justify="space-between",
        h="100%",
        px={"base": "sm", "md": "lg"},
        wrap="nowrap",
    )


_STATUS = {
    "running": ("Live", "teal"),
    "finished": ("Finished", "gray"),
    "failed": ("Failed", "red"),
    "ended": ("Ended", "gray"),
    "silent": ("Silent", "orange"),
}
_RATE_STEPS = 20


def status_line() -> list[Any]:
    """What the header holds beside the brand on a run page, without values."""
    step = dmc.Group(
        [
            dmc.Text("", id=ids.RUN_STEP, size="xs", c="dimmed", className="num"),
            dmc.Progress(id=ids.RUN_PROGRESS, value=0, w=110, size=5, **{"aria-label": "share of the planned steps"}),
        ],
        gap=10,
        wrap="nowrap",
        visibleFrom="sm",
    )
    select = dmc.Select(
        id=ids.RUN_SELECT,
        data=[],
        searchable=True,
        w={"base": 170, "md": 250},
        size="xs",
        leftSection=icon("run", 14),
        nothingFoundMessage="No such run",
        **{"aria-label": "Run"},
    )
    return [
        select,
        connection_badge(),
        dmc.Badge("", id=ids.RUN_STATUS, variant="light", radius="sm", tt="none", className="unshrinking"),
        step,
    ]


def connection_badge() -> html.Span:
    """Takes the place of the status behind it while the server is out of reach; the browser alone can tell."""
    badge = dmc.Badge("Connection lost", variant="light", color="red", radius="sm", tt="none", className="unshrinking")
    return html.Span(badge, id=ids.CONNECTION, className="connection", role="status")


def freshness() -> dmc.Text:
    """Seconds per step, and how long ago the last report came; the age ticks in the browser."""
    return dmc.Text(
        [html.Span("", id=ids.STEP_SECONDS), html.Span("", id=ids.REPORT_AGE)],
        size="xs",
        c="dimmed",
        className="num",
        visibleFrom="md",
    )


def status_props(
    run: RunSummary, rows: Sequence[StepRow], last_report_at: float | None = None
) -> dict[str, dict[str, Any]]:
    """Component id -> properties of the status line."""
    label, color = _STATUS.get(run.status, (run.status, "gray"))
    live = run.status == "running"
    step = run.step if not rows else max(rows[-1].step, run.step or 0)
    planned = run.planned_steps
    pace = step_seconds(rows)
    return {
        ids.RUN_STATUS: {"children": [html.Span(className="dot"), label] if live else label, "color": color},
        ids.RUN_STEP: {"children": _steps(step, planned)},
        ids.RUN_PROGRESS: {"value": round(100 * step / planned, 2) if step is not None and planned else 0},
        ids.STEP_SECONDS: {"children": "" if pace is None else f"{seconds(pace)} / step · "},
        ids.LAST_REPORT: {
            "data": {
                "reported_at": last_report_at or run.last_report_at,
                "server_time": time.time(),
                "status": run.status,
            }
        },
    }


def run_options(runs: Sequence[RunSummary], current: RunSummary, unread: str = "") -> list[dict[str, Any]]:
    """Choices of the run selector; the current run is always among them.

    Args:
        unread: why the others could not be read, if they could not: told in their place.
    """
    shown = list(runs) if any(run.id == current.id for run in runs) else [current, *runs]
    told = [{"value": "", "label": unread, "disabled": True}] if unread else []
    return [*({"value": run.id, "label": f"{run.name} · {run.id[-6:]}"} for run in shown), *told]


def step_seconds(rows: Sequence[StepRow]) -> float | None:
    """Seconds per step as the trainer measured them, or from the times of the last reports; None when neither is known."""
    measured = [row.scalars[TIME_STEP_SECONDS] for row in rows[-_RATE_STEPS:] if TIME_STEP_SECONDS in row.scalars]
    if measured:
        return sum(measured) / len(measured)
    timed = [row for row in rows[-_RATE_STEPS:] if row.recorded_at is not None]
    if len(timed) < 2 or timed[-1].step == timed[0].step:
        return None
    first, last = timed[0], timed[-1]
    return ((last.recorded_at or 0) - (first.recorded_at or 0)) / (last.step - first.step)


def _steps(step: int | None, planned: int | None) -> list[Any]:
    beyond = f" / {count(planned)}" if planned else ""
    return ["step ", html.Span(count(step), className="strong"), beyond]
