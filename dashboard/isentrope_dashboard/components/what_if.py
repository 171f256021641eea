"""Under the thresholds: what the newest step would have been with them."""

from __future__ import annotations

import math
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.panel import chart
from isentrope_dashboard.figures import what_if
from isentrope_dashboard.formatting import MINUS, count, number, percent
from isentrope_dashboard.predictions import WhatIf

SHOWN: dict[str, Any] = {}
HIDDEN: dict[str, Any] = {"height": 0, "overflow": "hidden", "visibility": "hidden"}
"""Not `display: none`: a chart drawn where nothing is laid out has no size."""


def what_if_block() -> html.Div:
    """The block without values; the chart comes with the first answer."""
    graph = html.Div(
        chart(
            ids.WHAT_IF_GRAPH,
            what_if.HEIGHT,
            "Clip fraction and predicted change against the thresholds",
            grows=False,
        ),
        id=ids.WHAT_IF,
        style=HIDDEN,
    )
    reading = dmc.Text(id=ids.WHAT_IF_READING, size="xs", c="dimmed", className="what-if-reading num", mt=2)
    stores = [dcc.Store(id=ids.WHAT_IF_QUESTION), dcc.Store(id=ids.WHAT_IF_STEP)]
    return html.Div(
        [_heading(), html.Div(reading, **{"aria-live": "polite"}), graph, *stores],
        className="what-if",
    )


def _heading() -> dmc.Group:
    aside = dmc.Text("thresholds and scope alone", size="xs", c="dimmed")
    return dmc.Group([dmc.Text("What if", size="sm", fw=500), aside], justify="space-between")


def reading(found: WhatIf) -> list[Any]:
    """The answer in words: what would have been clipped, and what the entropy was then predicted to do."""
    clipped = [html.Span(percent(found.clip_fraction, 2), className="strong")]
    if found.clip_fraction_bound:
        clipped.append(f" ± {percent(found.clip_fraction_bound, 2)}")
    unit = "nats" if found.gain is not None else "nats per unit gain"
    changed = [html.Span(change_text(found.change), className="strong")]
    if found.change_bound:
        changed.append(f" ± {change_text(found.change_bound).lstrip('+')}")
    return [
        html.Span([f"Step {count(found.step)} would clip ", *clipped, " of its tokens"]),
        html.Span(["ΔH ", *changed, f" {unit}, {change_text(found.unclipped_change)} with nothing clipped"]),
    ]


def change_text(value: float | None) -> str:
    """Two significant digits with a sign, in powers of ten where that is shorter."""
    if value is None or not math.isfinite(value):
        return number(value)
    if value == 0:
        return "0"
    if abs(value) < 1e-4 or abs(value) >= 1e4:
        return f"{value:+.1e}".replace("-", MINUS)
    return number(value, max(0, 1 - math.floor(math.log10(abs(value)))), signed=True)
