"""One run at /runs/<id>: status, numbers, charts, control and its history. Empty until content is filled in."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.all_metrics import all_metrics
from isentrope_dashboard.components.control_panel import control_panel
from isentrope_dashboard.components.diagnosis import diagnosis_columns
from isentrope_dashboard.components.history_grid import history_grid
from isentrope_dashboard.components.hold_facts import hold_facts
from isentrope_dashboard.components.kpi_cards import kpi_cards
from isentrope_dashboard.components.panel import chart, panel, score_symbol
from isentrope_dashboard.components.record_line import record_line
from isentrope_dashboard.components.shell import page, slow_interval
from isentrope_dashboard.components.status_line import freshness, run_options, status_line
from isentrope_dashboard.components.unread import or_unread, unread_note
from isentrope_dashboard.figures import change_split, entropy, law, score_distribution
from isentrope_dashboard.pages.run_content import Props, snapshot_props
from isentrope_dashboard.records import RunSnapshot, RunSummary, View


def run_page(snapshot: RunSnapshot, runs: list[RunSummary], view: View, runs_unread: str = "") -> dmc.AppShell:
    """The page of one run with everything filled in.

    Args:
        runs: those that can be chosen instead.
        runs_unread: why these could not be read, if they could not.
    """
    built = _layout(snapshot)
    content = snapshot_props(snapshot, view)
    content[ids.RUN_SELECT] = {"data": run_options(runs, snapshot.run, runs_unread), "value": snapshot.run.id}
    fill_in(built, content)
    return built


def fill_in(component: Any, content: Props) -> None:
    """Set the properties of the components inside `component` before it is sent."""
    for component_id, properties in content.items():
        for name, value in properties.items():
            setattr(component[component_id], name, value)


def _layout(snapshot: RunSnapshot) -> dmc.AppShell:
    run = snapshot.run
    forms = [form for form in snapshot.methods if form.method in run.methods]
    unseen = [dcc.Store(id=ids.VIEW), dcc.Store(id=ids.LAST_REPORT), slow_interval(ids.RUN_POLL)]
    grid = dmc.Grid(
        [
            dmc.GridCol(_entropy_and_law(), span={"base": 12, "lg": 8.6}),
            dmc.GridCol(control_panel(forms), span={"base": 12, "lg": 3.4}),
            dmc.GridCol(_score_panel(), span={"base": 12, "md": 6.6}),
            dmc.GridCol(_split_panel(), span={"base": 12, "md": 5.4}),
            *diagnosis_columns(),
            dmc.GridCol(all_metrics(run.id), span=12),
            dmc.GridCol(history_grid(), span=12),
        ],
        gutter="md",
        mt="md",
    )
    record = or_unread(ids.RECORD, unread_note(ids.RECORD_GAPS), record_line())
    return page(
        f"Run {run.name}",
        [*unseen, or_unread(ids.KPI_CARDS, kpi_cards()), record, grid],
        left=status_line(),
        right=freshness(),
    )


def _entropy_panel() -> dmc.Card:
    window = dmc.SegmentedControl(
        id=ids.WINDOW,
        data=[{"value": value, "label": value.capitalize()} for value in ("200", "500", "all")],
        value="all",
        size="xs",
        **{"aria-label": "Steps shown"},
    )
    quality = dmc.Text(id=ids.PREDICTION_QUALITY, size="xs", c="dimmed", className="quality num")
    body = dmc.Box(
        [
            quality,
            hold_facts(),
            unread_note(ids.ENTROPY_GRAPH),
            chart(ids.ENTROPY_GRAPH, entropy.HEIGHT, "Entropy over steps, with predicted and observed change below"),
        ]
    )
    subtitle = "Policy entropy; below, the calibrated prediction of ΔH against the change observed on the same tokens"
    return panel("Entropy", subtitle, body, aside=window, stretched=True)


def _entropy_and_law() -> dmc.Stack:
    """Side by side with the controls: the entropy takes what height is left."""
    return dmc.Stack([html.Div(_entropy_panel(), className="filling"), html.Div(_law_panel())], gap="md", h="100%")


def _law_panel() -> dmc.Card:
    body = html.Div(
        [
            unread_note(ids.LAW_GRAPH),
            chart(
                ids.LAW_GRAPH, law.HEIGHT, "Reward against entropy, with the fitted law and its ceiling", grows=False
            ),
            html.Div([], id=ids.LAW_FACTS, className="law-facts"),
        ],
        className="law",
    )
    return panel("Reward against entropy", "What the law R = −a·exp(H) + b says of the entropy that is left", body)


def _score_panel() -> dmc.Card:
    height = score_distribution.HEIGHT
    drawn = chart(ids.SCORE_GRAPH, height, "Distribution of the centred score over steps", grows=False)
    body = or_unread(ids.SCORE_GRAPH, drawn)
    return panel([*score_symbol(), " distribution"], "", body, subtitle_id=ids.SCORE_SUBTITLE)


def _split_panel() -> dmc.Card:
    drawn = chart(ids.SPLIT_GRAPH, change_split.HEIGHT, "Unit prediction, split into its parts", grows=False)
    view = dmc.SegmentedControl(
        id=ids.SPLIT_VIEW,
        data=[{"value": "quadrant", "label": "Quadrant"}],
        value="quadrant",
        size="xs",
        **{"aria-label": "Split by"},
    )
    return panel("ΔH split", "", or_unread(ids.SPLIT_GRAPH, drawn), aside=view, subtitle_id=ids.SPLIT_SUBTITLE)
