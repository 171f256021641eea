"""Alerts with their reasons, and the tokens that counted most: all of it text, none of it markup.

One line that says whether the record is complete.

Whether what is shown is complete: what the probe lost, what is still on its way, and which steps are missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import html

from isentrope_dashboard import ids
from isentrope_dashboard.components.load_errors import or_unread
from isentrope_dashboard.components.panel import panel, scrolling
from isentrope_dashboard.diagnosis import AlertRow, CountedTokens, TokenRow
from isentrope_dashboard.figures.lines import MissingSteps
from isentrope_dashboard.formatting import MISSING, count, number, seconds
from isentrope_dashboard.records import LatestValue, RecordGap
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

_HEAD = ["token", "id", "row", "position", "p", "H", "S_c", "A", "−r A S_c", "gradient"]
_KINDS = {
    "collapse": "Collapse ahead",
    "explosion": "Explosion ahead",
    "self_check": "Self-check failed",
    "prediction": "Prediction not trusted",
    "dead_knob": "Dead knob",
    "zero_advantage": "Few advantages",
    "not_finite": "Numbers not finite",
    "left_out": "Parts left out",
}


def diagnosis_columns() -> list[dmc.GridCol]:
    """Two cards, to be filled in."""
    table = dmc.Table(id=ids.TOKENS, data={"head": [], "body": []}, striped=True, className="num")
    return [
        dmc.GridCol(
            panel(
                "Alerts",
                "What the probe thought a person should know",
                or_unread(ids.ALERTS, html.Div([], id=ids.ALERTS)),
            ),
            span={"base": 12, "lg": 4},
        ),
        dmc.GridCol(
            panel(
                "Tokens that counted most",
                "",
                or_unread(ids.TOKENS, scrolling(table, "Tokens that counted most", 640)),
                subtitle_id=ids.TOKENS_SUBTITLE,
            ),
            span={"base": 12, "lg": 8},
        ),
    ]


def diagnosis_props(alerts: Sequence[AlertRow], tokens: CountedTokens) -> dict[str, dict[str, Any]]:
    """The content of both."""
    head = _HEAD if tokens.rows else []
    of_step = "" if tokens.step is None else f", step {tokens.step:,}"
    subtitle = f"Largest by size of r A S_c{of_step}; nats" if tokens.rows else "The newest report names none"
    return {
        ids.ALERTS: {"children": [_alert(row) for row in alerts] or dmc.Text("None so far", size="sm")},
        ids.TOKENS: {"data": {"head": head, "body": [_cells(row) for row in tokens.rows]}},
        ids.TOKENS_SUBTITLE: {"children": subtitle},
    }


def visible(text: str | None) -> str:
    """Text with every character seen: what is not printable, or turns the reading direction, by its number."""
    if text is None:
        return MISSING
    shown = "".join(c if c.isprintable() and c != " " else "␣" if c == " " else f"\\u{ord(c):04x}" for c in text)
    return shown or "(empty)"


def _alert(row: AlertRow) -> dmc.Alert:
    title = f"{_KINDS.get(row.kind, row.kind)}, step {row.step:,}"
    return dmc.Alert(row.reason, title=title, color="orange", variant="light", mb="xs")


def _cells(row: TokenRow) -> list[str]:
    probability = None if row.probability_log is None else math.exp(min(row.probability_log, 0.0))
    return [
        visible(row.text),
        *(MISSING if value is None else f"{value}" for value in (row.token_id, row.sequence, row.position)),
        number(probability, 4),
        number(row.entropy),
        number(row.score, 4, signed=True),
        number(row.advantage, signed=True),
        number(row.contribution, 4, signed=True),
        "kept" if row.kept else "left out",
    ]


MOST_GAPS = 3
LONG_LAG_SECONDS = 30.0
"""Far beyond the seconds between two pushes of a shipper whose server answers."""
_LOSSES: Mapping[str, str] = {
    PROBE_DROPPED_REPORTS: "dropped by the probe",
    PROBE_LEFT_OUT_REPORTS: "written without tokens or histograms",
    PROBE_FAILURES: "failures inside the probe",
    PROBE_FAILED_RANKS: "ranks failed",
    PROBE_RANKS_OUT_OF_STEP: "ranks out of step",
    PROBE_ATTACHMENT_FAILURES: "failures of the attachment",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHealth:
    """In words, each a short phrase."""

    facts: Sequence[str]
    """Counts that are as they should be."""
    problems: Sequence[str]
    """What is lost, late or wrong; empty when all is well."""


def record_health(
    latest: Mapping[str, LatestValue], holes: Sequence[MissingSteps], gaps: Sequence[RecordGap]
) -> RecordHealth:
    """How complete the record is.

    Args:
        latest: the newest value of every metric.
        holes: steps that are missing among those shown.
        gaps: what the server was told is lost, with reasons.
    """
    numbers = {name: known.value for name, known in latest.items() if known.value is not None}
    accepted, spooled = numbers.get(PROBE_ACCEPTED_REPORTS), numbers.get(PROBE_SPOOLED_RECORDS)
    acknowledged = numbers.get(PROBE_ACKNOWLEDGED_RECORDS)
    facts: list[str] = []
    problems: list[str] = []
    if accepted is not None:
        facts.append(f"{count(int(accepted))} reports taken")
    if spooled is not None and acknowledged is not None:
        facts.append(f"{count(int(spooled))} records written, {count(int(acknowledged))} acknowledged")
    lag = numbers.get(PROBE_DELIVERY_LAG_SECONDS)
    if lag is not None:
        waiting = f"the oldest waits {seconds(lag)}" if lag else "nothing waits"
        (problems if lag > LONG_LAG_SECONDS else facts).append(waiting)
    problems += [f"{what}: {count(int(numbers[name]))}" for name, what in _LOSSES.items() if numbers.get(name)]
    problems += _missing(holes)
    problems += [f"{_records(gap)} lost: {gap.reason}" for gap in gaps[:MOST_GAPS]]
    if len(gaps) > MOST_GAPS:
        problems.append(f"and {count(len(gaps) - MOST_GAPS)} gaps more")
    return RecordHealth(facts=facts, problems=problems)


def _records(gap: RecordGap) -> str:
    lost = gap.last_seq - gap.first_seq + 1
    return f"{count(lost)} record{'s' * (lost != 1)}"


def _missing(holes: Sequence[MissingSteps]) -> list[str]:
    if not holes:
        return []
    newest = holes[-1]
    where = f"step {newest.first:,}" if newest.count == 1 else f"steps {newest.first:,} to {newest.last:,}"
    if len(holes) == 1:
        return [f"{where} without data"]
    return [f"{count(sum(hole.count for hole in holes))} steps without data, the newest {where}"]


def record_line() -> html.Div:
    """The line without words."""
    return html.Div([], id=ids.RECORD, className="record num")


def record_props(health: RecordHealth) -> dict[str, dict[str, Any]]:
    """Component id -> properties. What is wrong comes first, in colour."""
    whole = not health.problems
    badge = dmc.Badge(
        "Record complete" if whole else "Record incomplete",
        variant="light",
        color="teal" if whole else "orange",
        size="sm",
        radius="sm",
        tt="none",
        className="unshrinking",
    )
    problems = [html.Span(text, className="warning") for text in health.problems]
    return {ids.RECORD: {"children": [badge, *problems, *(html.Span(text) for text in health.facts)]}}
