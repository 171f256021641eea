"""Everything that a run logs, grouped by prefix, as small charts: what everybody looks at first,
then the groups that are open. The address carries which are open (`open`), which charts are pinned
to the top (`pin`), and the search (`q`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dash import html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import AsyncClient
from isentrope_dashboard.components.basics import icon, nothing, place_id, row, search, text
from isentrope_dashboard.figures.panel import metric_panel, span_of
from isentrope_dashboard.formatting import told_apart
from isentrope_dashboard.live import Part, Values
from isentrope_dashboard.pages import charts, compare
from isentrope_dashboard.view import View, listed, listed_in
from isentrope_wire.answers import LatestMetric
from isentrope_wire.control_answers import ControlVersion
from isentrope_wire.metrics import AT_A_GLANCE, METRICS, reported_names

MOST_CHARTS = 24
"""Drawn at once: more would make a page of 300 metrics slow."""
CHART_POINTS = 200
CHART_HEIGHT = 176
WITHOUT_PREFIX = "."
"""Group of the metrics without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Metrics with one prefix."""

    name: str
    metrics: Sequence[str]
    is_open: bool
    charts: int = 0
    """How many of them are drawn: the first ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """What is drawn, and what is listed."""

    glance: Mapping[str, str]
    """Metrics at the top, and what each is in words; of a pinned one its name."""
    groups: Sequence[Group]
    opened: Sequence[str]
    """The groups that are open, in the order in which they were opened."""

    @property
    def drawn(self) -> list[str]:
        """Every metric of which there is a chart, once."""
        names = [
            *self.glance,
            *(name for group in self.groups for name in group.metrics[: group.charts]),
        ]
        return list(dict.fromkeys(names))


def arrange(names: Collection[str], view: View) -> Arrangement:
    """Group a run's metrics, and choose which of them are drawn."""
    wanted = view.query.get("q", "").strip().lower()
    found = sorted(name for name in names if wanted in name.lower())
    glance = {
        name: words
        for name, words in _glance(names, listed_in(view, "pin")).items()
        if wanted in name.lower()
    }
    prefixes: dict[str, list[str]] = {}
    for name in found:
        prefix, slash, _ = name.partition("/")
        prefixes.setdefault(prefix if slash else WITHOUT_PREFIX, []).append(name)
    if wanted:
        opened = list(reversed(prefixes))
    elif "open" in view.query:
        opened = listed_in(view, "open")
    else:
        opened = _opened_at_first(prefixes, MOST_CHARTS - len(glance))
    left = MOST_CHARTS - len(glance)
    charts: dict[str, int] = {}
    for prefix in reversed(opened):  # of those opened first, charts give way to those opened last
        if prefix in prefixes and prefix not in charts:
            charts[prefix] = max(0, min(left, len(prefixes[prefix])))
            left -= charts[prefix]
    groups = [
        Group(name=prefix, metrics=inside, is_open=prefix in opened, charts=charts.get(prefix, 0))
        for prefix, inside in sorted(prefixes.items())
    ]
    return Arrangement(
        glance=glance, groups=groups, opened=[prefix for prefix in opened if prefix in prefixes]
    )


def _opened_at_first(groups: Mapping[str, Sequence[str]], charts: int) -> list[str]:
    """Groups with metrics of the run's own, as long as all of them can be drawn: the rest is on the
    other tabs, too."""
    opened: list[str] = []
    for prefix, inside in sorted(groups.items()):
        if all(name in METRICS for name in inside):
            continue
        charts -= len(inside)
        if charts < 0 and opened:
            break
        opened.append(prefix)
    return opened[::-1]


def _glance(names: Collection[str], pinned: Sequence[str]) -> dict[str, str]:
    known = reported_names(names)
    chosen = {name: name for name in pinned if name in names}
    for rows in AT_A_GLANCE:
        reported = next((each for each in rows if each in known), None)
        if reported is not None:
            chosen.setdefault(known[reported], reported.label)
    return dict(list(chosen.items())[:MOST_CHARTS])


async def read(client: AsyncClient, view: View) -> Values:
    run_id = view.run_id or ""
    run, answer = await asyncio.gather(
        client.ask(calls.run(run_id)), client.ask(calls.latest(run_id))
    )
    latest = {item.name: item for item in answer.items}
    arranged = arrange(latest, view)
    panels = [metric_panel(name, CHART_HEIGHT, log=view.log) for name in arranged.drawn]
    shown = await charts.read_shown(client, view, run, panels, points=CHART_POINTS, is_live=False)
    shown = await compare.read_seeds(client, view, run, shown, CHART_POINTS)
    figures = {panel.name: charts.figure(panel, shown) for panel in panels}
    spans = {name: span_of([columns]) for name, columns in shown.series.items()}
    places = [("glance", name) for name in arranged.glance]
    places += [
        (group.name, name) for group in arranged.groups for name in group.metrics[: group.charts]
    ]
    return {
        "metrics": _body(arranged, latest, view, spans, is_over=run.status.is_over),
        **{place_id("chart", place, name): figures[name] for place, name in places},
    }


def _body(
    arranged: Arrangement,
    latest: Mapping[str, LatestMetric],
    view: View,
    spans: Mapping[str, float],
    *,
    is_over: bool,
) -> list[Component]:
    """Cards and lists; `spans` are those of the drawn metrics' values."""
    if not latest:
        if is_over:
            return [nothing("No metric was reported", "This run ended before its first step.")]
        return [nothing("No metric was reported so far", "Charts appear here with the first step.")]
    if not arranged.groups:
        return [nothing("No metric has this in its name", "Clear the search to see all.")]
    pinned = listed_in(view, "pin")

    def charts(place: str, names: Mapping[str, str]) -> html.Div:
        cards = [
            _card(
                place_id("chart", place, name),
                name,
                words,
                _newest(latest[name], spans.get(name, 0.0)),
                pinned,
            )
            for name, words in names.items()
        ]
        return html.Div(cards, className="metric-charts")

    sections = []
    if arranged.glance:
        sections.append(
            html.Section(
                [html.H2("At a glance", className="title"), charts("glance", arranged.glance)]
            )
        )
    for group in arranged.groups:
        inside: list[Component] = [_heading(group, arranged.opened)]
        if group.charts:
            inside.append(
                charts(group.name, {name: name for name in group.metrics[: group.charts]})
            )
        if group.is_open and group.charts < len(group.metrics):
            inside.append(_list(group.metrics[group.charts :], latest, pinned))
        sections.append(html.Section(inside))
    return sections


def _heading(group: Group, opened: Sequence[str]) -> html.H2:
    rest = [name for name in opened if name != group.name]
    after = rest if group.is_open else [*rest, group.name]
    inside = ", ".join(name.removeprefix(f"{group.name}/") for name in group.metrics)
    button = html.Button(
        [
            icon("next", 14),
            html.Span(
                "without prefix" if group.name == WITHOUT_PREFIX else group.name, className="strong"
            ),
            text(str(len(group.metrics)), "dim num"),
            text("" if group.is_open else inside, "dim inside"),
        ],
        type="button",
        className="group-heading",
        **{
            "aria-expanded": str(group.is_open).lower(),
            "data-show": json.dumps({"open": listed(after)}),
        },
    )
    return html.H2(button)


def _card(
    chart: str, name: str, words: str, newest: Component, pinned: Sequence[str]
) -> html.Section:
    known, panel = METRICS.get(name), metric_panel(name, CHART_HEIGHT)
    return charts.panel_card(
        panel,
        chart=chart,
        title=html.Span(words, title=known.meaning if known is not None else name),
        unit=" · ".join(part for part in (name if words != name else "", panel.unit) if part),
        name="metric",
        beside=row(newest, _pin(name, pinned), name="beside"),
    )


def _newest(newest: LatestMetric, span: float = 0.0) -> html.Span:
    """The newest value, among values of this span; under the mouse to the last digit."""
    words = told_apart(newest.value, span)
    return html.Span(words, className="num strong newest", title=str(newest.value))


def _pin(name: str, pinned: Sequence[str]) -> html.Button:
    is_pinned = name in pinned
    if is_pinned:
        after = [other for other in pinned if other != name]
    else:
        after = [*pinned, name]
    return html.Button(
        icon("pin", 14),
        type="button",
        className="pin",
        **{
            "aria-label": f"Pin {name} to the top",
            "aria-pressed": str(is_pinned).lower(),
            "data-show": json.dumps({"pin": listed(after) if after else None}),
        },
    )


def _list(
    names: Sequence[str], latest: Mapping[str, LatestMetric], pinned: Sequence[str]
) -> html.Div:
    note = text(
        f"Not drawn, as {MOST_CHARTS} charts are: pin those you need, or search.", "dim small"
    )
    items = [
        html.Div([html.Span(name, className="mono"), _newest(latest[name]), _pin(name, pinned)])
        for name in names
    ]
    return html.Div([note, html.Div(items, className="metric-list")])


def tools(view: View, history: Sequence[ControlVersion], seeds: int) -> Component:
    """Search, and what all charts of the tab show."""
    find = search("q", view.query.get("q", ""), "Search metrics", width=180)
    return row(find, charts.tools(view, history, seeds, log=True), name="tools")


PART = Part(name="metrics", read=read, layout=html.Div(id="metrics", className="metrics"))
