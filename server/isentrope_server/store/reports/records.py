"""Records: every payload once; quarantined records with their reason; totals for the server's figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from sqlalchemy import Connection, func, insert, select, update

from isentrope_server.store import runs
from isentrope_server.store.database import COPIED_TYPES, POSTGRESQL, Change, copied_type
from isentrope_server.store.reports import attachments, blocks, layouts
from isentrope_server.store.reports.layouts import Layout, PackedReport
from isentrope_server.store.tables import LARGEST_INTEGER, controls, gaps, json_text, quarantine, records, tokens
from isentrope_wire.answers import Status
from isentrope_wire.codec import payload_hash
from isentrope_wire.control_answers import State
from isentrope_wire.reports import Gap, Payload, Record, RunFinished, RunStarted, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A decoded record that is to be stored."""

    seq: int
    payload: bytes
    payload_hash: bytes
    message: Payload
    packed: PackedReport | None = field(init=False)
    """A report's numbers as they are stored. Packed here, while they are in the processor's cache, and not by the
    writer: that takes a third of the time."""

    def __post_init__(self) -> None:
        message = self.message
        object.__setattr__(self, "packed", layouts.packed(message) if isinstance(message, StepReport) else None)


def stored_hashes(
    connection: Connection, stream_key: int, seqs: Sequence[int], *, acked_through: int, held_through: int
) -> dict[int, bytes]:
    """Payload hashes of a stream's records with these seqs, packed or not, by seq.

    Args:
        acked_through: the stream's; nothing beyond it is packed.
        held_through: the stream's; nothing beyond it is stored.
    """
    if not seqs or min(seqs) > held_through:
        return {}
    found = connection.execute(
        select(records.c.seq, records.c.payload_hash).where(
            records.c.stream_key == stream_key, records.c.seq.between(min(seqs), max(seqs))
        )
    )
    known = {seq: bytes(payload_hash) for seq, payload_hash in found}
    missing = [seq for seq in seqs if seq not in known and seq <= acked_through]
    return known | blocks.payload_hashes(connection, stream_key, missing) if missing else known


def append(
    connection: Connection,
    arrivals: Sequence[Arrival],
    *,
    run_key: int,
    stream_key: int,
    after_position: int,
    known_layouts: Mapping[Layout, int],
    now: float,
) -> tuple[list[int], list[Change]]:
    """Store new records at the positions after `after_position`.

    Args:
        known_layouts: keys of layouts that the stream has used before.

    Returns:
        The positions, in the order of `arrivals`, and the changes still to be made.
    """
    positions = [after_position + 1 + index for index in range(len(arrivals))]
    reports = [
        (position, arrival.message)
        for position, arrival in zip(positions, arrivals, strict=True)
        if isinstance(arrival.message, StepReport)
    ]
    packed = {
        position: arrival.packed
        for position, arrival in zip(positions, arrivals, strict=True)
        if arrival.packed is not None
    }
    used = {report.layout: position for position, report in packed.items()}
    layout_keys = {**known_layouts, **layouts.intern(connection, used.keys() - known_layouts.keys())}
    rows = [
        {
            "run_key": run_key,
            "position": position,
            "stream_key": stream_key,
            "seq": arrival.seq,
            "payload_hash": arrival.payload_hash,
            "received_at": now,
            "kind": _KINDS[type(arrival.message)],
            **_report_columns(arrival, layout_keys),
        }
        for position, arrival in zip(positions, arrivals, strict=True)
    ]
    _insert(connection, rows)
    attachments.append(connection, run_key, stream_key, reports)
    _append_gaps(connection, stream_key, [a.message for a in arrivals if isinstance(a.message, Gap)])
    # The last position of each layout.
    layouts.mark_used(
        connection, stream_key, {layout_keys[one]: used[one] for one in used.keys() - known_layouts.keys()}
    )
    again = [
        layouts.used_again(stream_key, known_layouts[one], used[one]) for one in used.keys() & known_layouts.keys()
    ]
    return positions, again


def _report_columns(arrival: Arrival, layout_keys: dict[Layout, int]) -> dict[str, object]:
    message, packed = arrival.message, arrival.packed
    if packed is None or not isinstance(message, StepReport):
        return dict.fromkeys(_REPORT_COLUMNS)
    return {
        "step": message.step,
        "recorded_at": message.recorded_at,
        "control_version": message.control_version,
        "layout_key": layout_keys[packed.layout],
        "scalars": packed.scalars,
        "histograms": packed.histograms,
        "labels": json_text(dict(message.labels)),
    }


def _insert(connection: Connection, rows: Sequence[Mapping[str, object]]) -> None:
    """Rows for the driver: SQLAlchemy's processing of each value would take as long as SQLite's storing."""
    if not rows:
        return
    values = list(map(itemgetter(*_COLUMNS), rows))
    if connection.dialect.name == POSTGRESQL:
        connection.exec_driver_sql(_COPY, values, execution_options={COPIED_TYPES: _TYPES})
    else:
        connection.exec_driver_sql(_INSERT, values)


def _append_gaps(connection: Connection, stream_key: int, found: Sequence[Gap]) -> None:
    for gap in found:
        place = (gaps.c.stream_key == stream_key, gaps.c.first_seq == gap.first_seq)
        known = connection.execute(select(gaps.c.last_seq).where(*place)).scalar()
        if known is not None:
            connection.execute(update(gaps).where(*place).values(last_seq=max(known, gap.last_seq)))
        else:
            connection.execute(
                insert(gaps).values(
                    stream_key=stream_key,
                    first_seq=gap.first_seq,
                    last_seq=gap.last_seq,
                    reason=gap.reason[:_LONGEST_REASON],
                )
            )


_KINDS: dict[type[Payload], str] = {
    RunStarted: "run_started",
    StepReport: "step_report",
    RunFinished: "run_finished",
    Gap: "gap",
}

_LONGEST_REASON = 10_000
"""Characters; no spool writes more."""

_COLUMNS = tuple(column.name for column in records.columns)
_INSERT = f"INSERT INTO records ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_COPY = f"COPY records ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)"
_TYPES = tuple(copied_type(column) for column in records.columns)
_REPORT_COLUMNS = ("step", "recorded_at", "control_version", "layout_key", "scalars", "histograms", "labels")

ROWS_OF_A_STREAM = 1_000
BYTES_OF_A_STREAM = 32 << 20
"""Twice the largest push."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A record that can't be used, and why."""

    record: Record
    code: str
    message: str
    outcomes_of: StepReport | RunFinished | None = None
    """The decoded message, where its control outcomes are used although the record is not."""


def keep_refused(connection: Connection, stream_key: int, refused: Sequence[Refused], now: float) -> None:
    """Quarantine refused records byte for byte; a repeated one is kept once.

    Args:
        stream_key: of the sender. Beyond `ROWS_OF_A_STREAM` or `BYTES_OF_A_STREAM` its records are dropped: the sender
            got the reason of each.
        now: the server's time, seconds since the epoch.
    """
    by_identity: dict[_Identity, Refused] = {}
    for item in refused:
        by_identity.setdefault(_refused_identity(item), item)
    if not by_identity:
        return
    known = _known(connection, stream_key, {seq for seq, _, _ in by_identity})
    new = {identity: item for identity, item in by_identity.items() if identity not in known}
    rows = [
        {
            "stream_key": stream_key,
            "seq": seq,
            "content_hash": content_hash,
            "claimed_hash": item.record.payload_hash,
            "payload": item.record.payload,
            "code": code,
            "message": item.message,
            "received_at": now,
        }
        for (seq, content_hash, code), item in _with_room(connection, stream_key, new).items()
    ]
    if rows:
        connection.execute(insert(quarantine), rows)


def count_refused(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(quarantine)).scalar_one()


def storable(seq: int) -> int:
    """The seq, at most the largest integer a database stores."""
    return min(seq, LARGEST_INTEGER)


_Identity = tuple[int, bytes, str]
"""seq, hash of the payload, code: equal for a record that is sent again."""


def _refused_identity(item: Refused) -> _Identity:
    return storable(item.record.seq), payload_hash(item.record.payload), item.code


def _known(connection: Connection, stream_key: int, seqs: Collection[int]) -> set[_Identity]:
    found = connection.execute(
        select(quarantine.c.seq, quarantine.c.content_hash, quarantine.c.code).where(
            quarantine.c.stream_key == stream_key, quarantine.c.seq.in_(seqs)
        )
    )
    return {(seq, bytes(content_hash), code) for seq, content_hash, code in found}


def _with_room(connection: Connection, stream_key: int, new: Mapping[_Identity, Refused]) -> dict[_Identity, Refused]:
    if not new:
        return {}
    kept = select(
        func.count(),
        func.coalesce(func.sum(func.length(quarantine.c.payload) + func.length(quarantine.c.claimed_hash)), 0),
    ).where(quarantine.c.stream_key == stream_key)
    rows, size = connection.execute(kept).one()
    fitting: dict[_Identity, Refused] = {}
    for identity, item in new.items():
        size += len(item.record.payload) + len(item.record.payload_hash)
        if rows + len(fitting) >= ROWS_OF_A_STREAM or size > BYTES_OF_A_STREAM:
            break
        fitting[identity] = item
    return fitting


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Numbers over all runs."""

    runs: dict[Status, int]
    records: int
    quarantined: int
    gaps: int
    records_in_gaps: int
    """Records in gaps."""
    controls: dict[State, int]
    active_tokens: int


def totals(connection: Connection, *, silent_after_seconds: float) -> Totals:
    found_gaps, lost = connection.execute(
        select(func.count(), func.coalesce(func.sum(gaps.c.last_seq - gaps.c.first_seq + 1), 0)).select_from(gaps)
    ).one()
    by_state = dict.fromkeys(State, 0)
    for state, count in connection.execute(select(controls.c.state, func.count()).group_by(controls.c.state)):
        by_state[State(state)] = count
    return Totals(
        runs=runs.count_by_status(connection, silent_after_seconds=silent_after_seconds),
        records=runs.count_records(connection),
        quarantined=count_refused(connection),
        gaps=found_gaps,
        records_in_gaps=int(lost),
        controls=by_state,
        active_tokens=connection.execute(
            select(func.count()).select_from(tokens).where(tokens.c.revoked_at.is_(None))
        ).scalar_one(),
    )
