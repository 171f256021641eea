"""Records: every payload once; quarantined records with their reason; totals for the server's
figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from sqlalchemy import Connection, func, select, update

from isentrope_server.store import rows
from isentrope_server.store.database import insert_new
from isentrope_server.store.reports import attachments
from isentrope_server.store.rows import Layout, PackedReport, Reports
from isentrope_server.store.tables import LARGEST_INTEGER, gaps, quarantine, records, runs, tokens
from isentrope_wire.codec import payload_hash
from isentrope_wire.reports import Gap, Payload, Record, RunFinished, RunStarted, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A decoded record that is to be stored."""

    seq: int
    payload: bytes
    payload_hash: bytes
    message: Payload
    packed: PackedReport | None = field(init=False)
    """A report's numbers as they are stored. Packed here, while they are in the processor's cache,
    and not by the
    writer: that takes a third of the time."""

    def __post_init__(self) -> None:
        message = self.message
        object.__setattr__(
            self, "packed", rows.packed(message) if isinstance(message, StepReport) else None
        )

    @property
    def layout(self) -> Layout:
        """Layout of the record's report; empty where the record is no report."""
        if self.packed is None:
            return rows.NO_LAYOUT
        return self.packed.layout


def stored_hashes(
    connection: Connection, stream_key: int, seqs: Sequence[int], *, held_through: int
) -> dict[int, bytes]:
    """Payload hashes of a stream's records, by seq: at least of those with these seqs that are
    stored. Nothing beyond `held_through` is."""
    if not seqs or min(seqs) > held_through:
        return {}
    around = select(records.c.facts).where(
        records.c.stream_key == stream_key,
        records.c.last_seq >= min(seqs),
        records.c.first_seq <= max(seqs),
    )
    return {
        seq: stored
        for facts in connection.execute(around).scalars()
        for seq, stored in rows.payload_hashes(facts).items()
    }


def append(
    connection: Connection,
    arrivals: Sequence[Arrival],
    *,
    run_key: int,
    stream_key: int,
    after_position: int,
    known_layouts: Mapping[Layout, int],
    now: float,
    clock_ahead: float = 0.0,
) -> list[int]:
    """Store new records, the reports in as few rows as can be; return their positions, which follow
    `after_position`. `known_layouts` are the keys of layouts that the run has used before;
    `clock_ahead` is the sender's, in seconds."""
    positions = [after_position + 1 + index for index in range(len(arrivals))]
    placed = list(zip(positions, arrivals, strict=True))
    reports = _join_rows(stream_key, [one for one in placed if one[1].packed is not None], now)
    layouts = {one.layout for one in reports}
    keys = {**known_layouts, **rows.intern(connection, run_key, layouts - known_layouts.keys())}
    stored = [
        {**rows.build_row(one, is_packed=False), "layout_key": keys[one.layout]} for one in reports
    ]
    for position, arrival in placed:
        if arrival.packed is None:
            facts = rows.facts_of(
                positions=[position],
                seqs=[arrival.seq],
                payload_hashes=[arrival.payload_hash],
                received_at=now,
            )
            stored.append(rows.record_columns(stream_key, _KINDS[type(arrival.message)], facts))
    rows.insert_rows(connection, [{**row, "run_key": run_key} for row in stored])
    attachments.append(
        connection,
        run_key,
        stream_key,
        [
            (position, arrival.message)
            for position, arrival in placed
            if isinstance(arrival.message, StepReport)
        ],
        clock_ahead,
    )
    _append_gaps(
        connection, stream_key, [a.message for a in arrivals if isinstance(a.message, Gap)]
    )
    return positions


def _join_rows(stream_key: int, placed: Sequence[tuple[int, Arrival]], now: float) -> list[Reports]:
    """Join reports, with their positions, to as few rows as they fit into."""
    parts = [
        _alike(stream_key, layout, list(neighbours), now)
        for layout, neighbours in groupby(placed, key=lambda one: one[1].layout)
    ]
    found = []
    while parts:
        count = rows.fitting([(part.count, part.layout) for part in parts])
        found.append(rows.joined(parts[:count]))
        parts = parts[count:]
    return found


def _alike(
    stream_key: int, layout: Layout, placed: Sequence[tuple[int, Arrival]], now: float
) -> Reports:
    packed = [arrival.packed for _, arrival in placed if arrival.packed is not None]
    messages = [arrival.message for _, arrival in placed if isinstance(arrival.message, StepReport)]
    labels = tuple(dict.fromkeys(report.labels for report in packed))
    facts = rows.facts_of(
        positions=[position for position, _ in placed],
        seqs=[arrival.seq for _, arrival in placed],
        payload_hashes=[arrival.payload_hash for _, arrival in placed],
        received_at=now,
        steps=[message.step for message in messages],
        recorded_at=[message.recorded_at for message in messages],
        control_versions=[message.control_version for message in messages],
        labels=[labels.index(report.labels) for report in packed],
    )
    return rows.alike(stream_key, layout, packed, facts, labels)


def _append_gaps(connection: Connection, stream_key: int, found: Sequence[Gap]) -> None:
    for gap in found:
        key = {"stream_key": stream_key, "first_seq": gap.first_seq}
        insert_new(
            connection,
            gaps,
            [key | {"last_seq": gap.last_seq, "reason": gap.reason[:_LONGEST_REASON]}],
        )
        shorter = update(gaps).filter_by(**key).where(gaps.c.last_seq < gap.last_seq)
        connection.execute(shorter.values(last_seq=gap.last_seq))


_KINDS: dict[type[Payload], str] = {
    RunStarted: "run_started",
    RunFinished: "run_finished",
    Gap: "gap",
}

_LONGEST_REASON = 10_000
"""Characters; no spool writes more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A record that can't be used, and why."""

    record: Record
    code: str
    message: str
    outcomes_of: StepReport | RunFinished | None = None
    """The decoded message, where its control outcomes are used although the record is not."""


def keep_refused(
    connection: Connection, stream_key: int, refused: Sequence[Refused], now: float
) -> None:
    """Quarantine refused records byte for byte; a repeated one is kept once."""
    kept = [
        {
            "stream_key": stream_key,
            "seq": storable(item.record.seq),
            "content_hash": payload_hash(item.record.payload),
            "claimed_hash": item.record.payload_hash,
            "payload": item.record.payload,
            "code": item.code,
            "message": item.message,
            "received_at": now,
        }
        for item in refused
    ]
    if kept:
        insert_new(connection, quarantine, kept)


def count_refused(connection: Connection) -> int:
    return connection.execute(select(func.count()).select_from(quarantine)).scalar_one()


def storable(seq: int) -> int:
    """The seq, at most the largest integer a database stores."""
    return min(seq, LARGEST_INTEGER)


def totals(connection: Connection) -> dict[str, int]:
    """Numbers over all runs, by the names that Prometheus has for them."""
    # Positions count the records.
    stored = connection.execute(
        select(func.coalesce(func.sum(runs.c.last_position), 0))
    ).scalar_one()
    lost = func.coalesce(func.sum(gaps.c.last_seq - gaps.c.first_seq + 1), 0)
    ranges, in_gaps = connection.execute(select(func.count(), lost).select_from(gaps)).one()
    active = select(func.count()).select_from(tokens).where(tokens.c.revoked_at.is_(None))
    return {
        "records_stored": int(stored),
        "records_quarantined": count_refused(connection),
        "gaps": ranges,
        "records_in_gaps": int(in_gaps),
        "tokens": connection.execute(active).scalar_one(),
    }
