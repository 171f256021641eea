"""One run at /runs/<id>: its layout, and its content as component id -> properties, for the first paint and each update."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import dcc, html

from isentrope_dashboard import ids
from isentrope_dashboard.components import load_errors
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
from isentrope_dashboard.components.load_errors import load_error_note, load_error_props, or_load_error
from isentrope_dashboard.components.metrics import all_metrics
from isentrope_dashboard.components.panel import chart, panel, score_symbol
from isentrope_dashboard.components.shell import freshness, page, run_options, status_line, status_props
from isentrope_dashboard.components.what_if import EVIDENCE, HOLD_EVIDENCE
from isentrope_dashboard.figures import change_split, entropy, law, scores
from isentrope_dashboard.figures.change_split import change_split_figure
from isentrope_dashboard.figures.entropy import entropy_figure, gaps_of
from isentrope_dashboard.figures.held_entropy import holding, with_band
from isentrope_dashboard.figures.law import law_figure
from isentrope_dashboard.figures.lines import EMPTY, StepRow
from isentrope_dashboard.figures.scores import score_distribution_figure
from isentrope_dashboard.formatting import MISSING, ControlMarker, history_rows, markers, number, percent
from isentrope_dashboard.pages.snapshot import NewestSteps, RunSnapshot, Shown, SlowParts, View
from isentrope_wire.answers import Gap, HistogramColumns, RunSummary
from isentrope_wire.control_answers import ControlVersion, EntropyPerformance, RunControl
from isentrope_wire.methods import METHODS
from isentrope_wire.metrics import (
    ENTROPY_GAIN,
    ENTROPY_INTERVAL_COVERAGE,
    ENTROPY_MEAN,
    ENTROPY_PREDICTION_R2,
    ENTROPY_PREDICTION_SIGN_AGREEMENT,
)

Props = dict[str, dict[str, Any]]

ENTROPY_STEPS = 5
"""Whose mean is taken as the present entropy: one step alone jitters."""


FAST_PARTS = frozenset({load_errors.SERIES, load_errors.RECENT, load_errors.LABELS, load_errors.HISTORY})
"""The parts that `snapshot_props` shows."""
SLOW_PARTS = frozenset(load_errors.PLACES.values()) - FAST_PARTS


def snapshot_props(snapshot: RunSnapshot, view: View) -> Props:
    """The newest steps, the entropy chart, the control. Builds figures: tens of milliseconds, so call it in a thread."""
    return {
        **method_props(snapshot.newest.run),
        **step_props(snapshot.newest, view),
        **entropy_props(snapshot, view),
        **control_and_history_props(snapshot.newest.run.control, snapshot.history),
        **load_error_props(snapshot.errors, FAST_PARTS),
    }


def step_props(newest: NewestSteps, view: View) -> Props:
    """What changes with every step, apart from the entropy chart, to which the step is appended."""
    run = newest.run
    return {
        **status_props(run, newest.recent),
        **kpi_props(newest.recent, newest.latest),
        **quality_props(newest.recent),
        **split_props(run.id, newest.recent, view),
        **dead_knobs_props(newest.labels.get("control/dead", "")),
        **hold_props(holding(run.control, newest.labels, newest.recent)),
    }


def slow_props(run_id: str, parts: SlowParts, view: View) -> Props:
    """The parts that are read less often. Builds figures, so call it in a thread."""
    shown_parts = SLOW_PARTS if parts.has_law else SLOW_PARTS - {load_errors.LAW}
    return {
        **score_props(run_id, parts.histograms, view),
        **record_props(record_health(parts.latest, gaps_of(parts.chart.series), parts.gaps)),
        **diagnosis_props(parts.alerts, parts.tokens),
        **newest_props(parts),
        **(law_props(run_id, parts.law) if parts.has_law else {}),
        **load_error_props(parts.errors, shown_parts),
    }


def newest_props(parts: SlowParts) -> Props:
    """What the page sends when it asks what a control would do."""
    scalars = {} if parts.report is None else parts.report.scalars
    recent = parts.chart.series.get(ENTROPY_MEAN, EMPTY).value[-ENTROPY_STEPS:]
    finite = [value for value in recent if math.isfinite(value)]
    return {
        ids.WHAT_IF_STEP: {
            "data": {
                "step": parts.step,
                "entropy": sum(finite) / len(finite) if finite else None,
                "scalars": {
                    name: scalars[name]
                    for name in (*EVIDENCE, *HOLD_EVIDENCE)
                    if math.isfinite(scalars.get(name, math.nan))
                },
            }
        }
    }


def revision(run_id: str, view: View) -> str:
    """While this stays the same, a chart keeps the reader's zoom."""
    return f"{run_id}:{view.window}"


def entropy_props(snapshot: RunSnapshot, view: View) -> Props:
    figure = entropy_figure(
        with_band(snapshot.chart.series, snapshot.history),
        _within(view, markers(snapshot.history), snapshot.newest.run.step),
        revision=revision(snapshot.newest.run.id, view),
        why_missing=_one_reason(snapshot.gaps),
    )
    return drawing(ids.ENTROPY_GRAPH, figure)


def _one_reason(gaps: Sequence[Gap]) -> str:
    """Why steps are missing, where all losses have one reason."""
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


def law_props(run_id: str, law: EntropyPerformance | None) -> Props:
    return {
        **drawing(ids.LAW_GRAPH, law_figure(law, revision=run_id)),
        ids.LAW_FACTS: {"children": law_facts(law)},
    }


def control_and_history_props(control: RunControl, history: Sequence[ControlVersion]) -> Props:
    return {**control_props(control, list(history)), ids.HISTORY_GRID: {"rowData": history_rows(history)}}


def quality_props(rows: Sequence[StepRow]) -> Props:
    """Quality of the calibrated prediction, as the probe last measured it."""
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
    """A chart to draw. The number differs from drawing to drawing, so that the page can wait until it is shown."""
    return {ids.drawing(graph): {"data": {"figure": figure.to_dict(), "number": uuid.uuid4().hex}}}


def _gain(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return MISSING if value is None else number(value)
    return f"{value:.3g}".replace("-", "−")


def _within(view: View, marks: list[ControlMarker], newest: int | None) -> list[ControlMarker]:
    if view.steps is None or newest is None:
        return marks
    return [mark for mark in marks if mark.step > newest - view.steps]


def run_page(
    snapshot: RunSnapshot, slow: SlowParts, runs: list[RunSummary], view: View, runs_error: str = ""
) -> dmc.AppShell:
    """The page of one run with everything filled in.

    Args:
        snapshot: What follows the run at once.
        slow: The parts that are read less often.
        runs: Those that can be chosen instead.
        view: What the reader looks at.
        runs_error: Why these failed to load, if they did.
    """
    run = snapshot.newest.run
    built = _layout(snapshot)
    content = {**snapshot_props(snapshot, view), **slow_props(run.id, slow, view)}
    content[ids.RUN_SELECT] = {"data": run_options(runs, run, runs_error), "value": run.id}
    content[ids.SHOWN] = {"data": asdict(Shown.of(snapshot, view))}
    content[ids.SLOW_NEWS] = {"data": {"failed": bool(slow.errors), "step": slow.step, "number": "", "props": {}}}
    fill_in(built, content)
    return built


def fill_in(component: Any, content: Props) -> None:
    """Set the properties of the components inside `component` before it is sent."""
    for component_id, properties in content.items():
        for name, value in properties.items():
            setattr(component[component_id], name, value)


def _layout(snapshot: RunSnapshot) -> dmc.AppShell:
    run = snapshot.newest.run
    forms = [method for name, method in METHODS.items() if name in run.methods]
    stores = (ids.VIEW, ids.LAST_REPORT, ids.SHOWN, ids.QUESTION, ids.NEWS, ids.SLOW_QUESTION, ids.SLOW_NEWS)
    unseen = [dcc.Store(id=store) for store in stores]
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
    record = or_load_error(ids.RECORD, load_error_note(ids.RECORD_GAPS), record_line())
    return page(
        f"Run {run.name}",
        [*unseen, or_load_error(ids.KPI_CARDS, kpi_cards()), record, grid],
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
            load_error_note(ids.ENTROPY_GRAPH),
            chart(ids.ENTROPY_GRAPH, entropy.HEIGHT, "Entropy over steps, with predicted and observed change below"),
        ]
    )
    subtitle = "Policy entropy; below, the calibrated prediction of ΔH against the change observed on the same tokens"
    return panel("Entropy", subtitle, body, aside=window, stretched=True)


def _entropy_and_law() -> dmc.Stack:
    """Beside the controls: the entropy takes the height that the fit leaves."""
    return dmc.Stack([html.Div(_entropy_panel(), className="filling"), html.Div(_law_panel())], gap="md", h="100%")


def _law_panel() -> dmc.Card:
    body = html.Div(
        [
            load_error_note(ids.LAW_GRAPH),
            chart(
                ids.LAW_GRAPH, law.HEIGHT, "Reward against entropy, with the fitted curve and its ceiling", grows=False
            ),
            html.Div([], id=ids.LAW_FACTS, className="law-facts"),
        ],
        className="law",
    )
    return panel("Reward against entropy", "R = −a·exp(H) + b fitted to the steps so far", body)


def _score_panel() -> dmc.Card:
    height = scores.HEIGHT
    drawn = chart(ids.SCORE_GRAPH, height, "Distribution of the centred score over steps", grows=False)
    body = or_load_error(ids.SCORE_GRAPH, drawn)
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
    return panel("ΔH split", "", or_load_error(ids.SPLIT_GRAPH, drawn), aside=view, subtitle_id=ids.SPLIT_SUBTITLE)
