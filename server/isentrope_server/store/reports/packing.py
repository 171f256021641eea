"""Packing: neighbouring rows of a stream are joined to one.

Reading and joining happen on a connection that can't write; the writer replaces the rows in one
transaction. A server killed at any point leaves the reports in the old rows or in the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select, text

from isentrope_server.store import rows
from isentrope_server.store.rows import ROW_SIZES, Layout, RowSizes
from isentrope_server.store.tables import records, report_layouts, runs, streams
from isentrope_wire.errors import IsentropeError

IDLE_AFTER_SECONDS = 3_600.0
"""A run without reports for this long is packed like one that ended."""

_LOOSE = text("NOT records.packed")


class RowsOvertaken(IsentropeError, RuntimeError):
    """The rows are gone since they were read: another server packed them, or their run was
    deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullStream:
    """A stream with enough reports for a row."""

    run_key: int
    run_id: str
    stream_key: int
    reports: int
    """Reports that can be packed now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRow:
    """A row to store, and the rows it replaces."""

    run_key: int
    layout: Layout
    columns: Mapping[str, Any]
    replaces: Sequence[int]
    """Their last positions."""
    replaced_layouts: frozenset[int]


def full_streams(
    connection: Connection, now: float, sizes: RowSizes = ROW_SIZES
) -> list[FullStream]:
    """Streams that have a row to pack, the fullest first."""
    loose = func.sum(records.c.reports)
    of_stream = (
        records.c.stream_key,
        streams.c.run_key,
        runs.c.id,
        runs.c.state,
        runs.c.last_heard_at,
    )
    query = (
        select(*of_stream, loose.label("loose"))
        .join(streams, streams.c.key == records.c.stream_key)
        .join(runs, runs.c.key == streams.c.run_key)
        .where(_LOOSE)
        .group_by(*of_stream)
        .having(loose >= sizes.fewest)
        .order_by(loose.desc())
    )
    found = [
        FullStream(
            run_key=row.run_key,
            run_id=row.id,
            stream_key=row.stream_key,
            reports=_reports_to_pack(row, now, sizes),
        )
        for row in connection.execute(query)
    ]
    return [stream for stream in found if stream.reports]


def _reports_to_pack(row: Row[*tuple[Any, ...]], now: float, sizes: RowSizes) -> int:
    loose = int(row.loose)
    ended = row.state != "running" or row.last_heard_at < now - IDLE_AFTER_SECONDS
    if ended:
        return loose
    return loose - loose % sizes.reports


def join_next(
    connection: Connection, stream: FullStream, sizes: RowSizes = ROW_SIZES
) -> JoinedRow | None:
    """Join the stream's oldest rows that are not packed; None where they hold too few reports."""
    known = rows.layouts_of(connection, stream.run_key)
    waiting = connection.execute(
        select(records.c.last_position, records.c.reports, records.c.layout_key)
        .where(records.c.stream_key == stream.stream_key, _LOOSE)
        .order_by(records.c.last_position)
        .limit(sizes.reports)
    ).all()
    if not waiting:
        return None
    some = waiting[: rows.fitting([(row.reports, known[row.layout_key]) for row in waiting], sizes)]
    if len(some) == len(waiting) and sum(row.reports for row in some) < sizes.fewest:
        return None
    positions = [row.last_position for row in some]
    where = (
        records.c.stream_key == stream.stream_key,
        records.c.last_position.between(positions[0], positions[-1]),
        records.c.packed.is_(False),
    )
    members = list(rows.read(connection, stream.run_key, *where, histograms=True))
    whole = rows.joined(members)
    return JoinedRow(
        run_key=stream.run_key,
        layout=whole.layout,
        columns=rows.build_row(whole, is_packed=True),
        replaces=positions,
        replaced_layouts=frozenset(row.layout_key for row in some),
    )


def replace_by(connection: Connection, row: JoinedRow) -> None:
    """Replace rows by the one that joins them, in the caller's transaction. RowsOvertaken: the rows
    are gone, and the transaction must be rolled back."""
    of_run = records.c.run_key == row.run_key
    of_stream = records.c.stream_key == row.columns["stream_key"]
    inside = records.c.last_position.between(row.replaces[0], row.replaces[-1])
    taken = connection.execute(delete(records).where(of_run, of_stream, inside, _LOOSE)).rowcount
    if taken != len(row.replaces):
        raise RowsOvertaken(
            f"{len(row.replaces)} rows of run {row.run_key} were joined, {taken} are left to"
            " replace."
        )
    ((_, layout_key),) = rows.intern(connection, row.run_key, [row.layout]).items()
    rows.insert_rows(
        connection, [{**row.columns, "run_key": row.run_key, "layout_key": layout_key}]
    )
    unused = row.replaced_layouts - {layout_key}
    if unused:
        used = select(records.c.layout_key).where(of_run, records.c.layout_key.in_(unused))
        still_used = set(connection.execute(used.distinct()).scalars())
        connection.execute(
            delete(report_layouts).where(report_layouts.c.key.in_(unused - still_used))
        )
