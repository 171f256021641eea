"""The alerts of runs: those of reports, and what the server itself has to say."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, cast, func, insert, select, tuple_, update

from isentrope_server.store import streams, tables
from isentrope_server.store.database import build_answer
from isentrope_server.store.streams import Stream, Timeline
from isentrope_server.store.tables import alerts
from isentrope_wire import reports as wire
from isentrope_wire.answers import Alert
from isentrope_wire.reports import NAME_CHARACTERS, AlertCause, StepReport

_LONGEST_MESSAGE = 2000
_LONGEST_KIND = 64
_MOST_IN_A_REPORT = 16
"""The server's own alerts are numbered from here on."""
ALERT_ID = (cast(alerts.c.position, tables.Text) + "." + cast(alerts.c.number, tables.Text)).label(
    "id"
)
"""What answers call an alert."""


def rows_of_report(
    place: Mapping[str, Any], report: StepReport, clock_ahead: float
) -> list[dict[str, Any]]:
    """The rows of a report's alerts, at its place; their time is that of the server's clock, which
    the reporting one is so many seconds ahead of."""
    return [
        {
            **place,
            "number": number,
            "recorded_at": report.recorded_at - clock_ahead,
            **_columns_of(alert),
        }
        for number, alert in enumerate(report.alerts[:_MOST_IN_A_REPORT])
    ]


def append_servers_alert(
    connection: Connection,
    alert: wire.Alert,
    stream: Stream,
    *,
    position: int,
    step: int,
    now: float,
) -> None:
    """Store what the server itself has to say about a stream, beside the report at a position; once
    of its kind with the first of its evidence."""
    if was_reported(
        connection, stream.run_key, stream.key, alert.kind, evidence=next(iter(alert.evidence))
    ):
        return
    place = {"run_key": stream.run_key, "stream_key": stream.key, "position": position}
    # Behind those of any report.
    number = select(func.coalesce(func.max(alerts.c.number), 0) + _MOST_IN_A_REPORT).where(
        alerts.c.run_key == stream.run_key, alerts.c.position == position
    )
    free = connection.execute(number).scalar_one()
    connection.execute(
        insert(alerts).values(
            **place, number=free, step=step, recorded_at=now, **_columns_of(alert)
        )
    )


def _columns_of(alert: wire.Alert) -> dict[str, Any]:
    return {
        "kind": alert.kind[:_LONGEST_KIND],
        "level": str(alert.level),
        "message": alert.message[:_LONGEST_MESSAGE],
        "evidence": (
            _numbers(alert.evidence)
            | {name: text[:NAME_CHARACTERS] for name, text in alert.words.items()}
        ),
        "cause": None if alert.cause is None else _cause(alert.cause),
        "suggestion": None if alert.suggestion is None else alert.suggestion.to_document(),
    }


def _cause(cause: AlertCause) -> dict[str, Any]:
    return {
        "quadrant": cause.quadrant[:NAME_CHARACTERS],
        "mechanism": None if cause.mechanism is None else cause.mechanism[:NAME_CHARACTERS],
        "changes": _numbers(cause.changes),
        "message": cause.message[:_LONGEST_MESSAGE],
    }


def _numbers(numbers: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        name: value if value is not None and np.isfinite(value) else None
        for name, value in numbers.items()
    }


def was_reported(
    connection: Connection, run_key: int, stream_key: int, kind: str, *, evidence: str
) -> bool:
    """Whether a stream has reported an alert of this kind with evidence of this name."""
    table = alerts.c
    of_stream = (table.run_key == run_key, table.stream_key == stream_key, table.kind == kind)
    return any(
        evidence in stored
        for stored in connection.execute(select(table.evidence).where(*of_stream)).scalars()
    )


def newest_alerts(
    connection: Connection,
    run_key: int,
    *,
    before: Sequence[int] | None = None,
    kinds: Collection[str] | None = None,
    limit: int,
) -> list[tuple[tuple[int, int], Alert]]:
    """Alerts, of some kinds or all, of reports that are shown, and the server's own, with their
    places (position, number), newest first."""
    shown = _shown(connection, run_key)
    found: list[tuple[tuple[int, int], Alert]] = []
    while shown and len(found) < limit:
        query = select(alerts, ALERT_ID).where(alerts.c.run_key == run_key)
        if kinds is not None:
            query = query.where(alerts.c.kind.in_(kinds))
        if before is not None:
            query = query.where(tuple_(alerts.c.position, alerts.c.number) < tuple(before))
        newest = query.order_by(alerts.c.position.desc(), alerts.c.number.desc()).limit(limit)
        rows = connection.execute(newest).all()
        found += [
            ((row.position, row.number), build_answer(Alert, row))
            for row in rows
            if (row.position, row.number >= _MOST_IN_A_REPORT) in shown
        ]
        if len(rows) < limit:
            break
        before = (rows[-1].position, rows[-1].number)
    return found[:limit]


def acknowledge(
    connection: Connection, run_key: int, alert_id: str, by: str, now: float
) -> tuple[Alert | None, bool]:
    """Note who acknowledges an alert; returns it, None where there is none, and whether nobody had
    before."""
    this = (alerts.c.run_key == run_key, ALERT_ID.element == alert_id)
    of_nobody = update(alerts).where(*this, alerts.c.acknowledged_at.is_(None))
    is_first = (
        connection.execute(of_nobody.values(acknowledged_by=by, acknowledged_at=now)).rowcount > 0
    )
    row = connection.execute(select(alerts, ALERT_ID).where(*this)).one_or_none()
    return None if row is None else build_answer(Alert, row), is_first


def _shown(connection: Connection, run_key: int) -> set[tuple[int, bool]]:
    """Positions of the reports whose alerts are shown (for each step, of those with alerts the
    highest precedence), and whether the alert there is the server's own, which always is."""
    table = alerts.c
    is_own = (table.number >= _MOST_IN_A_REPORT).label("is_own")
    rows = connection.execute(
        select(table.step, table.stream_key, table.position, is_own)
        .where(table.run_key == run_key)
        .distinct()
    ).all()
    shown = {(row.position, True) for row in rows if row.is_own}
    of_reports = [row for row in rows if not row.is_own]
    if of_reports:
        columns = (
            np.array([row[index] for row in of_reports], dtype=np.int64) for index in range(3)
        )
        chosen = Timeline(streams.incarnations(connection, run_key)).shown(*columns)
        shown |= {(of_reports[int(index)].position, False) for index in chosen}
    return shown
