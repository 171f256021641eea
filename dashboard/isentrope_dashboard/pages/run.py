"""One run at /runs/<id>: status, numbers, charts, control and its history. Empty until content is filled in.

What stands in a run page at one moment, as component id -> properties.

The first paint, the live stream and the slow fallback all take it from here, so that they can't disagree.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components.control_panel import control_panel, control_props, dead_knobs_props, method_props
from isentrope_dashboard.components.diagnosis import (
    diagnosis_columns,
    diagnosis_props,
    record_health,
    record_line,
    record_props,
)
from isentrope_dashboard.components.facts import hold_facts, hold_props, law_facts
from isentrope_dashboard.components.grids import history_grid
from isentrope_dashboard.components.kpi_cards import kpi_cards, kpi_props
from isentrope_dashboard.components.load_errors import or_unread, unread_note, unread_props
from isentrope_dashboard.components.metrics import all_metrics
from isentrope_dashboard.components.panel import chart, panel, score_symbol
from isentrope_dashboard.components.shell import freshness, page, run_options, slow_interval, status_line, status_props
from isentrope_dashboard.controls import ControlItem, ControlState
from isentrope_dashboard.figures import change_split, entropy, law, scores
from isentrope_dashboard.figures.change_split import change_split_figure
from isentrope_dashboard.figures.entropy import entropy_figure, holes_of
from isentrope_dashboard.figures.held_entropy import holding, with_band
from isentrope_dashboard.figures.law import law_figure
from isentrope_dashboard.figures.scores import score_distribution_figure
from isentrope_dashboard.foreseen import EVIDENCE
from isentrope_dashboard.formatting import MISSING, ControlMarker, history_rows, markers, number, percent
from isentrope_dashboard.hold_preview import STEERING_METRICS
from isentrope_dashboard.pages.snapshot import RunSnapshot, View
from isentrope_dashboard.predictions import Law
from isentrope_dashboard.records import HistogramColumns, RecordGap, RunSummary, StepRow
from isentrope_wire.metrics import (
    ENTROPY_GAIN,
    ENTROPY_INTERVAL_COVERAGE,
    ENTROPY_MEAN,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
)

Props = dict[str, dict[str, Any]]

ENTROPY_STEPS = 5
"""Whose mean is where the entropy stands: one step alone jitters."""


def snapshot_props(snapshot: RunSnapshot, view: View) -> Props:
    """Everything on the page. Builds three figures: tens of milliseconds, so call it in a thread."""
    return {
        **method_props(snapshot.run),
        **labels_props(snapshot),
        **record_line_props(snapshot),
        **status_props(snapshot.run, snapshot.recent),
        **kpi_props(snapshot.recent, snapshot.latest),
        **quality_props(snapshot.recent),
        **entropy_props(snapshot, view),
        **score_props(snapshot.run.id, snapshot.histograms, view),
        **split_props(snapshot.run.id, snapshot.recent, view),
        **law_props(snapshot.run.id, snapshot.law),
        **control_and_history_props(snapshot.control, snapshot.history),
        **diagnosis_props(snapshot.alerts, snapshot.tokens),
        **unread_props(snapshot.unread),
        **newest_props(snapshot),
    }


def labels_props(snapshot: RunSnapshot) -> Props:
    """What follows from the words of the newest report: knobs that could not act, and how a held entropy stands."""
    return {
        **dead_knobs_props(snapshot.labels.get("control/dead", "")),
        **hold_props(holding(snapshot.control, snapshot.labels, snapshot.recent)),
    }


def newest_props(snapshot: RunSnapshot) -> Props:
    """What the page asks about when it asks what a control would do."""
    rows = snapshot.recent
    newest = rows[-1].scalars if rows else {}
    recent = [row.scalars[ENTROPY_MEAN] for row in rows[-ENTROPY_STEPS:] if ENTROPY_MEAN in row.scalars]
    finite = [value for value in recent if math.isfinite(value)]
    return {
        ids.WHAT_IF_STEP: {
            "data": {
                "step": snapshot.run.step,
                "entropy": sum(finite) / len(finite) if finite else None,
                "scalars": {
                    name: newest[name]
                    for name in (*EVIDENCE, *STEERING_METRICS)
                    if math.isfinite(newest.get(name, math.nan))
                },
            }
        }
    }


def step_props(snapshot: RunSnapshot, view: View, last_report_at: float | None) -> Props:
    """What changes with every step, apart from the entropy chart, which grows instead of being drawn anew."""
    return {
        **status_props(snapshot.run, snapshot.recent, last_report_at),
        **kpi_props(snapshot.recent, snapshot.latest),
        **quality_props(snapshot.recent),
        **split_props(snapshot.run.id, snapshot.recent, view),
        **hold_props(holding(snapshot.control, snapshot.labels, snapshot.recent)),
    }


def revision(run_id: str, view: View) -> str:
    """While this stays the same, a chart keeps the reader's zoom."""
    return f"{run_id}:{view.window}"


def entropy_props(snapshot: RunSnapshot, view: View) -> Props:
    figure = entropy_figure(
        with_band(snapshot.series, snapshot.history),
        _within(view, markers(snapshot.history), snapshot),
        revision=revision(snapshot.run.id, view),
        why_missing=_one_reason(snapshot.gaps),
    )
    return drawing(ids.ENTROPY_GRAPH, figure)


def record_line_props(snapshot: RunSnapshot) -> Props:
    """Whether the record is complete."""
    return record_props(record_health(snapshot.latest, holes_of(snapshot.series), snapshot.gaps))


def _one_reason(gaps: Sequence[RecordGap]) -> str:
    """Why steps are missing, where all that is known to be lost was lost for one reason."""
    reasons = {gap.reason for gap in gaps}
    return reasons.pop() if len(reasons) == 1 else ""


def score_props(run_id: str, histograms: HistogramColumns, view: View) -> Props:
    figure = score_distribution_figure(histograms, revision=revision(run_id, view))
    window = f"last {view.steps} steps" if view.steps else "all steps"
    return {
        **drawing(ids.SCORE_GRAPH, figure),
        ids.SCORE_SUBTITLE: {"children": f"Share of tokens per bin, {window}; colour follows its square root"},
    }


def split_props(run_id: str, rows: Sequence[StepRow], view: View) -> Props:
    offered = change_split.views_of(rows)
    shown = view.split if view.split in offered else offered[0]
    steps = change_split.steps_measured(rows, shown)
    mean = f", mean of {steps} step{'s' * (steps > 1)} with data" if steps else ""
    return {
        **drawing(ids.SPLIT_GRAPH, change_split_figure(rows, shown, revision=f"{revision(run_id, view)}:{shown}")),
        ids.SPLIT_SUBTITLE: {"children": change_split.VIEWS[shown].subtitle + mean},
        ids.SPLIT_VIEW: {
            "data": [{"value": name, "label": change_split.VIEWS[name].name} for name in offered],
            "style": {} if len(offered) > 1 else {"display": "none"},
        },
    }


def law_props(run_id: str, law: Law) -> Props:
    return {
        **drawing(ids.LAW_GRAPH, law_figure(law, revision=run_id)),
        ids.LAW_FACTS: {"children": law_facts(law)},
    }


def control_and_history_props(control: ControlState | None, history: Sequence[ControlItem]) -> Props:
    return {**control_props(control, list(history)), ids.HISTORY_GRID: {"rowData": history_rows(history)}}


def quality_props(rows: Sequence[StepRow]) -> Props:
    """How far the calibrated prediction can be trusted, as the probe last measured it."""
    scalars: dict[str, float] = {}
    for row in rows:  # a loop may observe the change in every n-th step only
        scalars.update(row.scalars)
    facts = (
        ("R²", number(scalars.get(ENTROPY_PREDICTION_R2), 2)),
        ("sign agreement", percent(scalars.get(ENTROPY_PREDICTION_SIGN_AGREEMENT), 0)),
        ("inside the 90 % interval", percent(scalars.get(ENTROPY_INTERVAL_COVERAGE), 0)),
        ("gain", _gain(scalars.get(ENTROPY_GAIN))),
    )
    children: list[Any] = [html.Span("Prediction quality", className="quality-title")]
    for name, value in facts:
        children.append(html.Span([f"{name} ", html.Span(value, className="strong")]))
    return {ids.PREDICTION_QUALITY: {"children": children}}


def drawing(graph: str, figure: go.Figure) -> Props:
    """A chart to draw anew. The number tells one drawing from the next, so that one can wait until it is shown."""
    return {ids.drawing(graph): {"data": {"figure": figure.to_dict(), "number": uuid.uuid4().hex}}}


def _gain(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return MISSING if value is None else number(value)
    return f"{value:.3g}".replace("-", "−")


def _within(view: View, marks: list[ControlMarker], snapshot: RunSnapshot) -> list[ControlMarker]:
    if view.steps is None or snapshot.run.step is None:
        return marks
    return [mark for mark in marks if mark.step > snapshot.run.step - view.steps]


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
    height = scores.HEIGHT
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
