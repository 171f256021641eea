"""Histograms stand beside a report's scalars; a stream's older reports are packed into blocks."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_RECORDS_AT_ONCE = 1_000

_histograms = sa.table(
    "histograms",
    *(sa.column(name) for name in ("run_key", "name", "position", "low", "high", "counts", "not_finite")),
)
_records = sa.table(
    "records",
    *(sa.column(name) for name in ("run_key", "position", "stream_key", "kind", "layout_key", "histograms")),
)
_layouts = sa.table(
    "layouts",
    sa.column("key"),
    sa.column("digest", sa.LargeBinary()),
    sa.column("names", sa.JSON()),
    sa.column("histograms", sa.JSON()),
)
_stream_layouts = sa.table(
    "stream_layouts", sa.column("stream_key"), sa.column("layout_key"), sa.column("last_position")
)


def upgrade() -> None:
    _create_blocks()
    # NULL, as the rows that are there have it: no histograms.
    op.add_column("layouts", sa.Column("histograms", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("records", sa.Column("histograms", sa.LargeBinary(), nullable=True))
    connection = op.get_bind()
    _move_histograms(connection)
    op.drop_table("histograms")


def _create_blocks() -> None:
    op.create_table(
        "blocks",
        sa.Column("key", _KEY, nullable=False),
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        *(
            sa.Column(f"{end}_{what}", sa.BigInteger(), nullable=False)
            for what in ("position", "seq", "step")
            for end in ("first", "last")
        ),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.Column("packed_positions", sa.LargeBinary(), nullable=True),
        sa.Column("packed_steps", sa.LargeBinary(), nullable=True),
        sa.Column("facts", sa.LargeBinary(), nullable=False),
        _run_reference("blocks"),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_blocks")),
        sa.UniqueConstraint("stream_key", "first_position", name=op.f("uq_blocks_stream_key_first_position")),
    )
    op.create_index("ix_blocks_run_key_last_position", "blocks", ["run_key", "last_position"], unique=False)
    op.create_table(
        "metric_chunks",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("block_key", _KEY, nullable=False),
        sa.Column("rows", sa.LargeBinary(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=True) for name in ("minimum", "maximum", "total")),
        sa.Column("values", sa.LargeBinary(), nullable=False),
        _run_reference("metric_chunks"),
        sa.PrimaryKeyConstraint("run_key", "name", "block_key", name=op.f("pk_metric_chunks")),
    )
    op.create_index("ix_metric_chunks_block_key", "metric_chunks", ["block_key"], unique=False)
    op.create_table(
        "histogram_chunks",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("block_key", _KEY, nullable=False),
        sa.Column("bins", sa.Integer(), nullable=False),
        sa.Column("rows", sa.LargeBinary(), nullable=True),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        _run_reference("histogram_chunks"),
        sa.PrimaryKeyConstraint("run_key", "name", "block_key", "bins", name=op.f("pk_histogram_chunks")),
    )
    op.create_index("ix_histogram_chunks_block_key", "histogram_chunks", ["block_key"], unique=False)


def _run_reference(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["run_key"], ["runs.key"], name=op.f(f"fk_{table}_run_key_runs"), ondelete="CASCADE")


def _move_histograms(connection: sa.Connection) -> None:
    """Put each report's histogram rows into its own row, and give it the layout that tells how to read them."""
    for place, pieces in _histograms_by_report(connection):
        report = connection.execute(
            sa.select(_records.c.stream_key, _layouts.c.key, _layouts.c.names)
            .join(_layouts, _layouts.c.key == _records.c.layout_key)
            .where(_records.c.run_key == place[0], _records.c.position == place[1])
        ).one()
        layout_key = _layout_key(connection, report.names, [[row.name, len(row.counts) // 8, 8] for row in pieces])
        connection.execute(
            sa.update(_records)
            .where(_records.c.run_key == place[0], _records.c.position == place[1])
            .values(layout_key=layout_key, histograms=b"".join(_packed(row) for row in pieces))
        )
        _use(connection, report.stream_key, report.key, layout_key, place[1])


def _histograms_by_report(connection: sa.Connection) -> Iterator[tuple[tuple[int, int], list[Any]]]:
    after = (-1, -1)
    while True:
        table = _histograms.c
        places = connection.execute(
            sa.select(table.run_key, table.position)
            .where(sa.or_(table.run_key > after[0], sa.and_(table.run_key == after[0], table.position > after[1])))
            .distinct()
            .order_by(table.run_key, table.position)
            .limit(_RECORDS_AT_ONCE)
        ).all()
        if not places:
            return
        for run_key, of_run in groupby(places, key=lambda place: place.run_key):
            positions = [place.position for place in of_run]
            rows = connection.execute(
                sa.select(_histograms)
                .where(table.run_key == run_key, table.position.between(positions[0], positions[-1]))
                .order_by(table.position, table.name)
            ).all()
            for position, pieces in groupby(rows, key=lambda row: row.position):
                yield (run_key, position), list(pieces)
        after = tuple(places[-1])


def _packed(row: Any) -> bytes:
    low, high = (math.nan if edge is None else edge for edge in (row.low, row.high))
    return struct.pack("<ddQ", low, high, row.not_finite) + bytes(row.counts)


def _layout_key(connection: sa.Connection, names: Sequence[str], histograms: list[list[object]]) -> int:
    digest = hashlib.blake2b(json.dumps([names, histograms]).encode(), digest_size=16).digest()
    known = connection.execute(sa.select(_layouts.c.key).where(_layouts.c.digest == digest)).scalar()
    if known is not None:
        return int(known)
    added = sa.insert(_layouts).values(digest=digest, names=list(names), histograms=histograms)
    return int(connection.execute(added.returning(_layouts.c.key)).scalar_one())


def _use(connection: sa.Connection, stream_key: int, old: int, new: int, position: int) -> None:
    """The report uses the new layout now; the old one was last used by what is left of it, if anything is."""
    table = _stream_layouts.c
    of_stream = sa.delete(_stream_layouts).where(table.stream_key == stream_key)
    connection.execute(of_stream.where(table.layout_key == new))
    connection.execute(sa.insert(_stream_layouts).values(stream_key=stream_key, layout_key=new, last_position=position))
    last_of_old = connection.execute(
        sa.select(table.last_position).where(table.stream_key == stream_key, table.layout_key == old)
    ).scalar()
    if last_of_old != position:
        return
    connection.execute(of_stream.where(table.layout_key == old))
    left = connection.execute(
        sa.select(sa.func.max(_records.c.position)).where(
            _records.c.stream_key == stream_key, _records.c.layout_key == old
        )
    ).scalar()
    if left is not None:
        connection.execute(sa.insert(_stream_layouts).values(stream_key=stream_key, layout_key=old, last_position=left))


def downgrade() -> None:
    connection = op.get_bind()
    if connection.execute(sa.select(sa.table("blocks", sa.column("key")).c.key).limit(1)).first() is not None:
        raise RuntimeError("Reports in blocks can't be brought back into rows. Restore a backup instead.")
    op.create_table(
        "histograms",
        sa.Column("run_key", _KEY, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("stream_key", _KEY, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("low", sa.Double(), nullable=True),
        sa.Column("high", sa.Double(), nullable=True),
        sa.Column("counts", sa.LargeBinary(), nullable=False),
        sa.Column("not_finite", sa.BigInteger(), nullable=False),
        _run_reference("histograms"),
        sa.PrimaryKeyConstraint("run_key", "name", "position", name=op.f("pk_histograms")),
    )
    _move_histograms_back(connection)
    # Not as a batch, which would copy tables that others refer to.
    op.drop_column("records", "histograms")
    op.drop_column("layouts", "histograms")
    for table in ("histogram_chunks", "metric_chunks", "blocks"):
        op.drop_table(table)


def _move_histograms_back(connection: sa.Connection) -> None:
    reports = connection.execute(
        sa.select(_records, sa.column("step"), _layouts.c.histograms.label("places"))
        .join(_layouts, _layouts.c.key == _records.c.layout_key)
        .where(sa.func.length(_records.c.histograms) > 0)
    )
    rows = [
        {"run_key": report.run_key, "position": report.position, "stream_key": report.stream_key, "step": report.step}
        | piece
        for report in reports.all()
        for piece in _unpacked(report.places, report.histograms)
    ]
    if rows:
        table = sa.table("histograms", *(sa.column(str(name)) for name in rows[0]))
        connection.execute(sa.insert(table), rows)


def _unpacked(places: Sequence[tuple[str, int, int]], blob: bytes) -> Iterator[dict[str, object]]:
    start = 0
    for name, bins, count_bytes in places:
        low, high, not_finite = struct.unpack_from("<ddQ", blob, start)
        counts = struct.unpack_from(f"<{bins}{'I' if count_bytes == 4 else 'Q'}", blob, start + 24)
        start += 24 + bins * count_bytes
        yield {
            "name": name,
            "low": low if math.isfinite(low) else None,
            "high": high if math.isfinite(high) else None,
            "not_finite": not_finite,
            "counts": struct.pack(f"<{bins}Q", *counts),
        }
