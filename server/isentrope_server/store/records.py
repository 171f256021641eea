"""Records: every payload that counts, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from sqlalchemy import Connection, insert, select, update

from isentrope_server.store import alerts, blocks, driving_tokens, layouts, what_if_sums
from isentrope_server.store.column_types import json_text
from isentrope_server.store.database import COPIED_TYPES, POSTGRESQL, copied_type
from isentrope_server.store.layouts import Layout, PackedReport
from isentrope_server.store.round_trips import Change
from isentrope_server.store.tables import gaps, records
from isentrope_wire.messages import Gap, Payload, RunFinished, RunStarted, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A readable record on its way in."""

    seq: int
    payload: bytes
    payload_hash: bytes
    message: Payload
    packed: PackedReport | None = field(init=False)
    """A report's numbers as they will be stored. Packed while they are still in the processor's cache, not by the
    writer: that takes a third of the time."""

    def __post_init__(self) -> None:
        message = self.message
        object.__setattr__(self, "packed", layouts.packed(message) if isinstance(message, StepReport) else None)


def stored_hashes(
    connection: Connection, stream_key: int, seqs: Sequence[int], *, acked_through: int, held_through: int
) -> dict[int, bytes]:
    """The hashes of those of a stream's records that have one of these seqs, packed or not.

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
    """Store new records at the positions that follow `after_position`.

    Args:
        known_layouts: the keys of layouts that the stream has used already.
    Returns: these positions, in the order of `arrivals`, and the changes that are still to be made.
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
    for module in (what_if_sums, driving_tokens, alerts):
        module.append(connection, run_key, stream_key, reports)
    _append_gaps(connection, stream_key, [a.message for a in arrivals if isinstance(a.message, Gap)])
    # Of those that share a layout the last one.
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
    """Rows as the driver takes them: SQLAlchemy's look at each value takes as long as SQLite does to store it."""
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
"""Characters. No spool writes so many."""

_COLUMNS = tuple(column.name for column in records.columns)
_INSERT = f"INSERT INTO records ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_COPY = f"COPY records ({', '.join(_COLUMNS)}) FROM STDIN (FORMAT BINARY)"
_TYPES = tuple(copied_type(column) for column in records.columns)
_REPORT_COLUMNS = ("step", "recorded_at", "control_version", "layout_key", "scalars", "histograms", "labels")
