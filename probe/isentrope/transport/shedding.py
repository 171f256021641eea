"""What a report goes without when the disk is full: the parts that cost most and matter least, first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum

from isentrope_wire.messages import Alert, StepReport

LEFT_OUT = "report/left_out"
"""The label of a report that lacks parts; its value names them."""


class Pressure(IntEnum):
    """How much reports have to go without. Scalars, labels, alerts and control outcomes always stay."""

    NONE = 0
    TOKENS = 1
    """Without the tokens that count most."""
    HISTOGRAMS = 2
    """Without what-if sums and histograms as well."""


_PARTS: Mapping[Pressure, Mapping[str, object]] = {
    Pressure.TOKENS: {"tokens": ()},
    Pressure.HISTOGRAMS: {"tokens": (), "what_if": None, "histograms": ()},
}
_WORDS = {
    Pressure.TOKENS: "the tokens that count most are left out of reports",
    Pressure.HISTOGRAMS: "histograms, what-if sums and the tokens that count most are left out of reports",
}


def parts_left_out(report: StepReport, pressure: Pressure) -> tuple[str, ...]:
    """The names of the parts that a report has and must go without."""
    return tuple(name for name, nothing in _PARTS.get(pressure, {}).items() if getattr(report, name) != nothing)


def lightened(report: StepReport, pressure: Pressure) -> StepReport:
    """The report without what the pressure takes; it says itself what that was."""
    left_out = parts_left_out(report, pressure)
    if not left_out:
        return report
    label = {LEFT_OUT: ", ".join(left_out)}
    return replace(
        report,
        tokens=(),
        what_if=None if "what_if" in left_out else report.what_if,
        histograms=() if "histograms" in left_out else report.histograms,
        labels={**report.labels, **label},
    )


def told(report: StepReport, pressure: Pressure, reason: str) -> StepReport:
    """The report with an alert that says what is left out from now on, and why."""
    alert = Alert(
        kind="left_out",
        reason=f"From step {report.step} on {_WORDS[pressure]}: {reason}. Make room on the disk the spool lies on.",
        evidence={"pressure": float(pressure)},
    )
    return replace(report, alerts=(*report.alerts, alert))
