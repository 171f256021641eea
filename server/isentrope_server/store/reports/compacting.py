"""Compacting: a stream's oldest reports become one block.

Reading and packing happen on a connection that can't write; the writer replaces the reports by the block in one
transaction. A server killed at any point leaves the reports in one place or the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Row, Select, Table, Text, cast, delete, func, insert, select

from isentrope_server.store.reports import blocks, layouts
from isentrope_server.store.reports.blocks import Array, deflate, narrowest, pack_arrays
from isentrope_server.store.reports.layouts import Layout
from isentrope_server.store.reports.series import whole_columns
from isentrope_server.store.tables import blocks as blocks_table
from isentrope_server.store.tables import histogram_chunks, metric_chunks, records, runs, streams
from isentrope_wire.errors import IsentropeError

IDLE_AFTER_SECONDS = 3_600.0
"""A run without reports for this long is packed like one that ended."""

_REPORT = "step_report"


class BlockOvertaken(IsentropeError, RuntimeError):
    """The reports are gone since they were read: another server packed them, or their run was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """How many reports are packed together, and how many stay unpacked."""

    reports: int = 1_000
    """Of a run that still reports."""
    left_unpacked: int = 1_000
    """Kept unpacked while a run reports: the newest reports are read most, one by one."""
    fewest: int = 64
    """The rest of a run that ended is packed, too, unless it has fewer reports."""
    bytes: int = 16 * 2**20
    """Of stored scalars and histograms: packing needs a few times as much memory. A single report may be larger."""


BLOCK_SIZES = BlockSizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class FullStream:
    """A stream with enough unpacked reports for a block."""

    run_key: int
    run_id: str
    stream_key: int
    acked_through: int
    blocks: int
    """Blocks that can be packed now, if their reports have the usual size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBlock:
    """A block's rows; `block` is the row that the others refer to."""

    block: Mapping[str, object]
    metrics: Sequence[Mapping[str, object]]
    histograms: Sequence[Mapping[str, object]]

    @property
    def last_position(self) -> int:
        return int(str(self.block["last_position"]))

    @property
    def rows(self) -> int:
        """Number of rows inserted and deleted when it is stored."""
        return int(str(self.block["reports"])) + len(self.metrics) + len(self.histograms) + 1


def full_streams(connection: Connection, now: float, sizes: BlockSizes = BLOCK_SIZES) -> list[FullStream]:
    """Streams that have a block to pack, the fullest first."""
    unpacked = func.count()
    query = (
        select(
            records.c.stream_key,
            streams.c.run_key,
            streams.c.acked_through,
            runs.c.id,
            runs.c.state,
            runs.c.last_heard_at,
        )
        .add_columns(unpacked.label("unpacked"))
        .join(streams, streams.c.key == records.c.stream_key)
        .join(runs, runs.c.key == streams.c.run_key)
        .group_by(
            records.c.stream_key,
            streams.c.run_key,
            streams.c.acked_through,
            runs.c.id,
            runs.c.state,
            runs.c.last_heard_at,
        )
        .having(unpacked >= sizes.fewest)
        .order_by(unpacked.desc())
    )
    found = [
        FullStream(
            run_key=row.run_key,
            run_id=row.id,
            stream_key=row.stream_key,
            acked_through=row.acked_through,
            blocks=_blocks(row, now, sizes),
        )
        for row in connection.execute(query)
    ]
    return [stream for stream in found if stream.blocks]


def pack_next(
    connection: Connection, stream: FullStream, sizes: BlockSizes = BLOCK_SIZES, *, after: PackedBlock | None = None
) -> PackedBlock | None:
    """Pack the stream's oldest reports, up to the first that still waits for a record sent before it.

    Args:
        after: the previous block, if it is not stored yet; the two must then be stored in one transaction.
    """
    packed_through = blocks.last_position(connection, stream.stream_key) if after is None else after.last_position
    fitting, is_full = _fitting(connection, stream, packed_through, sizes)
    if not fitting or (len(fitting) < sizes.fewest and not is_full):
        return None
    through = records.c.position <= fitting[-1]
    # Labels as text: decoding and encoding would give the same text.
    columns = (cast(column, Text).label("labels") if column.key == "labels" else column for column in records.c)
    rows = connection.execute(_oldest_reports(stream, packed_through, *columns).where(through)).all()
    known = layouts.by_key(connection, {row.layout_key for row in rows})
    return PackedBlock(
        block={"run_key": stream.run_key, "stream_key": stream.stream_key, **_block(rows)},
        metrics=list(_metrics(rows, known)),
        histograms=list(_histograms(rows, known)),
    )


def replace_by(connection: Connection, packed: PackedBlock) -> None:
    """Replace reports by their block, in the caller's transaction.

    Raises:
        BlockOvertaken: the reports are gone; the transaction must be rolled back.
    """
    block = packed.block
    taken = connection.execute(
        delete(records).where(
            records.c.run_key == block["run_key"],
            records.c.position.between(block["first_position"], block["last_position"]),
            records.c.stream_key == block["stream_key"],
            records.c.kind == _REPORT,
        )
    ).rowcount
    if taken != block["reports"]:
        raise BlockOvertaken(
            f"{block['reports']} reports of stream {block['stream_key']} were packed, {taken} are left to replace."
        )
    key = connection.execute(insert(blocks_table).values(**block).returning(blocks_table.c.key)).scalar_one()
    for table, chunks in ((metric_chunks, packed.metrics), (histogram_chunks, packed.histograms)):
        if chunks:
            rows = [{"run_key": block["run_key"], "block_key": key, **chunk} for chunk in chunks]
            connection.execute(insert(table), rows)
    layouts.unite_packed(connection, int(str(block["stream_key"])), through=packed.last_position)


def _blocks(row: Row[*tuple[Any, ...]], now: float, sizes: BlockSizes) -> int:
    ended = row.state != "running" or row.last_heard_at < now - IDLE_AFTER_SECONDS
    unpacked = int(row.unpacked)
    return math.ceil(unpacked / sizes.reports) if ended else max(0, unpacked - sizes.left_unpacked) // sizes.reports


def _fitting(
    connection: Connection, stream: FullStream, after_position: int, sizes: BlockSizes
) -> tuple[list[int], bool]:
    """Positions of the next block's reports, and whether a further report would make it too large."""
    # Lengths first: some drivers read all rows before the first one is returned.
    lengths = func.length(records.c.scalars) + func.coalesce(func.length(records.c.histograms), 0)
    (positions, seqs, sizes_in_bytes), _ = whole_columns(
        connection,
        _oldest_reports(stream, after_position).limit(sizes.reports),
        integers=[records.c.position, records.c.seq, lengths],
        float64s=[],
    )
    waiting = np.flatnonzero(seqs > stream.acked_through)
    arrived = len(positions) if len(waiting) == 0 else int(waiting[0])
    # At least one, even if it is larger than a block should be.
    small_enough = max(1, int(np.searchsorted(np.cumsum(sizes_in_bytes), sizes.bytes, side="right")))
    return positions[: min(arrived, small_enough)].tolist(), small_enough < arrived


def _oldest_reports(
    stream: FullStream, after_position: int, *columns: Table | ColumnElement[Any]
) -> Select[*tuple[Any, ...]]:
    return (
        select(*columns)
        .where(
            # By position within the run: no index is sorted by position within a stream.
            records.c.run_key == stream.run_key,
            records.c.position > after_position,
            records.c.stream_key == stream.stream_key,
            records.c.kind == _REPORT,
        )
        .order_by(records.c.position)
    )


def _block(rows: Sequence[Row[*tuple[Any, ...]]]) -> dict[str, object]:
    positions, seqs, steps, versions = (
        np.array([getattr(row, name) for row in rows], dtype=np.int64)
        for name in ("position", "seq", "step", "control_version")
    )
    label_texts = [row.labels for row in rows]
    label_sets = list(dict.fromkeys(label_texts))
    numbers = {text: index for index, text in enumerate(label_sets)}
    facts = pack_arrays(
        {
            "seq": seqs,
            "payload_hash": np.frombuffer(b"".join(row.payload_hash for row in rows), dtype=np.uint8).reshape(-1, 16),
            "received_at": np.array([row.received_at for row in rows]),
            "recorded_at": np.array([row.recorded_at for row in rows]),
            "control_version": versions,
            "labels": np.array([numbers[text] for text in label_texts], dtype=np.int64),
            "label_sets": np.frombuffer(f"[{','.join(label_sets)}]".encode(), dtype=np.uint8),
        }
    )
    return {
        "first_position": int(positions[0]),
        "last_position": int(positions[-1]),
        "first_seq": int(seqs.min()),
        "last_seq": int(seqs.max()),
        "first_step": int(steps.min()),
        "last_step": int(steps.max()),
        "reports": len(rows),
        "packed_positions": _uncounted(positions),
        "packed_steps": _uncounted(steps),
        "facts": facts,
    }


def _uncounted(numbers: NDArray[np.int64]) -> bytes | None:
    """None where the numbers are consecutive: then the first is enough."""
    return None if bool((np.diff(numbers) == 1).all()) else pack_arrays({"numbers": numbers})


def _by_layout(
    rows: Sequence[Row[*tuple[Any, ...]]], known: Mapping[int, Layout]
) -> Iterator[tuple[Layout, NDArray[np.int64], list[Row[*tuple[Any, ...]]]]]:
    keys = np.array([row.layout_key for row in rows], dtype=np.int64)
    for key in np.unique(keys):
        where = np.flatnonzero(keys == key).astype(np.int64)
        yield known[int(key)], where, [rows[int(index)] for index in where]


def _metrics(rows: Sequence[Row[*tuple[Any, ...]]], known: Mapping[int, Layout]) -> Iterator[dict[str, object]]:
    found: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64]]]] = {}
    for layout, where, members in _by_layout(rows, known):
        values = np.frombuffer(b"".join(row.scalars for row in members), dtype="<f8").reshape(len(members), -1)
        for column, name in enumerate(layout.names):
            found.setdefault(name, []).append((where, values[:, column]))
    for name, parts in found.items():
        where, values = _in_order(parts)
        yield {"name": name, "rows": _uncounted_rows(where, len(rows)), **_summary(values), "values": _values(values)}


def _histograms(rows: Sequence[Row[*tuple[Any, ...]]], known: Mapping[int, Layout]) -> Iterator[dict[str, object]]:
    found: dict[tuple[str, int], list[tuple[NDArray[np.int64], Array]]] = {}
    for layout, where, members in _by_layout(rows, known):
        blobs = b"".join(row.histograms for row in members if layout.histograms)
        pieces = np.frombuffer(
            blobs, dtype=[(f"{i}", place.dtype) for i, place in enumerate(layout.histograms)] or "u1"
        )
        for index, place in enumerate(layout.histograms):
            # One width for all, so that narrow and wide pieces fit into one array.
            wide = pieces[f"{index}"].astype(place._replace(count_bytes=8).dtype)
            found.setdefault((place.name, place.bins), []).append((where, wide))
    for (name, bins), parts in found.items():
        where, those = _in_order(parts)
        arrays = {"low": those["low"], "high": those["high"], "not_finite": those["not_finite"]}
        counts = narrowest(those["counts"])
        yield {
            "name": name,
            "bins": bins,
            "rows": _uncounted_rows(where, len(rows)),
            "count": len(where),
            "packed": pack_arrays({**arrays, "counts": counts}),
        }


def _in_order(parts: Sequence[tuple[NDArray[np.int64], Array]]) -> tuple[NDArray[np.int64], Array]:
    """The rows of several layouts in order of position."""
    where, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(where, kind="stable")
    return where[order], values[order]


def _uncounted_rows(where: NDArray[np.int64], reports: int) -> bytes | None:
    return None if len(where) == reports else pack_arrays({"numbers": where})


def _summary(values: NDArray[np.float64]) -> dict[str, object]:
    numbers = values[~np.isnan(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(values[np.isfinite(values)].sum())
    return {
        "count": len(values),
        "minimum": float(numbers.min()) if len(numbers) else None,
        "maximum": float(numbers.max()) if len(numbers) else None,
        "total": None if math.isnan(total) else total,
    }


def _values(values: NDArray[np.float64]) -> bytes:
    plain = np.ascontiguousarray(values, dtype="<f8")
    if _may_halve(plain[::8]):
        small, _ = deflate(plain)
        # Inflating takes time when reading; it must save half.
        if len(small) * 2 <= plain.nbytes:
            return small
    return plain.tobytes()


def _may_halve(sample: NDArray[np.float64]) -> bool:
    """Whether deflating may help: of most metrics the lower five of eight bytes are noise.

    A sample is counted instead of deflated: deflating releases Python's lock, and getting it back beside pushes takes
    time.
    """
    by_byte = np.sort(np.ascontiguousarray(sample).view(np.uint8).reshape(-1, sample.itemsize), axis=0)
    different = (np.diff(by_byte, axis=0) != 0).sum(axis=0) + 1
    # 125 random bytes have about a hundred different values, 1000 nearly all 256.
    noisy = different > min(len(sample), 256) // 3
    return int(noisy.sum()) < 5
