"""Alerts: what a run's probe thought a person should know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, insert, select

from isentrope_server.store import streams
from isentrope_server.store.tables import alerts
from isentrope_server.store.timeline import Timeline
from isentrope_wire.messages import StepReport

_LONGEST_REASON = 2000
_LONGEST_KIND = 64
_MOST_IN_A_REPORT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAlert:
    """One alert, of a report that speaks for its step."""

    position: int
    number: int
    step: int
    recorded_at: float
    kind: str
    reason: str
    evidence: Mapping[str, float | None]
    """None: not finite."""


def append(connection: Connection, run_key: int, stream_key: int, reports: Sequence[tuple[int, StepReport]]) -> None:
    """Store the alerts of these reports, which come with their positions."""
    rows = [
        {
            "run_key": run_key,
            "position": position,
            "number": number,
            "stream_key": stream_key,
            "step": report.step,
            "recorded_at": report.recorded_at,
            # PostgreSQL takes no NUL.
            "kind": alert.kind.replace("\0", "")[:_LONGEST_KIND],
            "reason": alert.reason.replace("\0", "")[:_LONGEST_REASON],
            "evidence": {
                name.replace("\0", ""): value if np.isfinite(value) else None for name, value in alert.evidence.items()
            },
        }
        for position, report in reports
        for number, alert in enumerate(report.alerts[:_MOST_IN_A_REPORT])
    ]
    if rows:
        connection.execute(insert(alerts), rows)


def newest(connection: Connection, run_key: int, *, before: tuple[int, int] | None, limit: int) -> list[StoredAlert]:
    """At most `limit` alerts that came before (position, number), newest first; those taken back by a resume apart."""
    table = alerts.c
    rows = connection.execute(
        select(alerts).where(table.run_key == run_key).order_by(table.position.desc(), table.number.desc())
    ).all()
    timeline = Timeline(streams.incarnations(connection, run_key))
    steps, keys, positions = (
        np.array([getattr(row, name) for row in rows], dtype=np.int64) for name in ("step", "stream_key", "position")
    )
    speaking = {int(positions[index]) for index in timeline.speaking(steps, keys, positions)}
    return [
        StoredAlert(
            position=row.position,
            number=row.number,
            step=row.step,
            recorded_at=row.recorded_at,
            kind=row.kind,
            reason=row.reason,
            evidence=row.evidence,
        )
        for row in rows
        if row.position in speaking and (before is None or (row.position, row.number) < before)
    ][:limit]
