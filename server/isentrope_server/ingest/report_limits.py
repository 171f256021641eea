"""How much one report and one run may hold: enough for every training, too little to fill a disk with names."""

from __future__ import annotations

from collections.abc import Iterator

from isentrope_wire.messages import StepReport

SCALARS = 5_000
HISTOGRAMS = 500
HISTOGRAM_BINS = 4_096
LABELS = 500
LABEL_CHARACTERS = 10_000
TOKENS = 1_000
ALERTS = 500
OUTCOMES = 10_000
STREAMS_OF_A_RUN = 65_536
"""Ranks times incarnations."""


def excess(report: StepReport) -> str:
    """What a report has too much of, in words; empty where nothing."""
    return next(
        (f"{count} {what}, at most {limit} are taken" for what, count, limit in _counts(report) if count > limit), ""
    )


def _counts(report: StepReport) -> Iterator[tuple[str, int, int]]:
    yield "scalars", len(report.scalars), SCALARS
    yield "histograms", len(report.histograms), HISTOGRAMS
    yield "bins of a histogram", max((len(h.counts) for h in report.histograms), default=0), HISTOGRAM_BINS
    yield "labels", len(report.labels), LABELS
    yield "characters in a label", max(map(len, report.labels.values()), default=0), LABEL_CHARACTERS
    yield "tokens", len(report.tokens), TOKENS
    yield "alerts", len(report.alerts), ALERTS
    yield "control outcomes", len(report.outcomes), OUTCOMES
