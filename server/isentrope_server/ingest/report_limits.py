"""How much a push, a report and a run may hold: enough for every training, too little to fill a disk with names."""

from __future__ import annotations

from collections.abc import Callable, Collection

from isentrope_wire.messages import StepReport
from isentrope_wire.run_limits import NAME_CHARACTERS

RECORDS_OF_A_PUSH = 1_000
"""A shipper sends 250 at most. All of a push is one piece of work for the writer, and everybody waits for it."""
SCALARS = 5_000
HISTOGRAMS = 500
HISTOGRAM_BINS = 4_096
LABELS = 500
LABEL_CHARACTERS = 10_000
TOKENS = 1_000
TOKEN_CHARACTERS = 1_000
ALERTS = 500
ALERT_NUMBERS = 500
OUTCOMES = 10_000
STREAMS_OF_A_RUN = 65_536
"""Ranks times incarnations."""


def excess(report: StepReport) -> str:
    """What a report has too much of, in words; empty where nothing."""
    for what, limit, count_of in _LIMITS:
        count = count_of(report)
        if count > limit:
            return f"{count} {what}, at most {limit} are taken"
    return ""


def _longest(texts: Collection[str]) -> int:
    # Most reports have none of most of these.
    return max(map(len, texts)) if texts else 0


_LIMITS: tuple[tuple[str, int, Callable[[StepReport], int]], ...] = (
    ("scalars", SCALARS, lambda report: len(report.scalars)),
    ("histograms", HISTOGRAMS, lambda report: len(report.histograms)),
    ("bins of a histogram", HISTOGRAM_BINS, lambda report: max([len(h.counts) for h in report.histograms], default=0)),
    ("labels", LABELS, lambda report: len(report.labels)),
    ("characters in a label", LABEL_CHARACTERS, lambda report: _longest(report.labels.values())),
    ("characters in a label's name", NAME_CHARACTERS, lambda report: _longest(report.labels)),
    ("tokens", TOKENS, lambda report: len(report.tokens)),
    ("characters of a token", TOKEN_CHARACTERS, lambda r: _longest([t.text or "" for t in r.tokens])),
    ("alerts", ALERTS, lambda report: len(report.alerts)),
    ("numbers of an alert", ALERT_NUMBERS, lambda report: max([len(a.evidence) for a in report.alerts], default=0)),
    (
        "characters in the name of an alert's number",
        NAME_CHARACTERS,
        lambda report: _longest([name for alert in report.alerts for name in alert.evidence]),
    ),
    ("control outcomes", OUTCOMES, lambda report: len(report.outcomes)),
)
