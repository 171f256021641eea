"""A run as a row of the list of runs: cells that are drawn here and shown as they are by the browser.

Names, tags and errors come from runs. They are children of components, so that the browser shows them as text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from dash import html
from dash.development.base_component import Component

from isentrope_dashboard.components.basics import chip, text
from isentrope_dashboard.components.header import STATUS
from isentrope_dashboard.formatting import MISSING, count, method, number, percent, seconds, threshold
from isentrope_dashboard.view import address_of
from isentrope_wire.answers import DigestControl, HealthLevel, RunCounts, RunSummary, Status

SPARK_WIDTH, SPARK_HEIGHT = 72, 22

_HEALTH = {
    HealthLevel.ACT: ("Act", "act"),
    HealthLevel.WATCH: ("Watch", "watch"),
    HealthLevel.HEALTHY: ("Healthy", "ok"),
    HealthLevel.HOLDING: ("Holding", "ok full"),
    HealthLevel.NO_DATA: ("No data", "none"),
}
"""The word, and the kind of its sign: a disc, a half disc, a ring, a disc, a dotted ring."""


def run_row(run: RunSummary) -> dict[str, Any]:
    """The row: what actions need, and the cell of each column."""
    digest = run.digest
    word, tone = health(run)
    planned = f" / {count(run.planned_steps)}" if run.planned_steps else ""
    return {
        "id": run.id,
        "label": run.name,
        "tag_names": run.tags,
        "health": html.Span([html.I(className="sign"), word], className=f"health-word {tone}"),
        "name": _two_lines(
            html.A(run.name, href=address_of(run.id), tabIndex=-1, title=run.name), f"{run.id} · {run.project}"
        ),
        "status": _two_lines(*_status(run)),
        "lost": _share_lost(digest.share_lost if digest else None, tone),
        "lost_in": _steps_left(run),
        "entropy": _line(digest.entropy_line, digest.entropy, "iris") if digest else MISSING,
        "reward": _line(digest.reward_line, digest.reward, "dim") if digest else MISSING,
        "step": f"{count(run.step)}{planned}",
        "control": _control(digest.control if digest else None),
        "tags": [chip(tag) for tag in run.tags] or MISSING,
        "reported": MISSING if run.last_report_at is None else _age(run.last_report_at),
    }


def project_row(name: str, counts: RunCounts) -> dict[str, Any]:
    """The row above the runs of a project."""
    live, act = counts.statuses.get(Status.RUNNING, 0), counts.levels.get(HealthLevel.ACT, 0)
    notes = [f"{count(counts.total)} {'run' if counts.total == 1 else 'runs'}"]
    notes += [f"{live} live"] if live else []
    notes += [f"{act} {'needs' if act == 1 else 'need'} you"] if act else []
    return {
        "id": f":project:{name}",  # no run has a colon in its id
        "project": html.Div([html.B(name or "no project"), text(" · ".join(notes), "dim")], className="project-row"),
    }


def health(run: RunSummary) -> tuple[str, str]:
    """The word and the tone of a run's health: its level while it reports."""
    if run.status.is_over:
        return "Imported" if run.status == Status.IMPORTED else "Ended", "none"
    if run.status == Status.SILENT:
        return "Silent", "watch"
    return _HEALTH[run.digest.level if run.digest else HealthLevel.NO_DATA]


def imported_from(run: RunSummary) -> str:
    """The file that an imported run was read from; empty where it is not known."""
    return str(run.config.get("imported_from", ""))


def _two_lines(first: Component | str, second: str) -> html.Div:
    return html.Div([first, html.Span(second, className="dim", title=second)], className="two-lines")


def _status(run: RunSummary) -> tuple[Component, str]:
    """The word, and below it what explains it."""
    word, tone, _ = STATUS.get(run.status, (str(run.status), "", ""))
    digest = run.digest
    reason = ""
    match run.status:
        case Status.RUNNING | Status.SILENT if run.last_report_at is None:
            reason = "no report yet"
        case Status.RUNNING if digest and digest.seconds_per_step is not None:
            reason = f"{seconds(digest.seconds_per_step)} per step"
        case Status.FINISHED if run.planned_steps and run.step is not None and run.step >= run.planned_steps:
            reason = f"all {count(run.planned_steps)} steps"
        case Status.FAILED:
            reason = digest.reason if digest else ""
        case Status.SILENT if run.last_report_at is not None:
            minutes = max(1, round((time.time() - run.last_report_at) / 60))
            reason = f"no report for {minutes} min" if minutes < 120 else f"no report for {minutes // 60} h"
        case Status.ENDED:
            reason = "the process ended without finishing"
        case Status.IMPORTED:
            reason = f"from {source}" if (source := imported_from(run)) else ""
    return text(word, tone if run.status in (Status.FAILED, Status.SILENT) else ""), reason


def _share_lost(share: float | None, tone: str) -> Any:
    if share is None or not math.isfinite(share):
        return MISSING
    width = f"{100 * min(1.0, max(0.0, share)):.0f}%"
    bar = html.I(html.I(className=tone, style={"width": width}), className="lost-bar")
    return html.Span([bar, percent(share, 0)], className="lost-share")


def _steps_left(run: RunSummary) -> str:
    digest = run.digest
    if digest is None or run.status.is_over:
        return MISSING
    if digest.share_lost is not None and digest.share_lost >= 0.75:
        return "lost"
    steps = digest.steps_to_three_quarters_lost
    if steps is None or not math.isfinite(steps):
        return MISSING
    whole = math.ceil(steps)
    return f"{count(whole)} {'step' if whole == 1 else 'steps'}"


def _line(values: Sequence[float | None], newest: float | None, tone: str) -> Any:
    """A line beside its newest value; MISSING where nothing was measured."""
    if newest is None:
        return MISSING
    return html.Span([html.I(className=f"spark {tone}", style={"--drawing": sparkline(values)}), number(newest)])


def sparkline(values: Sequence[float | None]) -> str:
    """A line as a CSS picture; it begins at 0 where no value is negative, and breaks where one is missing."""
    known = [value for value in values if value is not None]
    low, high = min([0.0, *known]), max(known, default=0.0)
    span = (high - low) or 1.0
    across = SPARK_WIDTH / max(1, len(values) - 1)
    path, pen = "", "M"
    for at, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        path += f"{pen}{at * across:.1f} {1 + (SPARK_HEIGHT - 2) * (1 - (value - low) / span):.1f}"
        pen = "L"
    drawing = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{SPARK_WIDTH}' height='{SPARK_HEIGHT}'>"
        f"<path d='{path}' fill='none' stroke='black' stroke-width='1.5' stroke-linejoin='round' stroke-linecap='round'/></svg>"
    )
    return f'url("data:image/svg+xml,{quote(drawing)}")'


def _control(control: DigestControl | None) -> str:
    """The active control in a few characters: `Clip_V µ 1.00`, `hold 75%`."""
    if control is None:
        return MISSING
    if control.hold_target is not None:
        return f"hold {control.hold_target}"
    low, high = control.mu_low, control.mu_high
    if low is not None and low == high:
        return f"{method(control.method)} µ {threshold(low)}"
    sides = [f"{name} {threshold(value)}" for name, value in (("µ₋", low), ("µ₊", high)) if value is not None]
    return " ".join([method(control.method), *sides])


def _age(at: float) -> html.Span:
    # The browser fills in how long ago this is, and counts on.
    return html.Span("", **{"data-since": at, "data-before": ""})
