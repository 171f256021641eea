"""Several runs side by side: which, by which metrics, and their newest values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.export_links import export_links
from isentrope_dashboard.components.panel import chart, panel, scrolling
from isentrope_dashboard.figures.metric_panels import MOST_LINES, MOST_PANELS, PANEL_HEIGHT
from isentrope_dashboard.formatting import count, number
from isentrope_dashboard.records import LatestValue, RunSummary
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

DEFAULT_METRICS = (ENTROPY_MEAN, REWARD_MEAN)
POLL_MILLISECONDS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run and the newest values of its metrics."""

    run: RunSummary
    latest: Mapping[str, LatestValue]


def comparison_panel(runs: Sequence[RunSummary], chosen: Sequence[str]) -> dmc.Card:
    """The panel without values.

    Args:
        runs: those that can be chosen.
        chosen: ids of those that are compared at first.
    """
    which = _choice(
        ids.COMPARE_RUNS,
        f"Runs, at most {MOST_LINES}",
        MOST_LINES,
        [{"value": run.id, "label": f"{run.name} · {run.id[-6:]}"} for run in runs],
        list(chosen),
    )
    metrics = _choice(
        ids.COMPARE_METRICS,
        f"Metrics, at most {MOST_PANELS}",
        MOST_PANELS,
        [{"value": name, "label": name} for name in DEFAULT_METRICS],
        list(DEFAULT_METRICS),
    )
    drawn = chart(ids.COMPARE_GRAPH, 3 * PANEL_HEIGHT, "The metrics of the compared runs over steps", grows=False)
    table = html.Div([], id=ids.COMPARE_TABLE)
    body = dmc.Stack(
        [
            dcc.Interval(id=ids.COMPARE_POLL, interval=POLL_MILLISECONDS),
            dmc.SimpleGrid([which, metrics], cols={"base": 1, "sm": 2}, spacing="md"),
            drawn,
            table,
        ],
        gap="md",
    )
    return panel("Compare runs", "", body, subtitle_id=ids.COMPARE_SUBTITLE)


def comparison_table(compared: Sequence[ComparedRun], metrics: Sequence[str], colours: Sequence[str]) -> Any:
    """One row a run, in its line's colour; the last column downloads it.

    Args:
        colours: CSS colours, one for each run.
    """
    head = ["run", "status", "step", *metrics, "export"]
    rows = [
        html.Tr([html.Td(cell) for cell in _cells(one, metrics, colour)])
        for one, colour in zip(compared, colours, strict=False)
    ]
    table = dmc.Table(
        [html.Thead(html.Tr([html.Th(text) for text in head])), html.Tbody(rows)], className="num compare-table"
    )
    return scrolling(table, "Newest values of the compared runs", 520)


def _cells(one: ComparedRun, metrics: Sequence[str], colour: str) -> list[Any]:
    run = one.run
    swatch = html.Span(className="compare-swatch", style={"background": colour}, **{"aria-hidden": "true"})
    link = html.A(run.name, href=f"/runs/{quote(run.id, safe='')}", className="run-link")
    values = [number(known.value, 4) if (known := one.latest.get(name)) else "–" for name in metrics]
    named = dmc.Group([swatch, link, html.Span(run.id[-6:], className="mono")], gap="xs", wrap="nowrap")
    return [named, run.status, count(run.step), *values, export_links(run.id, label="")]


def _choice(component_id: str, label: str, most: int, data: list[dict[str, str]], value: list[str]) -> dmc.MultiSelect:
    return dmc.MultiSelect(
        id=component_id,
        label=label,
        data=data,
        value=value,
        searchable=True,
        maxValues=most,
        hidePickedOptions=True,
        size="sm",
        placeholder="Search",
        nothingFoundMessage="Nothing of this name",
    )
