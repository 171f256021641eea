"""Blocks: reports that a compactor packed, as everybody reads them.

A block holds neighbouring reports of one stream by rising position. What its reports share stands in `blocks`, each
metric in a chunk of its own, each histogram in another. Within a stream, whatever is packed came before whatever is not.

Whoever needs packed and unpacked reports reads the unpacked ones first: a block that is packed in between is then seen
twice, under the same positions, and never missed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Row, func, select

from isentrope_server.store.packed_arrays import Array, inflate, unpack
from isentrope_server.store.tables import blocks, histogram_chunks, metric_chunks

_FLOAT64 = np.dtype("<f8")


@dataclass(kw_only=True)  # not frozen: a run has thousands, and freezing takes longer than reading them
class Block:
    """Where a block stands: `reports` reports of one stream, by rising position."""

    key: int
    stream_key: int
    first_position: int
    last_position: int
    first_step: int
    """The lowest step; not always the first report's."""
    last_step: int
    reports: int
    packed_positions: bytes | None
    """None: one after the other."""
    packed_steps: bytes | None
    """None: each is one more than the last."""

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        return _counted(self.first_position, self.reports, self.packed_positions)

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        return _counted(self.first_step, self.reports, self.packed_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChunk:
    """One metric of one block."""

    name: str
    block_key: int
    rows: NDArray[np.int64] | None
    """Which of the block's reports hold it; None: all."""
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramChunk:
    """One histogram of one block, for those of its reports that have so many bins."""

    name: str
    block_key: int
    rows: NDArray[np.int64] | None
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    not_finite: NDArray[np.uint64]
    counts: Array
    """Shape (reports, bins), unsigned."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the reports of a block say besides their numbers; one row each."""

    seq: NDArray[np.int64]
    payload_hash: Array
    received_at: NDArray[np.float64]
    recorded_at: NDArray[np.float64]
    control_version: NDArray[np.int64]
    labels: Array
    """Index into `label_sets`."""
    label_sets: Sequence[Mapping[str, str]]


def of_run(connection: Connection, run_key: int, *where: ColumnElement[bool]) -> list[Block]:
    """The run's blocks that fulfil all conditions on the table, by first position."""
    query = select(*_COLUMNS).where(blocks.c.run_key == run_key, *where).order_by(blocks.c.first_position)
    return [Block(**row._mapping) for row in connection.execute(query)]


def at(connection: Connection, run_key: int, position: int) -> list[tuple[Block, int]]:
    """The packed report at a position as (block, row): at most one."""
    around = of_run(connection, run_key, blocks.c.first_position <= position, blocks.c.last_position >= position)
    return [
        (block, int(row))
        for block in around
        # Blocks of several ranks overlap.
        for row in np.flatnonzero(block.positions == position)
    ]


def last_position(connection: Connection, stream_key: int) -> int:
    """How far a stream is packed; 0: not at all."""
    query = select(func.max(blocks.c.last_position)).where(blocks.c.stream_key == stream_key)
    return connection.execute(query).scalar() or 0


def facts(connection: Connection, block_key: int) -> Facts:
    """What the reports of a block say besides their numbers."""
    return read_facts(connection.execute(select(blocks.c.facts).where(blocks.c.key == block_key)).scalar_one())


def read_facts(stored: bytes) -> Facts:
    arrays = unpack(stored)
    label_sets = json.loads(arrays.pop("label_sets").tobytes())
    return Facts(**arrays, label_sets=label_sets)


def payload_hashes(connection: Connection, stream_key: int, seqs: Sequence[int]) -> dict[int, bytes]:
    """The payload hashes of those of a stream's packed reports that have one of these seqs."""
    found: dict[int, bytes] = {}
    around = select(blocks.c.facts).where(
        blocks.c.stream_key == stream_key, blocks.c.first_seq <= max(seqs), blocks.c.last_seq >= min(seqs)
    )
    for stored in connection.execute(around).scalars():
        those = read_facts(stored)
        for row in np.flatnonzero(np.isin(those.seq, seqs)):
            # numpy would cut zero bytes off the end of a fixed-width string.
            found[int(those.seq[row])] = those.payload_hash[row].tobytes()
    return found


def metric_chunks_of(
    connection: Connection, run_key: int, names: Sequence[str], among: Collection[int]
) -> Iterator[MetricChunk]:
    """The chunks of these metrics in blocks with keys `among` these, by key; of a few blocks in between maybe too."""
    table = metric_chunks.c
    query = (
        select(table.name, table.block_key, table.rows, table.count, table["values"])
        .where(table.run_key == run_key, table.name.in_(names), table.block_key.between(min(among), max(among)))
        .order_by(table.block_key)
    )
    return (_metric_chunk(row) for row in connection.execute(query))


def metrics_of_block(connection: Connection, run_key: int, block_key: int) -> list[MetricChunk]:
    """Every metric of one block, by name."""
    table = metric_chunks.c
    query = select(table.name, table.block_key, table.rows, table.count, table["values"]).where(
        table.run_key == run_key, table.block_key == block_key
    )
    return sorted((_metric_chunk(row) for row in connection.execute(query)), key=lambda chunk: chunk.name)


def newest_metric_chunks(
    connection: Connection, run_key: int, stream_key: int, names: Collection[str]
) -> list[tuple[Block, MetricChunk]]:
    """For each of these metrics the newest chunk that a stream has of it, with its block."""
    newest = of_run(
        connection,
        run_key,
        blocks.c.stream_key == stream_key,
        blocks.c.last_position == last_position(connection, stream_key),
    )
    found = [
        (block, chunk)
        for block in newest
        for chunk in metrics_of_block(connection, run_key, block.key)
        if chunk.name in names
    ]
    # Most metrics are in there; what was measured once, long ago, is looked for by name.
    missing = set(names).difference(chunk.name for _, chunk in found)
    table = metric_chunks.c
    last_of_name = (
        select(table.name, func.max(table.block_key).label("block_key"))
        .join(blocks, blocks.c.key == table.block_key)
        .where(table.run_key == run_key, table.name.in_(missing), blocks.c.stream_key == stream_key)
        .group_by(table.name)
        .subquery()
    )
    query = (
        select(table.name, table.block_key, table.rows, table.count, table["values"])
        .join(last_of_name, (table.name == last_of_name.c.name) & (table.block_key == last_of_name.c.block_key))
        .where(table.run_key == run_key)
    )
    older = [_metric_chunk(row) for row in connection.execute(query)] if missing else []
    by_key = {
        block.key: block
        for block in (
            of_run(connection, run_key, blocks.c.key.in_({chunk.block_key for chunk in older})) if older else []
        )
    }
    return [*found, *((by_key[chunk.block_key], chunk) for chunk in older)]


def histogram_chunks_of(connection: Connection, run_key: int, *where: ColumnElement[bool]) -> Iterator[HistogramChunk]:
    """The histogram chunks that fulfil all conditions on their table, by name."""
    table = histogram_chunks.c
    query = (
        select(table.name, table.block_key, table.rows, table.count, table.bins, table.packed)
        .where(table.run_key == run_key, *where)
        .order_by(table.name)
    )
    return (_histogram_chunk(row) for row in connection.execute(query))


def read_values(stored: bytes, count: int) -> NDArray[np.float64]:
    """A chunk's values: as they are, unless they were worth deflating, which always leaves fewer bytes."""
    if len(stored) == count * _FLOAT64.itemsize:
        return np.frombuffer(stored, dtype=_FLOAT64)
    return inflate(stored, _FLOAT64)


_COLUMNS = (
    blocks.c.key,
    blocks.c.stream_key,
    blocks.c.first_position,
    blocks.c.last_position,
    blocks.c.first_step,
    blocks.c.last_step,
    blocks.c.reports,
    blocks.c.packed_positions,
    blocks.c.packed_steps,
)


def _counted(first: int, count: int, packed: bytes | None) -> NDArray[np.int64]:
    return np.arange(first, first + count, dtype=np.int64) if packed is None else unpack(packed)["numbers"]


def _rows(stored: bytes | None) -> NDArray[np.int64] | None:
    return None if stored is None else unpack(stored)["numbers"]


def _metric_chunk(row: Row[*tuple[Any, ...]]) -> MetricChunk:
    name, block_key, rows, count, values = row
    return MetricChunk(name=name, block_key=block_key, rows=_rows(rows), values=read_values(values, count))


def _histogram_chunk(row: Row[*tuple[Any, ...]]) -> HistogramChunk:
    arrays = unpack(row.packed)
    return HistogramChunk(name=row.name, block_key=row.block_key, rows=_rows(row.rows), **arrays)
