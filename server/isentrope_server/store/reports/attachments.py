"""What comes with some reports: alerts and whom they were sent to, top contributing tokens,
rollouts, what-if sums."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    cast,
    exists,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from isentrope_server.store import removal, streams, tables
from isentrope_server.store.database import build_answer
from isentrope_server.store.reports import series
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.streams import Stream, Timeline
from isentrope_server.store.tables import (
    alerts,
    driving_tokens,
    notified,
    rollouts,
    runs,
    shown_name,
    what_if_sums,
)
from isentrope_wire import codec
from isentrope_wire import reports as wire
from isentrope_wire.answers import Alert, Rollouts, TopTokens
from isentrope_wire.metrics import SCORE_VOCAB_CENTERED_STD
from isentrope_wire.reports import NAME_CHARACTERS, AlertCause, StepReport
from isentrope_wire.what_if import WhatIfSums

_LONGEST_MESSAGE = 2000
_LONGEST_KIND = 64
_MOST_IN_A_REPORT = 16
_ALERT_ID = (cast(alerts.c.position, tables.Text) + "." + cast(alerts.c.number, tables.Text)).label(
    "id"
)


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
        query = select(alerts, _ALERT_ID).where(alerts.c.run_key == run_key)
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
    this = (alerts.c.run_key == run_key, _ALERT_ID.element == alert_id)
    of_nobody = update(alerts).where(*this, alerts.c.acknowledged_at.is_(None))
    is_first = (
        connection.execute(of_nobody.values(acknowledged_by=by, acknowledged_at=now)).rowcount > 0
    )
    row = connection.execute(select(alerts, _ALERT_ID).where(*this)).one_or_none()
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
        select(alerts, _ALERT_ID, runs.c.id.label("run_id"), shown_name.label("run_name"))
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


_NEWEST_LOOKED_AT = 256
"""Rows read to find the newest steps: more than the ranks and attempts that report one step."""
_PROMPTS_LOOKED_AT = 1000
"""Rows in which prompts are looked for."""


def append(
    connection: Connection,
    run_key: int,
    stream_key: int,
    reports: Sequence[tuple[int, StepReport]],
    clock_ahead: float = 0.0,
) -> None:
    """Store what-if sums, top contributing tokens, rollouts and alerts of reports, which come with
    their positions. Alerts get the time by the server's clock, which `clock_ahead` says."""
    rows: dict[Table, list[dict[str, Any]]] = {
        driving_tokens: [],
        rollouts: [],
        what_if_sums: [],
        alerts: [],
    }
    for position, report in reports:
        place = {
            "run_key": run_key,
            "position": position,
            "stream_key": stream_key,
            "step": report.step,
        }
        if report.tokens:
            rows[driving_tokens].append({**place, "packed": codec.encode_tokens(report.tokens)})
        if report.rollouts:
            rows[rollouts].append({**place, "packed": codec.encode_rollouts(report.rollouts)})
        # A step without tokens has no curve; it must not hide an older step that has one.
        if report.what_if is not None and report.what_if.tokens > 0:
            rows[what_if_sums].append({**place, "packed": codec.encode_what_if(report.what_if)})
        rows[alerts] += [
            {
                **place,
                "number": number,
                "recorded_at": report.recorded_at - clock_ahead,
                **_columns_of(alert),
            }
            for number, alert in enumerate(report.alerts[:_MOST_IN_A_REPORT])
        ]
    for table, found in rows.items():
        if found:
            connection.execute(insert(table), found)


def top_tokens(
    connection: Connection,
    run_key: int,
    *,
    step: int | None = None,
    last: int | None = None,
    steps: int = 1,
) -> list[TopTokens]:
    """The top contributing tokens of the newest steps that have any, at most `steps`, by rising
    step: of `step` alone, or of none later than `last`."""
    shown = _shown_rows(connection, driving_tokens, run_key, step=step, last=last)[-steps:]
    packed, around = (
        _packed(connection, driving_tokens, run_key, shown),
        _read_surroundings(connection, run_key, shown),
    )
    return [
        TopTokens(step=at, items=list(codec.decode_tokens(packed[position])), **around[position])
        for at, position in shown
    ]


def rollouts_of(connection: Connection, run_key: int, step: int | None) -> Rollouts | None:
    """The rollouts of a step, or of the newest step that has any where `step` is None. None without
    any."""
    shown = _shown_rows(connection, rollouts, run_key, step=step)[-1:]
    packed, around = (
        _packed(connection, rollouts, run_key, shown),
        _read_surroundings(connection, run_key, shown),
    )
    for at, position in shown:
        return Rollouts(
            step=at, items=list(codec.decode_rollouts(packed[position])), **around[position]
        )
    return None


def steps_with_prompts(
    connection: Connection, run_key: int, found: Rollouts
) -> dict[str, list[int]]:
    """For each prompt of these rollouts the other steps, of the newest ones, whose rollouts have
    it; by rising step."""
    prompts = {item.prompt: item.prompt.encode() for item in found.items if item.prompt}
    shown = _shown_rows(connection, rollouts, run_key, most=_PROMPTS_LOOKED_AT) if prompts else []
    packed = _packed(connection, rollouts, run_key, shown)
    also_in: dict[str, list[int]] = {prompt: [] for prompt in prompts}
    for step, position in shown:
        content = packed.get(position, b"")
        # Decoding takes a hundred times as long as looking for the text.
        if step != found.step and any(text in content for text in prompts.values()):
            for prompt in prompts.keys() & {item.prompt for item in codec.decode_rollouts(content)}:
                also_in[prompt].append(step)
    return also_in


def _read_surroundings(
    connection: Connection, run_key: int, shown: Sequence[tuple[int, int]]
) -> dict[int, dict[str, Any]]:
    """What answers about tokens say of their whole step, by position: `score_std`, `lowering` and
    `raising`."""
    if not shown:
        return {}
    between = StepRange(first=shown[0][0], last=shown[-1][0])
    stds = series.read(connection, run_key, [SCORE_VOCAB_CENTERED_STD], between)[
        SCORE_VOCAB_CENTERED_STD
    ]
    of_step = {
        at: std
        for at, std in zip(stds.steps.tolist(), stds.values.tolist(), strict=True)
        if 0 < std < np.inf
    }
    pulls = {
        position: codec.decode_what_if(content).pulls
        for position, content in _packed(connection, what_if_sums, run_key, shown).items()
    }
    found = {}
    for at, position in shown:
        lowering, raising = pulls.get(position, (None, None))
        found[position] = {"score_std": of_step.get(at), "lowering": lowering, "raising": raising}
    return found


def read_what_if(
    connection: Connection, run_key: int, *, last: int | None = None, steps: int
) -> list[tuple[int, WhatIfSums]]:
    """The newest `steps` steps that have what-if sums, none later than `last`, with these, by
    rising step."""
    shown = _shown_rows(connection, what_if_sums, run_key, last=last)[-steps:]
    packed = _packed(connection, what_if_sums, run_key, shown)
    return [(step, codec.decode_what_if(packed[position])) for step, position in shown]


def _shown_rows(
    connection: Connection,
    table: Table,
    run_key: int,
    *,
    step: int | None = None,
    last: int | None = None,
    most: int = _NEWEST_LOOKED_AT,
) -> list[tuple[int, int]]:
    """Step and position of the reports that are shown, one for each step, by rising step; of the
    newest rows only."""
    columns = table.c
    query = select(columns.step, columns.stream_key, columns.position).where(
        columns.run_key == run_key
    )
    if step is not None:
        query = query.where(columns.step == step)
    if last is not None:
        query = query.where(columns.step <= last)
    rows = connection.execute(query.order_by(columns.position.desc()).limit(most)).all()
    if not rows:
        return []
    shown = Timeline(streams.incarnations(connection, run_key)).shown(
        *(
            np.array([getattr(row, name) for row in rows], dtype=np.int64)
            for name in ("step", "stream_key", "position")
        )
    )
    return [(rows[int(index)].step, rows[int(index)].position) for index in shown]


def _packed(
    connection: Connection, table: Table, run_key: int, shown: Sequence[tuple[int, int]]
) -> dict[int, bytes]:
    """What is stored at some positions; nothing where there is no row."""
    positions = {position for _, position in shown}
    if not positions:
        return {}
    # A range, as in `rows.some_at_once`; few rows in it are not shown.
    inside = table.c.position.between(min(positions), max(positions))
    query = select(table.c.position, table.c.packed).where(table.c.run_key == run_key, inside)
    return {
        position: bytes(content)
        for position, content in connection.execute(query)
        if position in positions
    }
