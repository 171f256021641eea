"""What comes with some reports: alerts and whom they were sent to, the top contributing tokens, sums for what-if curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Select, Table, and_, exists, insert, or_, select, update

from isentrope_server.store import removal, streams
from isentrope_server.store.streams import Timeline
from isentrope_server.store.tables import alerts, driving_tokens, notified, runs, shown_name, what_if_sums
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


MOST_ATTEMPTS = 3
"""How often it is tried to send an alert to one destination."""
PAUSE_SECONDS = 30.0
"""From one attempt to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueNotice:
    """The first alert of its kind and level in a run, still to be sent to a destination."""

    run_key: int
    run_id: str
    run_name: str
    step: int
    kind: str
    level: str
    message: str
    cause: Mapping[str, Any] | None
    suggestion: Mapping[str, Any] | None


def due_notices(connection: Connection, destination: str, *, since: float, now: float, limit: int) -> list[DueNotice]:
    """Alerts to send, oldest first.

    Args:
        destination: a hash of its address.
        since: alerts of steps that were recorded earlier are not sent, in seconds since the epoch.
        now: the time, for the pause after a failed attempt.
        limit: the most to return.
    """
    alert, done = alerts.c, notified.c
    same = (done.run_key == alert.run_key, done.kind == alert.kind, done.level == alert.level)
    over = or_(done.sent, done.attempts >= MOST_ATTEMPTS, done.tried_at > now - PAUSE_SECONDS)
    of_alert = [alert[field.name] for field in fields(DueNotice) if field.name in alert]
    query = (
        select(runs.c.id.label("run_id"), shown_name.label("run_name"), *of_alert)
        .join(runs, runs.c.key == alert.run_key)
        .where(runs.c.state != removal.DELETING, alert.recorded_at >= since)
        .where(~exists().where(*same, done.destination == destination, over))
        .order_by(alert.recorded_at, alert.number)
    )
    first: dict[tuple[int, str, str], DueNotice] = {}
    for row in connection.execute(query):
        notice = DueNotice(**row._mapping)
        first.setdefault((notice.run_key, notice.kind, notice.level), notice)
    return list(first.values())[:limit]


def claim_notice(connection: Connection, notice: DueNotice, destination: str, *, now: float) -> bool:
    """Note that a notice is being sent; False where another server did since."""
    of_notice = _of_notice(notice, destination)
    row = connection.execute(select(notified.c.sent, notified.c.tried_at).where(of_notice)).one_or_none()
    if row is None:
        values = {"run_key": notice.run_key, "kind": notice.kind, "level": notice.level, "destination": destination}
        connection.execute(insert(notified).values(**values, attempts=1, tried_at=now, sent=False))
        return True
    if row.sent or row.tried_at > now - PAUSE_SECONDS:
        return False
    connection.execute(update(notified).where(of_notice).values(attempts=notified.c.attempts + 1, tried_at=now))
    return True


def note_sent(connection: Connection, notice: DueNotice, destination: str) -> None:
    """Note that a notice was sent: it is never sent there again."""
    connection.execute(update(notified).where(_of_notice(notice, destination)).values(sent=True))


def _of_notice(notice: DueNotice, destination: str) -> ColumnElement[bool]:
    row = notified.c
    return and_(
        row.run_key == notice.run_key,
        row.kind == notice.kind,
        row.level == notice.level,
        row.destination == destination,
    )


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
