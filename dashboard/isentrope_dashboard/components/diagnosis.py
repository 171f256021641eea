"""Alerts with their reasons, the top contributing tokens, and whether the record is complete: all text, no markup."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.components.load_errors import or_load_error
from isentrope_dashboard.components.panel import panel, scrolling
from isentrope_dashboard.figures.lines import MissingSteps
from isentrope_dashboard.formatting import MISSING, count, describe, number, seconds
from isentrope_wire.answers import Alert, Gap, LatestMetric, TopToken, TopTokens
from isentrope_wire.control import Control
from isentrope_wire.metrics import (
    PROBE_ACCEPTED_REPORTS,
    PROBE_ACKNOWLEDGED_RECORDS,
    PROBE_ATTACHMENT_FAILURES,
    PROBE_DELIVERY_LAG_SECONDS,
    PROBE_DROPPED_REPORTS,
    PROBE_FAILED_RANKS,
    PROBE_FAILURES,
    PROBE_LEFT_OUT_REPORTS,
    PROBE_RANKS_OUT_OF_STEP,
    PROBE_SPOOLED_RECORDS,
)
from isentrope_wire.reports import AlertLevel

_HEAD = ["token", "id", "row", "position", "p", "H", "S_c", "A", "−u S_c", "gradient"]
_KINDS = {
    "collapse": "Entropy collapse",
    "explosion": "Entropy explosion",
    "self_check": "Self-check failed",
    "prediction": "Prediction not trusted",
    "dead_knob": "Dead knob",
    "zero_advantage": "Few advantages",
    "not_finite": "Numbers not finite",
    "left_out": "Parts of reports dropped",
}


def diagnosis_columns() -> list[dmc.GridCol]:
    """Two cards, empty."""
    table = dmc.Table(id=ids.TOKENS, data={"head": [], "body": []}, striped=True, className="num")
    return [
        dmc.GridCol(
            panel(
                "Alerts",
                "What the probe noticed in the newest steps",
                or_load_error(ids.ALERTS, html.Div([], id=ids.ALERTS)),
            ),
            span={"base": 12, "lg": 4},
        ),
        dmc.GridCol(
            panel(
                "Top contributing tokens",
                "",
                or_load_error(ids.TOKENS, scrolling(table, "Top contributing tokens", 640)),
                subtitle_id=ids.TOKENS_SUBTITLE,
            ),
            span={"base": 12, "lg": 8},
        ),
    ]


def diagnosis_props(alerts: Sequence[Alert], tokens: TopTokens) -> dict[str, dict[str, Any]]:
    """Component id -> properties of both."""
    head = _HEAD if tokens.items else []
    of_step = "" if tokens.step is None else f", step {tokens.step:,}"
    subtitle = (
        f"Largest by size of u S_c, u the strength the loss gives them{of_step}; nats"
        if tokens.items
        else "The newest report has none"
    )
    return {
        ids.ALERTS: {"children": [_alert(row) for row in alerts] or dmc.Text("None so far", size="sm")},
        ids.TOKENS: {"data": {"head": head, "body": [_cells(row) for row in tokens.items]}},
        ids.TOKENS_SUBTITLE: {"children": subtitle},
    }


def visible(text: str | None) -> str:
    """Text with every character visible: what is not printable, or turns the reading direction, by its number."""
    if text is None:
        return MISSING
    shown = "".join(c if c.isprintable() and c != " " else "␣" if c == " " else f"\\u{ord(c):04x}" for c in text)
    return shown or "(empty)"


_COLORS = {AlertLevel.WATCH: "yellow", AlertLevel.ACT: "orange"}


def _alert(row: Alert) -> dmc.Alert:
    level = str(row.level).capitalize()
    title = f"{level}: {_KINDS.get(row.kind, row.kind)}, step {row.step:,}"
    lines = [row.message]
    if row.cause is not None:
        lines.append(row.cause.message)
    if row.suggestion is not None:
        lines.append(f"Suggested control: {describe(Control.from_document(row.suggestion), None)}.")
    texts = [dmc.Text(line, size="sm") for line in lines]
    return dmc.Alert(texts, title=title, color=_COLORS[row.level], variant="light", mb="xs")


def _cells(row: TopToken) -> list[str]:
    probability = math.exp(min(row.logprob, 0.0))
    return [
        visible(row.text),
        *(MISSING if value is None else f"{value}" for value in (row.token_id, row.sequence, row.position)),
        number(probability, 4),
        number(row.entropy),
        number(row.vocab_centered_score, 4, signed=True),
        number(row.advantage, signed=True),
        number(row.contribution, 4, signed=True),
        "kept" if row.kept else "clipped",
    ]


MOST_GAPS = 3
LONG_LAG_SECONDS = 30.0
"""Far beyond the seconds between two pushes of a shipper whose server answers."""
_LOSSES: Mapping[str, str] = {
    PROBE_DROPPED_REPORTS: "dropped by the probe",
    PROBE_LEFT_OUT_REPORTS: "reports written without tokens or histograms",
    PROBE_FAILURES: "failures inside the probe",
    PROBE_FAILED_RANKS: "ranks failed",
    PROBE_RANKS_OUT_OF_STEP: "ranks out of step",
    PROBE_ATTACHMENT_FAILURES: "failures of the attachment",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHealth:
    """Each a short phrase."""

    facts: Sequence[str]
    """Counts that are in order."""
    problems: Sequence[str]
    """What is lost, late or wrong."""


def record_health(
    latest: Mapping[str, LatestMetric], missing: Sequence[MissingSteps], gaps: Sequence[Gap]
) -> RecordHealth:
    """How complete the record is.

    Args:
        latest: The newest value of every metric, by name.
        missing: Steps that are missing among those shown.
        gaps: Records that were lost, with reasons.
    """
    numbers = {name: known.value for name, known in latest.items() if math.isfinite(known.value)}
    accepted, spooled = numbers.get(PROBE_ACCEPTED_REPORTS), numbers.get(PROBE_SPOOLED_RECORDS)
    acknowledged = numbers.get(PROBE_ACKNOWLEDGED_RECORDS)
    facts: list[str] = []
    problems: list[str] = []
    if accepted is not None:
        facts.append(f"{count(int(accepted))} reports accepted")
    if spooled is not None and acknowledged is not None:
        facts.append(f"{count(int(spooled))} records written, {count(int(acknowledged))} acknowledged")
    lag = numbers.get(PROBE_DELIVERY_LAG_SECONDS)
    if lag is not None:
        waiting = f"oldest waiting {seconds(lag)}" if lag else "nothing waiting"
        (problems if lag > LONG_LAG_SECONDS else facts).append(waiting)
    problems += [f"{what}: {count(int(numbers[name]))}" for name, what in _LOSSES.items() if numbers.get(name)]
    problems += _missing_steps(missing)
    problems += [f"{_records(gap)} lost: {gap.reason}" for gap in gaps[:MOST_GAPS]]
    if len(gaps) > MOST_GAPS:
        problems.append(f"and {count(len(gaps) - MOST_GAPS)} more gaps")
    return RecordHealth(facts=facts, problems=problems)


def _records(gap: Gap) -> str:
    lost = gap.last_seq - gap.first_seq + 1
    return f"{count(lost)} record{'s' * (lost != 1)}"


def _missing_steps(missing: Sequence[MissingSteps]) -> list[str]:
    if not missing:
        return []
    newest = missing[-1]
    where = f"step {newest.first:,}" if newest.count == 1 else f"steps {newest.first:,} to {newest.last:,}"
    if len(missing) == 1:
        return [f"{where} without data"]
    return [f"{count(sum(gap.count for gap in missing))} steps without data, the newest {where}"]


def record_line() -> html.Div:
    """The line, empty."""
    return html.Div([], id=ids.RECORD, className="record num")


def record_props(health: RecordHealth) -> dict[str, dict[str, Any]]:
    """Component id -> properties. Problems come first, in colour."""
    complete = not health.problems
    badge = dmc.Badge(
        "Record complete" if complete else "Record incomplete",
        variant="light",
        color="teal" if complete else "orange",
        size="sm",
        radius="sm",
        tt="none",
        className="unshrinking",
    )
    problems = [html.Span(text, className="warning") for text in health.problems]
    return {ids.RECORD: {"children": [badge, *problems, *(html.Span(text) for text in health.facts)]}}
