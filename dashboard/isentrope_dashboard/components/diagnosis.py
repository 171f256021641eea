"""Alerts with their reasons, and the tokens that counted most: all of it text, none of it markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.components.panel import panel, scrolling
from isentrope_dashboard.components.unread import or_unread
from isentrope_dashboard.diagnosis import AlertRow, CountedTokens, TokenRow
from isentrope_dashboard.formatting import MISSING, number

_HEAD = ["token", "id", "row", "position", "p", "H", "S_c", "A", "−r A S_c", "gradient"]
_KINDS = {
    "collapse": "Collapse ahead",
    "explosion": "Explosion ahead",
    "self_check": "Self-check failed",
    "prediction": "Prediction not trusted",
    "dead_knob": "Dead knob",
    "zero_advantage": "Few advantages",
    "not_finite": "Numbers not finite",
    "left_out": "Parts left out",
}


def diagnosis_columns() -> list[dmc.GridCol]:
    """Two cards, to be filled in."""
    table = dmc.Table(id=ids.TOKENS, data={"head": [], "body": []}, striped=True, className="num")
    return [
        dmc.GridCol(
            panel(
                "Alerts",
                "What the probe thought a person should know",
                or_unread(ids.ALERTS, html.Div([], id=ids.ALERTS)),
            ),
            span={"base": 12, "lg": 4},
        ),
        dmc.GridCol(
            panel(
                "Tokens that counted most",
                "",
                or_unread(ids.TOKENS, scrolling(table, "Tokens that counted most", 640)),
                subtitle_id=ids.TOKENS_SUBTITLE,
            ),
            span={"base": 12, "lg": 8},
        ),
    ]


def diagnosis_props(alerts: Sequence[AlertRow], tokens: CountedTokens) -> dict[str, dict[str, Any]]:
    """The content of both."""
    head = _HEAD if tokens.rows else []
    of_step = "" if tokens.step is None else f", step {tokens.step:,}"
    subtitle = f"Largest by size of r A S_c{of_step}; nats" if tokens.rows else "The newest report names none"
    return {
        ids.ALERTS: {"children": [_alert(row) for row in alerts] or dmc.Text("None so far", size="sm")},
        ids.TOKENS: {"data": {"head": head, "body": [_cells(row) for row in tokens.rows]}},
        ids.TOKENS_SUBTITLE: {"children": subtitle},
    }


def visible(text: str | None) -> str:
    """Text with every character seen: what is not printable, or turns the reading direction, by its number."""
    if text is None:
        return MISSING
    shown = "".join(c if c.isprintable() and c != " " else "␣" if c == " " else f"\\u{ord(c):04x}" for c in text)
    return shown or "(empty)"


def _alert(row: AlertRow) -> dmc.Alert:
    title = f"{_KINDS.get(row.kind, row.kind)}, step {row.step:,}"
    return dmc.Alert(row.reason, title=title, color="orange", variant="light", mb="xs")


def _cells(row: TokenRow) -> list[str]:
    probability = None if row.probability_log is None else math.exp(min(row.probability_log, 0.0))
    return [
        visible(row.text),
        *(MISSING if value is None else f"{value}" for value in (row.token_id, row.sequence, row.position)),
        number(probability, 4),
        number(row.entropy),
        number(row.score, 4, signed=True),
        number(row.advantage, signed=True),
        number(row.contribution, 4, signed=True),
        "kept" if row.kept else "left out",
    ]
