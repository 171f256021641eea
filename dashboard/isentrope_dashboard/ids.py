"""Every component id of the pages, so that a typing mistake is an AttributeError and not a callback that never fires."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

URL: Final = "url"
PAGE: Final = "page"
PAGE_READY: Final = "page-ready"
SCHEME: Final = "color-scheme"
NOTIFICATIONS: Final = "notifications"
TICK: Final = "tick"
BEAT: Final = "beat"
RUNS_POLL: Final = "runs-poll"
QUESTION: Final = "question"
NEWS: Final = "news"
SLOW_QUESTION: Final = "slow-question"
SLOW_NEWS: Final = "slow-news"
SHOWN: Final = "shown"
CONNECTION: Final = "connection"
VIEW: Final = "view"
TEMPLATES: Final = "plotly-templates"
NAVIGATED: Final = "navigated"

RUNS_GRID: Final = "runs-grid"
RUNS_COUNT: Final = "runs-count"

RUN_SELECT: Final = "run-select"
RUN_STATUS: Final = "run-status"
RUN_STEP: Final = "run-step"
RUN_PROGRESS: Final = "run-progress"
STEP_SECONDS: Final = "step-seconds"
REPORT_AGE: Final = "report-age"
LAST_REPORT: Final = "last-report"
TITLE: Final = "document-title"

WINDOW: Final = "window"
ENTROPY_GRAPH: Final = "entropy-graph"
PREDICTION_QUALITY: Final = "prediction-quality"
HOLD_FACTS: Final = "hold-facts"
SCORE_GRAPH: Final = "score-graph"
SCORE_SUBTITLE: Final = "score-subtitle"
SPLIT_GRAPH: Final = "split-graph"
SPLIT_SUBTITLE: Final = "split-subtitle"
SPLIT_VIEW: Final = "split-view"
ALERTS: Final = "alerts"
TOKENS: Final = "tokens"
TOKENS_SUBTITLE: Final = "tokens-subtitle"

WHAT_IF: Final = "what-if"
WHAT_IF_GRAPH: Final = "what-if-graph"
WHAT_IF_READING: Final = "what-if-reading"
WHAT_IF_QUESTION: Final = "what-if-question"
WHAT_IF_STEP: Final = "what-if-step"

METRICS_PANEL: Final = "metrics-panel"
METRICS_CHOICE: Final = "metrics-choice"
METRICS_GRAPH: Final = "metrics-graph"
METRICS_GRID: Final = "metrics-grid"
METRICS_FILTER: Final = "metrics-filter"
RECORD: Final = "record"
RECORD_GAPS: Final = "record-gaps"
KPI_CARDS: Final = "kpi-cards"

COMPARE_BUTTON: Final = "compare-button"
COMPARE_RUNS: Final = "compare-runs"
COMPARE_METRICS: Final = "compare-metrics"
COMPARE_GRAPH: Final = "compare-graph"
COMPARE_TABLE: Final = "compare-table"
COMPARE_SUBTITLE: Final = "compare-subtitle"
COMPARE_POLL: Final = "compare-poll"

LAW_GRAPH: Final = "law-graph"
LAW_FACTS: Final = "law-facts"

CONTROL: Final = "control"
CONTROL_BASE: Final = "control-base"
CONTROL_BADGE: Final = "control-badge"
CONTROL_PROGRESS: Final = "control-progress"
CONTROL_HINT: Final = "control-hint"
DEAD_KNOBS: Final = "dead-knobs"
METHOD: Final = "control-method"
METHOD_RUNNING: Final = "control-method-running"
SCOPE: Final = "control-scope"
SCOPE_RUNNING: Final = "control-scope-running"
METHOD_FORMS: Final = "method-forms"
METHOD_PRESETS: Final = "method-presets"
HOLD: Final = "hold"
HOLD_SWITCH: Final = "hold-switch"
HOLD_RUNNING: Final = "hold-running"
HOLD_FIELDS: Final = "hold-fields"
HOLD_TARGET: Final = "hold-target"
HOLD_CHANGE: Final = "hold-change"
HOLD_MU_MIN: Final = "hold-mu-min"
HOLD_MU_MAX: Final = "hold-mu-max"
HOLD_SIDE: Final = "hold-side"
HOLD_GUARD: Final = "hold-guard"
WOULD_BE_DEAD: Final = "control-would-be-dead"
REASON: Final = "control-reason"
MU_LOW: Final = "mu-low"
MU_HIGH: Final = "mu-high"
PUSH: Final = "control-push"
RESET: Final = "control-reset"

HISTORY_GRID: Final = "history-grid"
HISTORY_EXPORT: Final = "history-export"

FIGURES: Final = (ENTROPY_GRAPH, SCORE_GRAPH, SPLIT_GRAPH, WHAT_IF_GRAPH, LAW_GRAPH, METRICS_GRAPH, COMPARE_GRAPH)


def drawing(graph: str) -> str:
    """Id of the store from which the browser draws one chart."""
    return f"{graph}-drawing"


def drawn(graph: str) -> str:
    """Id of the store with the number of the drawing that the chart shows."""
    return f"{graph}-drawn"


def load_error(place: str) -> str:
    """Id of the note shown where something failed to load."""
    return f"{place}-load-error"


def kpi(name: str, part: str) -> str:
    """Id of one part (`value`, `delta`, `reference`, `spark`) of one card."""
    return f"kpi-{name}-{part}"


def parameter(method: str, name: str) -> dict[str, str]:
    """Id of the field of one parameter of one method; `"ALL"` patterns match on it."""
    return {"type": "parameter", "method": method, "name": name}


def preset(method: str, name: str) -> dict[str, str]:
    """Id of the button that fills one preset of one method in."""
    return {"type": "preset", "method": method, "name": name}


def edit_mark(method: str, field: str) -> dict[str, str]:
    """Id of one field of the form with its mark; `method` is empty but for the method's own parameters."""
    return {"type": "edit-mark", "method": method, "field": field}


def edit_note(method: str, field: str) -> dict[str, str]:
    """Id of the words of the mark."""
    return {"type": "edit-note", "method": method, "field": field}


def revert(method: str, field: str) -> dict[str, str]:
    """Id of the button that takes one field back to the active control."""
    return {"type": "revert", "method": method, "field": field}


def parameters_of(method: str) -> dict[str, str]:
    """Id of the group of one method's fields."""
    return {"type": "parameters-of", "method": method}


def threshold(side: str, part: str) -> str:
    """Id of one part (`slider`, `number`, `switch`, `running`) of one threshold; `side` is MU_LOW or MU_HIGH."""
    return f"{side}-{part}"


def run_of_path(path: str | None) -> str | None:
    """The run a page's address names; None for any other address."""
    if not path or not path.startswith(_RUN_PREFIX):
        return None
    return unquote(path.removeprefix(_RUN_PREFIX)).strip("/") or None


_RUN_PREFIX = "/runs/"
