"""Alerts: what a run's probe thought a person should know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, and_, insert, or_, select

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


def was_told(connection: Connection, run_key: int, stream_key: int, kind: str, *, evidence: str) -> bool:
    """Whether a stream has told an alert of this kind with a number of this name."""
    table = alerts.c
    of_stream = (table.run_key == run_key, table.stream_key == stream_key, table.kind == kind)
    return any(evidence in told for told in connection.execute(select(table.evidence).where(*of_stream)).scalars())


def newest(connection: Connection, run_key: int, *, before: tuple[int, int] | None, limit: int) -> list[StoredAlert]:
    """At most `limit` alerts that came before (position, number), newest first; those taken back by a resume apart."""
    speaking = _speaking(connection, run_key)
    found: list[StoredAlert] = []
    while len(found) < limit:
        rows = connection.execute(_page(run_key, before, limit)).all()
        found += [StoredAlert(**row._mapping) for row in rows if row.position in speaking]
        if len(rows) < limit:
            break
        before = (rows[-1].position, rows[-1].number)
    return found[:limit]


def _speaking(connection: Connection, run_key: int) -> set[int]:
    """The positions of the reports whose alerts count: the loudest of those that have any, for each step."""
    table = alerts.c
    rows = connection.execute(
        select(table.step, table.stream_key, table.position).where(table.run_key == run_key).distinct()
    ).all()
    columns = (np.array([row[index] for row in rows], dtype=np.int64) for index in range(3))
    chosen = Timeline(streams.incarnations(connection, run_key)).speaking(*columns)
    return {rows[int(index)].position for index in chosen}


def _page(run_key: int, before: tuple[int, int] | None, limit: int) -> Select[*tuple[Any, ...]]:
    """The next alerts as they are stored, newest first."""
    table = alerts.c
    columns = (table[name] for name in ("position", "number", "step", "recorded_at", "kind", "reason", "evidence"))
    query = select(*columns).where(table.run_key == run_key)
    if before is not None:
        position, number = before
        query = query.where(or_(table.position < position, and_(table.position == position, table.number < number)))
    return query.order_by(table.position.desc(), table.number.desc()).limit(limit)
