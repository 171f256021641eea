"""What stands in a run page at one moment, as component id -> properties.

The first paint, the live stream and the slow fallback all take it from here, so that they can't disagree.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.components.control_panel import control_props, dead_knobs_props, method_props
from isentrope_dashboard.components.diagnosis import diagnosis_props
from isentrope_dashboard.components.hold_facts import hold_props
from isentrope_dashboard.components.kpi_cards import kpi_props
from isentrope_dashboard.components.law_facts import law_facts
from isentrope_dashboard.components.record_line import record_props
from isentrope_dashboard.components.status_line import status_props
from isentrope_dashboard.components.unread import unread_props
from isentrope_dashboard.control_changes import history_rows, markers
from isentrope_dashboard.controls import ControlItem, ControlState
from isentrope_dashboard.figures import change_split
from isentrope_dashboard.figures.change_split import change_split_figure
from isentrope_dashboard.figures.entropy import entropy_figure, holes_of
from isentrope_dashboard.figures.law import law_figure
from isentrope_dashboard.figures.marker_labels import ControlMarker
from isentrope_dashboard.figures.score_distribution import score_distribution_figure
from isentrope_dashboard.foreseen import EVIDENCE
from isentrope_dashboard.formatting import MISSING, number, percent
from isentrope_dashboard.hold_preview import STEERING_METRICS
from isentrope_dashboard.holding import holding, with_band
from isentrope_dashboard.predictions import Law
from isentrope_dashboard.record_health import record_health
from isentrope_dashboard.records import HistogramColumns, RecordGap, RunSnapshot, StepRow, View
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
