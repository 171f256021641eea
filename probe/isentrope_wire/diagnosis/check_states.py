"""Where each check of a run stands: it found something, found what follows from another cause,
found nothing, judges later, or has no data and what would give it some."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from isentrope_wire import metrics
from isentrope_wire.answers import Alert
from isentrope_wire.diagnosis.checks import CHECKS, cure_of
from isentrope_wire.diagnosis.course import DIRECTIONS
from isentrope_wire.diagnosis.measures import Measures
from isentrope_wire.diagnosis.rules.finding import LEAST
from isentrope_wire.numbers import Answer
from isentrope_wire.reports import ALERT_KINDS, AlertLevel

ENTROPY_NEEDED = "the mean entropy (entropy)"


class CheckStatus(StrEnum):
    """Where a check stands."""

    FOUND = "found"
    FOLLOWS = "follows"
    """It found what follows from a cause that was named, so that it did not ring."""
    CLEAR = "clear"
    """It judges, and has found nothing."""
    WAITS = "waits"
    """It has data; it judges from the twentieth step on."""
    NO_DATA = "no_data"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckState(Answer):
    """One check of a run."""

    kind: str
    """As that of its alert."""
    title: str
    status: CheckStatus
    level: AlertLevel | None
    """Of what was found; null where nothing was."""
    step: int | None
    """At which it was found, also where that is over."""
    message: str
    """What was found, or which cause it follows from."""
    cure: str
    """What to do about it."""
    needs: str
    """What would give it data; empty where it has some."""


def check_states(
    names: Collection[str],
    findings: Mapping[str, Alert],
    steps: int,
    following: Mapping[str, str] | None = None,
    holding: Collection[str] | None = None,
) -> list[CheckState]:
    """Every check of a run of so many steps that reported these metrics.

    Args:
        findings: The newest alert of each kind that was raised.
        following: Kinds that are found and did not ring, each with the cause it follows from.
        holding: Kinds that rang and still hold; None: not known.
    """
    causes = following or {}
    measures = Measures()
    measures.add(dict.fromkeys(names, 0.0))
    needs = dict.fromkeys(DIRECTIONS, "")
    if measures.trace(metrics.ENTROPY_MEAN) is None:
        needs = dict.fromkeys(DIRECTIONS, ENTROPY_NEEDED)
    for check in CHECKS:
        needs[check.kind] = ""
        if not check.is_measured(measures):
            needs[check.kind] = check.needs
    return [
        _state(
            kind,
            what,
            findings.get(kind),
            causes.get(kind),
            is_early=steps < LEAST,
            is_over=holding is not None and kind not in holding,
        )
        for kind, what in needs.items()
    ]


def _state(
    kind: str,
    needs: str,
    alert: Alert | None,
    cause: str | None,
    *,
    is_early: bool,
    is_over: bool,
) -> CheckState:
    status, message = CheckStatus.CLEAR, ""
    if cause is not None:
        status, message = CheckStatus.FOLLOWS, f"Follows from {cause}."
    elif is_early:
        status = CheckStatus.WAITS
    if needs:
        status = CheckStatus.NO_DATA
    if alert is not None and is_over and cause is None:
        return CheckState(
            kind=kind,
            title=ALERT_KINDS[kind],
            status=CheckStatus.CLEAR,
            level=None,
            step=alert.step,
            message=f"Found at step {alert.step}, and over since.",
            cure="",
            needs="",
        )
    if alert is None or is_over:
        return CheckState(
            kind=kind,
            title=ALERT_KINDS[kind],
            status=status,
            level=None,
            step=None,
            message=message,
            cure="",
            needs=needs,
        )
    return CheckState(
        kind=kind,
        title=ALERT_KINDS[kind],
        status=CheckStatus.FOUND,
        level=alert.level,
        step=alert.step,
        message=alert.message,
        cure=cure_of(kind, str(alert.evidence.get("cause") or "")),
        needs="",
    )
