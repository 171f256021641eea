"""A card with a title, an icon, a chart, and links that download a run: the pieces of the other components."""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from isentrope_dashboard import ids

Content: TypeAlias = Component | str | list[Any] | None


def icon(name: str, size: int = 16) -> html.Span:
    """A decorative icon drawn by the style sheet; the text beside it carries the meaning."""
    return html.Span(className=f"icon icon-{name}", style={"width": size, "height": size}, **{"aria-hidden": "true"})


def panel(
    title: Content,
    subtitle: Content,
    body: Component,
    *,
    aside: Component | None = None,
    subtitle_id: str = "",
    stretched: bool = False,
) -> dmc.Card:
    """A titled card. `aside` is to the right of the title; a `stretched` body fills the card's height."""
    identity = {"id": subtitle_id} if subtitle_id else {}
    heading = dmc.Stack(
        [dmc.Title(title, order=2, className="panel-title"), dmc.Text(subtitle, size="xs", c="dimmed", **identity)],
        gap=1,
    )
    # A component without children is falsy, hence `is None`.
    beside = html.Span() if aside is None else aside
    head = dmc.Group(
        [heading, beside], justify="space-between", align="flex-start", wrap="nowrap", mb="xs", className="panel-head"
    )
    return dmc.Card([head, body], h="100%", className="stretched" if stretched else "")


def chart(component_id: str, height: int, description: str, *, grows: bool = True) -> html.Div:
    """An empty chart, drawn by the browser from its store; `description` is read by screen readers.

    In a stretched card it takes what height is left and `height` at least; exactly that when it does not grow. Elsewhere it
    must not grow: without a given height plotly takes one of its own, and the card cuts it off.
    """
    graph = dcc.Graph(
        id=component_id,
        responsive=True,
        config={"displaylogo": False, "displayModeBar": False, "scrollZoom": False},
        style={"minHeight" if grows else "height": height, "margin": "0 -4px"},
    )
    stores = [dcc.Store(id=ids.drawing(component_id)), dcc.Store(id=ids.drawn(component_id))]
    return html.Div([graph, *stores], className="chart", role="img", **{"aria-label": description})


def scrolling(content: Component, label: str, least_width: int) -> html.Div:
    """Scrolls sideways where it is too wide, by keyboard, too; `label` is read by screen readers."""
    inside = html.Div(content, style={"minWidth": least_width})
    return html.Div(inside, className="scrolling", tabIndex=0, role="region", **{"aria-label": label})


def score_symbol() -> list[Any]:
    """S with a subscript c."""
    return ["S", html.Sub("c")]


FORMATS = {"csv": "CSV", "jsonl": "JSONL", "parquet": "Parquet"}


def export_links(run_id: str, *, label: str = "Export") -> dmc.Group:
    """One link a format; the browser sends its own session with them."""
    path = f"/api/v1/runs/{quote(run_id, safe='')}/export?format="
    links = [
        html.A(name, href=path + word, className="run-link", **{"download": "", "aria-label": f"Export as {name}"})
        for word, name in FORMATS.items()
    ]
    title = [dmc.Text(label, size="xs", c="dimmed")] if label else []
    return dmc.Group([*title, *links], gap="xs", className="export-links", wrap="nowrap")
