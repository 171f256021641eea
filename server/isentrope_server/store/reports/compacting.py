"""Compacting: a stream's oldest reports become one block.

Reading and packing happen on a connection that can't write; the writer only takes the reports away and puts the block
in their place, in one transaction. Killed at whatever point, the reports are in one place or in the other.
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
"""A run that was not heard of for this long is packed like one that ended."""

_REPORT = "step_report"


class BlockOvertaken(IsentropeError, RuntimeError):
    """The reports are no longer where they were read: another server packed them, or their run was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """How many reports are packed together, and how many are left."""

    reports: int = 1_000
    """Of a run that still reports."""
    left_unpacked: int = 1_000
    """Of a run that still reports: the newest are looked at most, and one by one."""
    fewest: int = 64
    """What a run that ended leaves over is packed too, unless it is less than this."""
    bytes: int = 16 * 2**20
    """Of scalars and histograms, as they are stored: packing takes some times as much memory. One report may be more."""


BLOCK_SIZES = BlockSizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class FullStream:
    """A stream with enough unpacked reports for a block."""

    run_key: int
    run_id: str
    stream_key: int
    acked_through: int
    blocks: int
    """How many can be packed now, if their reports are no larger than usual."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBlock:
    """A block as its rows will be stored; `block` is the row that the others refer to."""

    block: Mapping[str, object]
    metrics: Sequence[Mapping[str, object]]
    histograms: Sequence[Mapping[str, object]]

    @property
    def last_position(self) -> int:
        return int(str(self.block["last_position"]))

    @property
    def rows(self) -> int:
        """How many rows come and go when it is stored."""
        return int(str(self.block["reports"])) + len(self.metrics) + len(self.histograms) + 1


def full_streams(connection: Connection, now: float, sizes: BlockSizes = BLOCK_SIZES) -> list[FullStream]:
    """The streams that have a block to pack, the fullest first."""
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
    """The stream's oldest reports as a block, up to the first that still waits for one sent before it.

    Args:
        after: the block before this one, if it is not stored yet; the two must then be stored in one transaction.
    """
    packed_through = blocks.last_position(connection, stream.stream_key) if after is None else after.last_position
    fitting, is_full = _fitting(connection, stream, packed_through, sizes)
    if not fitting or (len(fitting) < sizes.fewest and not is_full):
        return None
    through = records.c.position <= fitting[-1]
    # Labels as they stand: read and written anew they would be the same text.
    columns = (cast(column, Text).label("labels") if column.key == "labels" else column for column in records.c)
    rows = connection.execute(_oldest_reports(stream, packed_through, *columns).where(through)).all()
    known = layouts.by_key(connection, {row.layout_key for row in rows})
    return PackedBlock(
        block={"run_key": stream.run_key, "stream_key": stream.stream_key, **_block(rows)},
        metrics=list(_metrics(rows, known)),
        histograms=list(_histograms(rows, known)),
    )


def replace_by(connection: Connection, packed: PackedBlock) -> None:
    """Put a block in the place of its reports, in the caller's transaction.

    Raises:
        BlockOvertaken: the reports are not there any more, and nothing may be stored.
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
    """The positions of the reports that make the next block, and whether more would be too many bytes."""
    # Their lengths first: some drivers read a whole answer before the first row is seen.
    lengths = func.length(records.c.scalars) + func.coalesce(func.length(records.c.histograms), 0)
    (positions, seqs, sizes_in_bytes), _ = whole_columns(
        connection,
        _oldest_reports(stream, after_position).limit(sizes.reports),
        integers=[records.c.position, records.c.seq, lengths],
        float64s=[],
    )
    waiting = np.flatnonzero(seqs > stream.acked_through)
    arrived = len(positions) if len(waiting) == 0 else int(waiting[0])
    # At least one: it may be larger than a block should be.
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
    """None where each number is one more than the last: then the first says it all."""
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
            # One width for all, so that narrow and wide pieces can stand in one array.
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
    """The rows of several layouts as they came."""
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
        # Only what halves is worth the time it takes to read.
        if len(small) * 2 <= plain.nbytes:
            return small
    return plain.tobytes()


def _may_halve(sample: NDArray[np.float64]) -> bool:
    """Whether trying is worth it: of most metrics the lower five of eight bytes are noise, and stay as long as they are.

    Looked at and not tried: compressing gives up Python's lock, and beside pushes each time costs a turn.
    """
    by_byte = np.sort(np.ascontiguousarray(sample).view(np.uint8).reshape(-1, sample.itemsize), axis=0)
    different = (np.diff(by_byte, axis=0) != 0).sum(axis=0) + 1
    # Of 125 random bytes about a hundred are different, of 1000 nearly all 256.
    noisy = different > min(len(sample), 256) // 3
    return int(noisy.sum()) < 5
