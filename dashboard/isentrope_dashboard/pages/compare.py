"""Several runs, or groups of runs that differ in the seed alone or share a tag, side by side:
/compare?run=ID&run=ID&metric=NAME&group=seed. What is compared, and what of it is hidden, is in the
address alone."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
import numpy as np
from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from isentrope.client import calls
from isentrope.client.connection import ApiError, AsyncClient
from isentrope_dashboard.components import header
from isentrope_dashboard.components.basics import (
    card,
    chip,
    choice,
    nothing,
    place_id,
    row,
    spacer,
    table,
    text,
    wide_table,
)
from isentrope_dashboard.figures.chart import EMPTY
from isentrope_dashboard.figures.panel import Panel, Shown, metric_panel
from isentrope_dashboard.formatting import MISSING, count, describe, previous_control
from isentrope_dashboard.live import Api, Guard, Part, Values, failure_in_words, log_first
from isentrope_dashboard.pages import charts
from isentrope_dashboard.pages.config import flat
from isentrope_dashboard.theme import look_of, looks_of
from isentrope_dashboard.view import View, address_of, listed, listed_in
from isentrope_wire import metrics
from isentrope_wire.answers import RunDetail, RunSummary, SeriesColumns, Status
from isentrope_wire.control_answers import ControlVersion

PATH = "/compare"
MOST_RUNS, MOST_GROUPS, MOST_GROUPED = 12, 6, 36
"""Lines of runs, lines of groups, and runs in all groups together."""
MOST_METRICS = 12
AT_FIRST = (
    metrics.ENTROPY_MEAN,
    metrics.REWARD_MEAN,
    metrics.ENTROPY_PREDICTED_CHANGE,
    metrics.CLIP_FRACTION,
)
POINTS = 400
HEIGHT = 240
SEEDS_AMONG = 100
"""Newest runs of a project among which those with other seeds are looked for."""
OFFERED = 30
"""Runs that the search shows at once."""
GROUPS = (("none", "Runs"), ("seed", "Seeds"), ("tag", "Tags"))
OF_A_SEED = re.compile(r"seed$|(^|\.)(output_dir|logging_dir|run_name)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run, with what is known of it."""

    run: RunDetail
    history: Sequence[ControlVersion]
    shown: Shown
    """With its metrics under the names that were chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What is one line: a run, or several."""

    key: str
    """In the address: a run's id, a tag, or what its runs have in common."""
    name: str
    members: Sequence[Compared]

    @property
    def shown(self) -> Shown:
        """The run's, or the mean of the runs with the lowest and highest of them."""
        every = [member.shown for member in self.members]
        longest = max(every, key=attrgetter("last"))
        named = replace(longest, key=self.key, label=self.name)
        if len(every) == 1:
            return named
        names = dict.fromkeys(name for shown in every for name in shown.series)
        means = {name: mean_of([shown.columns(name) for shown in every]) for name in names}
        return replace(named, series=means)


def mean_of(every: Sequence[SeriesColumns]) -> SeriesColumns:
    """Mean, lowest and highest of several series, at the steps of the longest: of those that have
    come so far; between two steps of its own a series is interpolated. What is not finite in one of
    them is so in the mean. Of reduced series, with the mean of their buckets' means."""
    measured = [series for series in every if series.step]
    if not measured:
        return EMPTY
    longest = max(measured, key=lambda series: (series.step[-1], len(series.step)))
    steps = np.array(longest.step)
    inside = np.array([(steps >= it.step[0]) & (steps <= it.step[-1]) for it in measured])

    def align_steps(columns: Iterable[Sequence[float]], elsewhere: float) -> Any:
        aligned = []
        for series, column in zip(measured, columns, strict=True):
            # Not between equal steps: a value beside an infinite one would be lost.
            if series.step == longest.step:
                aligned.append(column)
            else:
                aligned.append(np.interp(steps, series.step, column))
        return np.where(inside, aligned, elsewhere)

    mean = align_steps((series.value for series in measured), 0.0).sum(0) / inside.sum(0)
    low = align_steps((series.min or series.value for series in measured), math.inf).min(0)
    high = align_steps((series.max or series.value for series in measured), -math.inf).max(0)
    columns = SeriesColumns(
        step=longest.step, value=mean.tolist(), min=low.tolist(), max=high.tolist()
    )
    if longest.count is None:
        return columns
    of_buckets = align_steps((series.means for series in measured), 0.0).sum(0) / inside.sum(0)
    return replace(
        columns,
        mean=of_buckets.tolist(),
        count=longest.count,
        not_finite=[0] * len(longest.count),
    )


def grouped(compared: Sequence[Compared], by: str) -> list[Group]:
    """The lines to draw. By `seed`: runs whose configurations differ in a seed alone; by `tag`: a
    run is in the group of each of its tags."""
    if by not in ("seed", "tag"):
        return [
            Group(key=member.run.id, name=member.run.name, members=[member]) for member in compared
        ]
    by_key: dict[str, list[Compared]] = {}
    for member in compared:
        keys = [_but_for_the_seed(member.run.config)]
        if by == "tag":
            keys = member.run.tags or ["no tag"]
        for key in keys:
            by_key.setdefault(key, []).append(member)
    if by == "tag":
        groups = [Group(key=tag, name=tag, members=members) for tag, members in by_key.items()]
        return groups[:MOST_GROUPS]
    differing = differences([json.loads(key) for key in by_key])
    groups = []
    for place, members in enumerate(by_key.values()):
        words = [f"{name} {values[place] or MISSING}" for name, values in differing.items()]
        run = members[0].run
        groups.append(Group(key=run.id, name=", ".join(words)[:60] or run.name, members=members))
    return groups[:MOST_GROUPS]


def labels_of(groups: Sequence[Group]) -> list[str]:
    """Names of the lines; those of one name with the end of an id, or all of it where ends are
    alike."""
    named = Counter(group.name for group in groups)
    ids = [group.members[0].run.id for group in groups]
    short = [f"{group.name} {run_id[-6:]}" for group, run_id in zip(groups, ids, strict=True)]
    ends = Counter(short)
    labels = []
    for group, run_id, label in zip(groups, ids, short, strict=True):
        if named[group.name] == 1:
            labels.append(group.name)
        else:
            labels.append(label if ends[label] == 1 else f"{group.name} {run_id}")
    return labels


def _but_for_the_seed(config: Mapping[str, Any]) -> str:
    """A configuration without its seeds, and without folders and names that may have them."""
    kept = {name: value for name, value in flat(config).items() if not OF_A_SEED.search(name)}
    return json.dumps(kept, sort_keys=True)


async def newest_runs(client: AsyncClient, limit: int, **query: Any) -> list[RunSummary]:
    """Runs that the reader may see; who came by a link to one run may see no list."""
    try:
        return await client.newest(calls.runs(**query), limit)
    except ApiError as error:
        if error.status == 403:
            return []
        raise


async def seeds_of(client: AsyncClient, run: RunSummary) -> list[RunSummary]:
    """The runs of its project that differ from a run in the seed alone, the newest first; itself
    left out."""
    if not run.config:  # such runs may be of anything
        return []
    own = _but_for_the_seed(run.config)
    found = await newest_runs(client, SEEDS_AMONG, project=run.project or None, order="newest")
    alike = [
        other
        for other in found
        if other.project == run.project and _but_for_the_seed(other.config) == own
    ]
    return [other for other in alike if other.id != run.id][: MOST_GROUPED - 1]


async def read_seeds(
    client: AsyncClient, view: View, run: RunDetail, shown: Shown, points: int
) -> Shown:
    """What was read of a run; where the address says `group=seed`, with the mean and the range over
    all of its seeds."""
    others = []
    if view.query.get("group") == "seed" and shown.series:
        others = await seeds_of(client, run)

    async def series_of(other: RunSummary) -> Mapping[str, SeriesColumns]:
        known = {"from_step": shown.first, "to_step": shown.last, "points": points}
        try:
            return (await client.ask(calls.series(other.id, list(shown.series), **known))).series
        except ApiError as error:
            if error.status == 404:  # deleted, or it reported none of them
                return {}
            raise

    seeds = [shown.series, *await asyncio.gather(*map(series_of, others))]
    if not others:
        return shown
    means = {name: mean_of([seed.get(name, EMPTY) for seed in seeds]) for name in shown.series}
    return replace(shown, seeds=len(seeds), means=means)


async def read(client: AsyncClient, view: View) -> Values:
    """Charts and tables of the runs that the address names."""
    by = view.query.get("group", "none")
    ids = list(dict.fromkeys(view.runs))[: MOST_RUNS if by == "none" else MOST_GROUPED]
    panels = [metric_panel(name, HEIGHT, log=view.log) for name in chosen_metrics(view)]
    answers = await asyncio.gather(*(_read_run(client, run_id, panels, view) for run_id in ids))
    members = [run for run in answers if isinstance(run, Compared)]
    missing = [why for why in answers if isinstance(why, str)]
    groups = grouped(members, by)
    legend: Component = nothing(
        f"Choose up to {MOST_RUNS} runs above, or {MOST_GROUPED} to group",
        "The address keeps them: a link to it shows the same comparison.",
    )
    if ids:
        legend = _legend(groups, missing, view)
    values: dict[str, Any] = {
        "compare-legend": legend,
        **dict.fromkeys(("compare-charts", "compare-parameters", "compare-controls")),
    }
    if not members:
        return values
    hidden = listed_in(view, "hide")
    looks = looks_of([group.key for group in groups])
    runs = [
        replace(group.shown, look=look, label=label)
        for group, look, label in zip(groups, looks, labels_of(groups), strict=True)
        if group.key not in hidden
    ]
    if not runs:
        return values
    shown = Shown(
        scheme=view.scheme, scale=runs[0].scale, first=0, last=0, zoom=view.zoom, runs=runs
    )
    what = f"{len(runs)} groups"
    if by == "none":
        what = f"{len(runs)} runs"
    parameters, controls = _tables(groups, everything=view.query.get("all") == "on")
    return {
        **values,
        "compare-charts": [
            charts.panel_card(
                panel,
                chart=place_id("chart", panel.name),
                says=f"{panel.name} of {what} over steps",
                name="metric",
            )
            for panel in panels
        ],
        **{place_id("chart", panel.name): charts.figure(panel, shown) for panel in panels},
        "compare-parameters": parameters,
        "compare-controls": controls,
    }


def chosen_metrics(view: View) -> list[str]:
    return list(dict.fromkeys(view.metrics or map(str, AT_FIRST)))[:MOST_METRICS]


async def _read_run(
    client: AsyncClient, run_id: str, panels: Sequence[Panel], view: View
) -> Compared | str:
    """The run, or why it is not among those compared."""
    with Guard() as guard:
        return await _read(client, run_id, panels, view)
    if not isinstance(guard.error, ApiError):
        log_first(guard.error)
        return f"Run {run_id} can't be shown. {failure_in_words(guard.error)}"
    if guard.error.status == 404:
        return f"There is no run {run_id}: it was deleted, or the address is wrong."
    return f"Run {run_id} can't be read: {guard.error}"


async def _read(client: AsyncClient, run_id: str, panels: Sequence[Panel], view: View) -> Compared:
    run, history, latest = await asyncio.gather(
        client.ask(calls.run(run_id)),
        client.every(calls.control_history(run_id)),
        client.ask(calls.latest(run_id)),
    )
    reported = {item.name for item in latest.items}
    known = metrics.reported_names(reported)
    names = {
        panel.name: panel.name if panel.name in reported else known[metrics.METRICS[panel.name]]
        for panel in panels
        if panel.name in reported or metrics.METRICS.get(panel.name) in known
    }
    own = [metric_panel(name, HEIGHT) for name in names.values()]
    shown = await charts.read_shown(
        client, view, run, own, points=POINTS, is_live=False, label=run.name
    )
    series = {name: shown.columns(own) for name, own in names.items()}
    return Compared(run=run, history=history, shown=replace(shown, series=series))


def sample(look: int, view: View) -> html.Span:
    """A line, as the charts draw it."""
    color, dash = look_of(view.scheme, look)
    if dash == "solid":
        pattern = ""
    else:
        pattern = f"stroke-dasharray='{dash.replace('px', '')}'"
    line = f"<line x1='0' y1='4' x2='34' y2='4' stroke='{color}' stroke-width='2.5' {pattern}/>"
    drawing = quote(f"<svg xmlns='http://www.w3.org/2000/svg' width='34' height='8'>{line}</svg>")
    style = {"backgroundImage": f'url("data:image/svg+xml,{drawing}")'}
    return html.Span(className="sample", style=style, **{"aria-hidden": "true"})


def _legend(groups: Sequence[Group], missing: Sequence[str], view: View) -> Component:
    """What each line is; a click on its sample, or on the line, hides it."""
    hidden = listed_in(view, "hide")
    entries = []
    for group, look in zip(groups, looks_of([group.key for group in groups]), strict=True):
        is_hidden = group.key in hidden
        after, does, look_of_entry = [*hidden, group.key], "Hide", ""
        if is_hidden:
            after = [key for key in hidden if key != group.key]
            does, look_of_entry = "Show", "hidden-line"
        button = html.Button(
            sample(look, view),
            type="button",
            className="icon-button",
            title=does,
            **{
                "aria-label": f"Hide {group.name}",
                "aria-pressed": str(is_hidden).lower(),
                "data-line": group.key,
                "data-show": json.dumps({"hide": listed(after) if after else None}),
            },
        )
        entries.append(html.Li([button, *_about(group)], className=look_of_entry))
    left = len(dict.fromkeys(view.runs)) - MOST_RUNS
    if any(len(group.members) > 1 for group in groups):
        entries.append(
            html.Li(text("Line: mean of a group's runs. Band: lowest to highest of them.", "dim"))
        )
    elif left > 0 and view.query.get("group", "none") == "none":
        entries.append(
            html.Li(text(f"{left} more are not shown: group them by seed or tag.", "dim"))
        )
    entries += [html.Li([chip("Missing", "act", symbol="alert"), text(why)]) for why in missing]
    return html.Ul(entries, className="legend", **{"aria-label": "Compared runs"})


def _about(group: Group) -> list[Component]:
    if len(group.members) > 1:
        links = [
            html.A(
                member.run.id[-6:],
                href=address_of(member.run.id),
                className="mono dim",
                title=member.run.name,
            )
            for member in group.members
        ]
        return [text(group.name, "strong"), text(f"{len(group.members)} runs", "num dim"), *links]
    run = group.members[0].run
    return [
        html.A(group.name, href=address_of(run.id), className="strong"),
        text(run.id[-6:], "mono dim"),
        chip(run.status.capitalize(), "ok" if run.status == Status.RUNNING else ""),
        text(f"step {count(run.step)}", "num dim"),
    ]


def differences(
    configs: Sequence[Mapping[str, Any]], *, everything: bool = False
) -> dict[str, list[str | None]]:
    """The parameters that are not alike, each with its value in every configuration; None: not
    given."""
    flattened = [flat(config) for config in configs]
    names = dict.fromkeys(name for config in flattened for name in config)
    rows = {name: [config.get(name) for config in flattened] for name in names}
    return {name: values for name, values in rows.items() if everything or len(set(values)) > 1}


def _tables(groups: Sequence[Group], *, everything: bool) -> tuple[Component, Component]:
    """Parameters, of a group all values that its runs have; and controls, where no line stands for
    several runs."""
    configs = [_joined([member.run.config for member in group.members]) for group in groups]
    rows = differences(configs, everything=everything)
    parameters = html.P("No run was started with config=.", className="dim")
    if rows:
        parameters = _table(groups, "Parameter", rows)
    elif any(configs):
        parameters = html.P("All parameters are alike.", className="dim")
    if any(len(group.members) > 1 for group in groups):
        return parameters, html.P("Shown where runs are not grouped.", className="dim")
    histories = [group.members[0].history for group in groups]
    versions = sorted({item.version for history in histories for item in history}, reverse=True)
    controls = {
        f"v{number}": [_control(history, number) for history in histories] for number in versions
    }
    return parameters, _table(groups, "Version", controls)


def _joined(configs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    values: dict[str, dict[str, None]] = {}
    for config in configs:
        for name, value in flat(config).items():
            values.setdefault(name, {})[value] = None
    return {name: ", ".join(texts) for name, texts in values.items()}


def _control(history: Sequence[ControlVersion], number: int) -> Component | None:
    item = next((item for item in history if item.version == number), None)
    if item is None:
        return None
    if item.applied_step is not None:
        where = f"from step {count(item.applied_step)}"
    else:
        where = item.state.lower()
    change = describe(item.control, previous_control(item, history))
    return html.Span([change, text(f" · {where}", "dim")])


def _table(groups: Sequence[Group], first: str, rows: Mapping[str, Sequence[Any]]) -> Component:
    heads: list[Any] = [first]
    for group in groups:
        words = group.members[0].run.id[-6:]
        if len(group.members) > 1:
            words = f"{len(group.members)} runs"
        heads.append([group.name, " ", text(words, "mono")])
    cells = [[name, *(_cell(value) for value in values)] for name, values in rows.items()]
    return wide_table(table(heads, cells, "parameters plain"), f"{first}s by run")


def _cell(value: Component | str | None) -> Component:
    if value is None:
        return text(MISSING, "dim")
    if isinstance(value, str):
        return text(value)
    return value


async def layout(_client: AsyncClient, view: View) -> Component:
    everything = "off"
    if view.query.get("all") == "on":
        everything = "on"
    switch = choice("all", [("off", "What differs"), ("on", "All")], everything, "Parameters shown")
    return html.Div(
        [
            html.Div(id="compare-legend"),
            html.Div(id="compare-charts", className="metric-charts two"),
            card(
                html.Div(id="compare-parameters"),
                title="Configuration",
                beside=switch,
                name="padded compared-table",
            ),
            card(html.Div(id="compare-controls"), title="Control", name="padded compared-table"),
        ],
        className="stack",
    )


PART = Part(
    name="compare",
    read=read,
    layout=layout,
    watches=lambda view: map(calls.run, view.runs),
)


async def compare_page(client: AsyncClient, view: View) -> tuple[Component, str]:
    part, runs, names = await asyncio.gather(
        PART.component(client, view),
        _offered_runs(client, view.runs, ""),
        _offered_metrics(client, view),
    )
    shared: dict[str, Any] = {
        "searchable": True,
        "hidePickedOptions": True,
        "size": "xs",
        "nothingFoundMessage": "Nothing found",
    }
    which = dmc.MultiSelect(
        id={"param": "run"},
        data=runs,
        value=list(view.runs)[:MOST_GROUPED],
        maxValues=MOST_GROUPED,
        placeholder="Search runs",
        **shared,
        **{"aria-label": f"Runs, at most {MOST_GROUPED}"},
    )
    what = dmc.MultiSelect(
        id={"param": "metric"},
        data=names,
        value=chosen_metrics(view),
        maxValues=MOST_METRICS,
        placeholder="Search metrics",
        **shared,
        **{"aria-label": f"Metrics, at most {MOST_METRICS}"},
    )
    group = choice("group", GROUPS, view.query.get("group", "none"), "What is one line")
    looks = row(group, *charts.looks(view, log=True), name="tools")
    heading = row(html.H2("Compare", className="page-title"), spacer(), looks, name="compare-head")
    return (
        header.page(
            "Compare runs", heading, html.Div([which, what], className="choose"), part, here=PATH
        ),
        "Compare · Isentrope",
    )


async def _offered_runs(
    client: AsyncClient, chosen: Sequence[str], wanted: str
) -> list[dict[str, str]]:

    async def named(run_id: str) -> RunSummary | str:
        try:
            return await client.ask(calls.run(run_id))
        except ApiError:
            return run_id

    found = await client.newest(calls.runs(q=wanted or None), OFFERED)
    labels: dict[str, str] = {}
    for run in [*await asyncio.gather(*map(named, chosen)), *found]:
        if isinstance(run, str):
            labels[run] = f"{run} (missing)"
        else:
            labels[run.id] = f"{run.name} · {run.id[-6:]}"
    return [{"value": run_id, "label": label} for run_id, label in labels.items()]


async def _offered_metrics(client: AsyncClient, view: View) -> list[str]:
    async def names(run_id: str) -> list[str]:
        try:
            return [item.name for item in (await client.ask(calls.latest(run_id))).items]
        except ApiError:
            return []

    offered = await asyncio.gather(*map(names, view.runs[:MOST_RUNS]))
    return sorted({*chosen_metrics(view), *chain.from_iterable(offered)})


def register(app: Dash, api: Api) -> None:
    """Search runs on the server, and offer the metrics of the chosen runs."""
    runs, names = {"param": "run"}, {"param": "metric"}

    @api.callback(app, Output(runs, "data"), Input(runs, "searchValue"))
    async def search(client: AsyncClient, view: View, wanted: str | None) -> Any:
        # The picked run's own label is the search text for a moment.
        return await _offered_runs(client, view.runs, (wanted or "").split(" · ")[0])

    @api.callback(app, Output(names, "data"), Input(runs, "value"))
    async def offer(client: AsyncClient, view: View, chosen: list[str]) -> Any:
        return await _offered_metrics(
            client, View(query=view.query, runs=tuple(chosen), metrics=view.metrics)
        )
