"""What comes with some reports: alerts, the top contributing tokens, and the sums for what-if curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, Table, and_, insert, or_, select

from isentrope_server.store import streams
from isentrope_server.store.streams import Timeline
from isentrope_server.store.tables import alerts, driving_tokens, what_if_sums
from isentrope_wire.codec import decode_tokens, decode_what_if, encode_tokens, encode_what_if
from isentrope_wire.reports import NAME_CHARACTERS, AlertCause, DrivingToken, StepReport
from isentrope_wire.what_if import WhatIfSums

_LONGEST_MESSAGE = 2000
_LONGEST_KIND = 64
_MOST_IN_A_REPORT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAlert:
    """One alert, of a report that is shown for its step."""

    position: int
    number: int
    step: int
    recorded_at: float
    kind: str
    level: str
    """An `AlertLevel`."""
    message: str
    evidence: Mapping[str, float | None]
    """None: not finite."""
    cause: Mapping[str, Any] | None
    """The fields of `isentrope_wire.answers.AlertCause`."""
    suggestion: Mapping[str, Any] | None
    """A control document."""


def append_alerts(
    connection: Connection, run_key: int, stream_key: int, reports: Sequence[tuple[int, StepReport]]
) -> None:
    """Store the alerts of reports.

    Args:
        connection: in a transaction.
        run_key: the run's key.
        stream_key: the key of the reports' stream.
        reports: with their positions.
    """
    rows = [
        {
            "run_key": run_key,
            "position": position,
            "number": number,
            "stream_key": stream_key,
            "step": report.step,
            "recorded_at": report.recorded_at,
            "kind": alert.kind[:_LONGEST_KIND],
            "level": str(alert.level),
            "message": alert.message[:_LONGEST_MESSAGE],
            "evidence": _numbers(alert.evidence),
            "cause": None if alert.cause is None else _cause(alert.cause),
            "suggestion": None if alert.suggestion is None else alert.suggestion.to_document(),
        }
        for position, report in reports
        for number, alert in enumerate(report.alerts[:_MOST_IN_A_REPORT])
    ]
    if rows:
        connection.execute(insert(alerts), rows)


def _cause(cause: AlertCause) -> dict[str, Any]:
    return {
        "quadrant": cause.quadrant[:NAME_CHARACTERS],
        "mechanism": None if cause.mechanism is None else cause.mechanism[:NAME_CHARACTERS],
        "changes": _numbers(cause.changes),
        "message": cause.message[:_LONGEST_MESSAGE],
    }


def _numbers(numbers: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if np.isfinite(value) else None for name, value in numbers.items()}


def was_reported(connection: Connection, run_key: int, stream_key: int, kind: str, *, evidence: str) -> bool:
    """Whether a stream has reported an alert of this kind with evidence of this name."""
    table = alerts.c
    of_stream = (table.run_key == run_key, table.stream_key == stream_key, table.kind == kind)
    return any(evidence in stored for stored in connection.execute(select(table.evidence).where(*of_stream)).scalars())


def newest_alerts(
    connection: Connection, run_key: int, *, before: tuple[int, int] | None, limit: int
) -> list[StoredAlert]:
    """Alerts of reports that are shown, newest first.

    Args:
        before: (position, number) of the last alert on the previous page.
        limit: the most to return.
    """
    shown = _shown(connection, run_key)
    found: list[StoredAlert] = []
    while len(found) < limit:
        rows = connection.execute(_alerts_page(run_key, before, limit)).all()
        found += [StoredAlert(**row._mapping) for row in rows if row.position in shown]
        if len(rows) < limit:
            break
        before = (rows[-1].position, rows[-1].number)
    return found[:limit]


def _shown(connection: Connection, run_key: int) -> set[int]:
    """Positions of the reports whose alerts are shown: for each step, of those with alerts the highest precedence."""
    table = alerts.c
    rows = connection.execute(
        select(table.step, table.stream_key, table.position).where(table.run_key == run_key).distinct()
    ).all()
    columns = (np.array([row[index] for row in rows], dtype=np.int64) for index in range(3))
    chosen = Timeline(streams.incarnations(connection, run_key)).shown(*columns)
    return {rows[int(index)].position for index in chosen}


_STORED = [field.name for field in fields(StoredAlert)]


def _alerts_page(run_key: int, before: tuple[int, int] | None, limit: int) -> Select[*tuple[Any, ...]]:
    """The next stored alerts, newest first."""
    table = alerts.c
    columns = (table[name] for name in _STORED)
    query = select(*columns).where(table.run_key == run_key)
    if before is not None:
        position, number = before
        query = query.where(or_(table.position < position, and_(table.position == position, table.number < number)))
    return query.order_by(table.position.desc(), table.number.desc()).limit(limit)


_NEWEST_LOOKED_AT = 256
"""Rows read to find the newest step: more than the ranks that report one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTokens:
    """Tokens of the report shown for a step, largest first."""

    step: int
    tokens: tuple[DrivingToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWhatIf:
    """The what-if sums of the report shown for a step."""

    step: int
    sums: WhatIfSums


def append_top_tokens(
    connection: Connection, run_key: int, stream_key: int, reports: Sequence[tuple[int, StepReport]]
) -> None:
    """Store the top contributing tokens of reports that have any.

    Args:
        connection: in a transaction.
        run_key: the run's key.
        stream_key: the key of the reports' stream.
        reports: with their positions.
    """
    packed = [(position, report.step, encode_tokens(report.tokens)) for position, report in reports if report.tokens]
    _append(connection, driving_tokens, run_key, stream_key, packed)


def append_what_if_sums(
    connection: Connection, run_key: int, stream_key: int, reports: Sequence[tuple[int, StepReport]]
) -> None:
    """Store the sums of reports that have any.

    Args:
        connection: in a transaction.
        run_key: the run's key.
        stream_key: the key of the reports' stream.
        reports: with their positions.
    """
    packed = [
        (position, report.step, encode_what_if(report.what_if))
        for position, report in reports
        # A step without tokens has no curve; it must not hide an older step that has one.
        if report.what_if is not None and report.what_if.tokens > 0
    ]
    _append(connection, what_if_sums, run_key, stream_key, packed)


def find_top_tokens(connection: Connection, run_key: int, step: int | None = None) -> StoredTokens | None:
    """The tokens of a step, or of the newest step that has any where `step` is None. None without any."""
    found = _find(connection, driving_tokens, run_key, step)
    return None if found is None else StoredTokens(step=found[0], tokens=decode_tokens(found[1]))


def find_what_if_sums(connection: Connection, run_key: int, step: int | None = None) -> StoredWhatIf | None:
    """The sums of a step, or of the newest step that has any where `step` is None. None without any."""
    found = _find(connection, what_if_sums, run_key, step)
    if found is None:
        return None
    sums = decode_what_if(found[1])
    return StoredWhatIf(step=found[0], sums=sums) if sums.tokens > 0 else None


def _append(
    connection: Connection, table: Table, run_key: int, stream_key: int, packed: Sequence[tuple[int, int, bytes]]
) -> None:
    """Store what is packed of each report: position, step, bytes."""
    rows = [
        {"run_key": run_key, "position": position, "stream_key": stream_key, "step": step, "packed": content}
        for position, step, content in packed
    ]
    if rows:
        connection.execute(insert(table), rows)


def _find(connection: Connection, table: Table, run_key: int, step: int | None) -> tuple[int, bytes] | None:
    """Step and bytes of the report shown for a step; None: for the newest step of all."""
    columns = table.c
    query = select(columns.step, columns.stream_key, columns.position).where(columns.run_key == run_key)
    query = (
        query.order_by(columns.position.desc()).limit(_NEWEST_LOOKED_AT)
        if step is None
        else query.where(columns.step == step)
    )
    rows = connection.execute(query).all()
    shown = Timeline(streams.incarnations(connection, run_key)).shown(
        *(np.array([getattr(row, name) for row in rows], dtype=np.int64) for name in ("step", "stream_key", "position"))
    )
    if not len(shown):
        return None
    row = rows[int(shown[-1])]
    packed = connection.execute(
        select(columns.packed).where(columns.run_key == run_key, columns.position == row.position)
    ).scalar_one()
    return row.step, packed
