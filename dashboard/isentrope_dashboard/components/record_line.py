"""One line that says whether the record is complete."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.record_health import RecordHealth


def record_line() -> html.Div:
    """The line without words."""
    return html.Div([], id=ids.RECORD, className="record num")


def record_props(health: RecordHealth) -> dict[str, dict[str, Any]]:
    """Component id -> properties. What is wrong comes first, in colour."""
    whole = not health.problems
    badge = dmc.Badge(
        "Record complete" if whole else "Record incomplete",
        variant="light",
        color="teal" if whole else "orange",
        size="sm",
        radius="sm",
        tt="none",
        className="unshrinking",
    )
    problems = [html.Span(text, className="warning") for text in health.problems]
    return {ids.RECORD: {"children": [badge, *problems, *(html.Span(text) for text in health.facts)]}}
