"""Whether what is shown is complete: what the probe lost, what is still on its way, and which steps are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isentrope_dashboard.figures.missing_steps import MissingSteps
from isentrope_dashboard.formatting import count, seconds
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
