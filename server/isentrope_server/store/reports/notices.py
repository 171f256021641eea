"""Which alerts are still to be sent, and where they were sent to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, and_, exists, insert, or_, select, update

from isentrope_server.store import removal
from isentrope_server.store.database import build_answer
from isentrope_server.store.reports.alerts import ALERT_ID
from isentrope_server.store.tables import alerts, notified, runs, shown_name
from isentrope_wire.answers import Alert

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
    alert: Alert


def due_notices(
    connection: Connection, destination: str, *, since: float, now: float, limit: int
) -> list[DueNotice]:
    """Alerts to send, oldest first: of steps recorded since `since` (seconds since the epoch), and
    not in the pause after a failed attempt. The destination is a hash of its address."""
    alert, done = alerts.c, notified.c
    same = [done[name] == alert[name] for name in ("run_key", "kind", "level", "step")]
    over = or_(done.sent, done.attempts >= MOST_ATTEMPTS, done.tried_at > now - PAUSE_SECONDS)
    query = (
        select(alerts, ALERT_ID, runs.c.id.label("run_id"), shown_name.label("run_name"))
        .join(runs, runs.c.key == alert.run_key)
        .where(runs.c.state != removal.DELETING, alert.recorded_at >= since)
        .where(~exists().where(*same, done.destination == destination, over))
        .order_by(alert.recorded_at, alert.number)
    )
    return [
        DueNotice(
            run_key=row.run_key,
            run_id=row.run_id,
            run_name=row.run_name,
            alert=build_answer(Alert, row),
        )
        for row in connection.execute(query.limit(limit))
    ]


def claim_notice(
    connection: Connection, notice: DueNotice, destination: str, *, now: float
) -> bool:
    """Note that a notice is being sent; False where another server did since."""
    key = _key_of(notice, destination)
    of_notice = _has(key)
    row = connection.execute(
        select(notified.c.sent, notified.c.tried_at).where(of_notice)
    ).one_or_none()
    if row is None:
        connection.execute(insert(notified).values(**key, attempts=1, tried_at=now, sent=False))
        return True
    if row.sent or row.tried_at > now - PAUSE_SECONDS:
        return False
    connection.execute(
        update(notified).where(of_notice).values(attempts=notified.c.attempts + 1, tried_at=now)
    )
    return True


def note_sent(connection: Connection, notice: DueNotice, destination: str) -> None:
    """Note that a notice was sent: it is never sent there again."""
    connection.execute(update(notified).where(_has(_key_of(notice, destination))).values(sent=True))


def _key_of(notice: DueNotice, destination: str) -> dict[str, object]:
    alert = notice.alert
    of_alert = {"kind": alert.kind, "level": alert.level, "step": alert.step}
    return {"run_key": notice.run_key, **of_alert, "destination": destination}


def _has(key: Mapping[str, object]) -> ColumnElement[bool]:
    return and_(*(notified.c[name] == value for name, value in key.items()))
