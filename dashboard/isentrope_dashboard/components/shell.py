"""The frame around every page: header, status line, colour-scheme switch, notifications, and the stores a page needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from isentrope_dashboard import ids, theme
from isentrope_dashboard.components.panel import icon
from isentrope_dashboard.figures.lines import StepRow
from isentrope_dashboard.formatting import count, seconds
from isentrope_wire.answers import RunSummary
from isentrope_wire.metrics import TIME_STEP_SECONDS

TICK_MILLISECONDS = 500
"""How often a page asks for news."""


def shell() -> dmc.MantineProvider:
    """The document that is served first; a callback fills the page in."""
    return dmc.MantineProvider(
        [
            dcc.Location(id=ids.URL),
            dcc.Location(id=ids.NAVIGATED, refresh=True),
            dcc.Store(id=ids.TEMPLATES, data=dict(theme.TEMPLATES)),
            dcc.Store(id=ids.BEAT),
            dcc.Store(id=ids.PAGE_READY),
            dcc.Store(id=ids.TITLE),
            dcc.Interval(id=ids.TICK, interval=TICK_MILLISECONDS),
            dmc.NotificationContainer(id=ids.NOTIFICATIONS, position="bottom-right", sendNotifications=[]),
            html.Div(id=ids.PAGE),
        ],
        theme=theme.MANTINE_THEME,
        defaultColorScheme="auto",
    )


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
    # The badge of a lost connection is hidden as long as there is one: alone it needs no rule beside it.
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
    """The header beside the brand on a run page, without values."""
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
    """Shown instead of the status while the server does not answer."""
    badge = dmc.Badge("Connection lost", variant="light", color="red", radius="sm", tt="none", className="unshrinking")
    return html.Span(badge, id=ids.CONNECTION, className="connection", role="status")


def freshness() -> dmc.Text:
    """Seconds per step, and the age of the last report, which the browser counts."""
    return dmc.Text(
        [html.Span("", id=ids.STEP_SECONDS), html.Span("", id=ids.REPORT_AGE)],
        size="xs",
        c="dimmed",
        className="num",
        visibleFrom="md",
    )


def status_props(run: RunSummary, rows: Sequence[StepRow]) -> dict[str, dict[str, Any]]:
    """Component id -> properties of the status line."""
    label, color = _STATUS.get(run.status, (run.status, "gray"))
    live = run.status == "running"
    step, planned = run.step, run.planned_steps
    pace = step_seconds(rows)
    return {
        ids.RUN_STATUS: {"children": [html.Span(className="dot"), label] if live else label, "color": color},
        ids.RUN_STEP: {"children": _steps(step, planned)},
        ids.RUN_PROGRESS: {"value": round(100 * step / planned, 2) if step is not None and planned else 0},
        ids.STEP_SECONDS: {"children": "" if pace is None else f"{seconds(pace)} / step · "},
        ids.LAST_REPORT: {
            "data": {
                "reported_at": run.last_report_at,
                "server_time": time.time(),
                "status": run.status,
            }
        },
    }


def run_options(runs: Sequence[RunSummary], current: RunSummary, load_error: str = "") -> list[dict[str, Any]]:
    """Choices of the run selector; the current run is always among them.

    Args:
        runs: Those that can be chosen.
        current: The run of the page.
        load_error: Why the others failed to load; shown in their place.
    """
    shown = list(runs) if any(run.id == current.id for run in runs) else [current, *runs]
    failed = [{"value": "", "label": load_error, "disabled": True}] if load_error else []
    return [*({"value": run.id, "label": f"{run.name} · {run.id[-6:]}"} for run in shown), *failed]


def step_seconds(rows: Sequence[StepRow]) -> float | None:
    """Mean seconds per step as the trainer measured them; None when it did not."""
    measured = [row.scalars[TIME_STEP_SECONDS] for row in rows[-_RATE_STEPS:] if TIME_STEP_SECONDS in row.scalars]
    return sum(measured) / len(measured) if measured else None


def _steps(step: int | None, planned: int | None) -> list[Any]:
    beyond = f" / {count(planned)}" if planned else ""
    return ["step ", html.Span(count(step), className="strong"), beyond]
