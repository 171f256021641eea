"""The bar above every page: the brand, where the reader is, who is signed in; on a run's page its
state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from isentrope_dashboard.components.basics import chip, icon, row, spacer, text
from isentrope_dashboard.formatting import count, seconds
from isentrope_dashboard.theme import color_of
from isentrope_dashboard.view import link_to
from isentrope_wire.answers import HealthLevel, RunSummary, Status, TokenScope

SCHEME = "scheme"
RUN_SELECT = "run-select"
TITLE = "title"
"""Id of the store that a new page sets the document's title by, and name of the value that the
browser sets it to."""

PLACES = (("Runs", "/"), ("Compare", "/compare"), ("Access", "/access"))

STATUS = {
    Status.RUNNING: ("Live", "ok", "Reports arrive"),
    Status.FINISHED: ("Finished", "", "The trainer finished the run"),
    Status.FAILED: ("Failed", "act", "The trainer reported an error"),
    Status.ENDED: ("Ended", "", "The process ended without finishing the run"),
    Status.SILENT: (
        "Silent",
        "watch",
        "No report for a while: the process is frozen, ended or cut off",
    ),
}

LEVELS = {
    HealthLevel.ACT: ("Act", "act", "alert"),
    HealthLevel.WATCH: ("Watch", "watch", "eye"),
    HealthLevel.HEALTHY: ("Healthy", "ok", "check"),
    HealthLevel.HOLDING: ("Holding", "ok full", "check"),
    HealthLevel.NO_DATA: ("No data", "none", "clock"),
}
"""Word, the kind of its sign in the list (a disc, a half disc, a ring, a disc, a dotted ring), and
icon."""


MOSTLY_LOST = 0.75
"""Of the early entropy: what is level there has little left to learn with, and is no good news."""


def look_of(level: HealthLevel, share_lost: float | None) -> tuple[str, str, str]:
    """Word, sign and icon of a level, as in LEVELS."""
    if level == HealthLevel.HOLDING and share_lost is not None and share_lost >= MOSTLY_LOST:
        return "Held low", "watch", "eye"
    return LEVELS[level]


def page(
    title: str, *body: Any, middle: Sequence[Any] = (), below: Any = None, here: str = ""
) -> html.Div:
    """A whole page. `title` is read to those who can't see it, if `body` has no heading; `middle`
    goes behind the brand, `below` under the bar."""
    heading = []
    if title:
        heading = [html.H1(title, className="sr-only")]
    links = [
        html.A(
            name,
            href=link_to(path),
            className="place",
            **({"aria-current": "page"} if path == here else {}),
        )
        for name, path in PLACES
    ]
    brand = html.A(
        [
            html.Span(className="logo", **{"aria-hidden": "true"}),
            html.Span("Isentrope", className="brand"),
        ],
        href=link_to("/"),
        className="home",
        **{"aria-label": "Isentrope: all runs"},
    )
    if middle:
        where = [*middle]
    else:
        where = [html.Nav(links, className="row places", **{"aria-label": "Pages"})]
    bar = html.Header(
        [brand, html.Span(className="rule"), *where, spacer(), *_tools()], className="row top"
    )
    lost = html.Div(
        [
            html.Span(
                "Connection lost: the server does not answer. This page goes on when it does.",
                className="lost",
            ),
            html.Span(
                [
                    "The server answers, but failed to read this page (",
                    html.Span("500", className="status"),
                    "); its log has the details. This page tries again.",
                ],
                className="failed",
            ),
            html.Span(
                ["This token was revoked or the session ended. ", html.A("Sign in again", href="")],
                className="revoked",
            ),
            html.Span(
                ["This run was deleted. ", html.A("All runs", href=link_to("/"))],
                className="deleted",
            ),
        ],
        className="connection",
        role="status",
    )
    return html.Div([bar, below, lost, html.Main([*heading, *body], className="page")])


def _tools() -> list[Component]:
    link = dmc.ActionIcon(
        icon("link"),
        id="copy-link",
        variant="subtle",
        color="gray",
        size=28,
        **{"aria-label": "Copy a link to this view"},
    )
    toggle = dmc.ColorSchemeToggle(
        id=SCHEME,
        lightIcon=icon("sun"),
        darkIcon=icon("moon"),
        variant="subtle",
        color="gray",
        size=28,
        **{"aria-label": "Switch between light and dark"},
    )
    return [link, toggle, html.Span(className="rule"), html.Div(id="who", className="row who")]


def run_middle(run: RunSummary, others: Sequence[RunSummary]) -> list[Component]:
    """Where the reader is on a run's page: the run, which can be changed for another, and its
    state."""
    if any(other.id == run.id for other in others):
        shown = list(others)
    else:
        shown = [run, *others]
    select = dmc.Select(
        id=RUN_SELECT,
        data=[choice_of(other) for other in shown],
        value=run.id,
        searchable=True,
        w={"base": 150, "md": 240},
        size="xs",
        leftSection=html.Span(icon("run", 14), style={"color": color_of(run.id)}),
        nothingFoundMessage="Not among the newest runs: find it in the list",
        **{"aria-label": "Run"},
    )
    return [
        html.A("Runs", href=link_to("/"), className="place wide"),
        text("/", "dim wide"),
        select,
        html.Div(id="run-state", className="row state"),
    ]


def choice_of(run: RunSummary) -> dict[str, str]:
    """A run in the field that changes it for another."""
    return {"value": run.id, "label": f"{run.name} · {run.id[-6:]}"}


def run_title(run: RunSummary) -> str:
    """The title of a run's page: with its level while it reports, which so is seen on a tab in the
    background."""
    if run.digest is None or run.status.is_over:
        return f"{run.name} · Isentrope"
    word = ""
    if run.digest.level != HealthLevel.NO_DATA:
        word = f"({look_of(run.digest.level, run.digest.share_lost)[0]}) "
    return f"{word}{run.name} · Isentrope"


def run_state(run: RunSummary) -> list[Component]:
    """Status, step, pace and the age of the newest report."""
    word, tone, says = STATUS[run.status]
    live = run.status == Status.RUNNING
    badge = html.Span(
        [html.Span(className="live-dot"), word] if live else word,
        className=f"chip {tone}",
        title=says,
        id="run-status",
    )
    planned = ""
    if run.planned_steps:
        planned = f" / {count(run.planned_steps)}"
    # The browser follows step and bar by itself.
    number = html.B(count(run.step), id="run-step")
    step = html.Span(["step ", number, planned], className="num dim")
    share = (
        0
        if run.step is None or not run.planned_steps
        else min(100, 100 * run.step / run.planned_steps)
    )
    bar = html.Div(
        html.Div(style={"width": f"{share:.1f}%"}),
        id="run-progress",
        className="progress",
        role="progressbar",
        **{"aria-label": "share of the planned steps", "aria-valuenow": round(share)},
    )
    # The browser fills it in, from the time of the newest report that it asks for itself.
    age = html.Span(
        id="report-age",
        className="num dim wide",
        **{"data-since": "0", "data-before": "updated " if live else "last report "},
    )
    return [
        badge,
        step,
        *([bar] if run.planned_steps else []),
        text(_pace_words(run), "num dim wide"),
        age,
    ]


def _pace_words(run: RunSummary) -> str:
    pace = None
    if run.digest:
        pace = run.digest.seconds_per_step
    if pace is None:
        return ""
    words = f"{seconds(pace)} per step"
    if run.status == Status.RUNNING and run.planned_steps and run.step is not None:
        left = pace * max(0, run.planned_steps - run.step)
        units = ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"))
        size, name = next((unit for unit in units if left >= 2 * unit[0]), units[-1])
        words += f" · {left / size:.0f} {name} left"
    return words


def who_am_i(name: str, scope: str, *, shares: bool) -> list[Component]:
    """The token's name and what it allows, and the way out; on a page that `shares`, a link to its
    run for others."""
    share = html.Button("Copy a read-only link to this run", type="button", id="share-run")
    initials = (
        "".join(part[0] for part in name.replace(".", " ").replace("-", " ").split()[:2]).upper()
        or "?"
    )
    return [
        html.Details(
            [
                html.Summary(
                    row(
                        dmc.Avatar(initials, size=24, radius="xl", color="iris"),
                        text(name, "wide"),
                        chip(scope, "wide"),
                    ),
                    **{"aria-label": f"Signed in as {name}, scope {scope}"},
                ),
                html.Div(
                    [
                        *([share] if shares and scope == TokenScope.ADMIN else []),
                        html.A("Access tokens", href=link_to("/access")),
                        html.Button("Sign out", type="button", id="sign-out"),
                    ]
                ),
            ],
            className="menu",
        )
    ]
