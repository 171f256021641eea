"""Blocks of packed reports: their format, and how they are read.

A block holds neighbouring reports of one stream by rising position. The table `blocks` holds what its reports share;
each metric and each histogram is a chunk of its own. Within a stream, packed reports come before unpacked ones.

Code that needs both reads the unpacked reports first: reports packed in between are then read twice, under the same
positions, and never missed.

Facts of a block's reports are named arrays in one blob. Columns of int64 are stored as differences in the narrowest
type that holds them, bytes of one significance are stored together, and an array that shrinks by a quarter is deflated.
Reading returns the same values in the same types.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Row, func, select

from isentrope_server.store.tables import blocks, histogram_chunks, metric_chunks

Array = NDArray[Any]

_HEADER_LENGTH = struct.Struct("<I")
_DEFLATE_LEVEL = 1
"""Higher levels take several times as long and save a few percent."""


def pack_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Pack arrays into one blob.

    Args:
        arrays: by name, of numbers or fixed-width bytes, of any shape.
    """
    entries, bodies = [], []
    for name, given in arrays.items():
        array = np.ascontiguousarray(given)
        stored, differs = _narrowed(array)
        body, deflated = deflate(stored)
        entries.append([name, array.dtype.str, stored.dtype.str, list(array.shape), differs, deflated, len(body)])
        bodies.append(body)
    header = json.dumps(entries, separators=(",", ":")).encode()
    return b"".join((_HEADER_LENGTH.pack(len(header)), header, *bodies))


def unpack_arrays(packed: bytes) -> dict[str, Array]:
    """Read the arrays of `pack_arrays`, by name."""
    (length,) = _HEADER_LENGTH.unpack_from(packed)
    place = _HEADER_LENGTH.size + length
    arrays: dict[str, Array] = {}
    for name, dtype, stored_dtype, shape, differs, deflated, size in json.loads(packed[_HEADER_LENGTH.size : place]):
        body = packed[place : place + size]
        stored = inflate(body, np.dtype(stored_dtype)) if deflated else np.frombuffer(body, dtype=stored_dtype)
        whole = np.cumsum(stored, dtype=np.int64) if differs else stored
        arrays[name] = whole.astype(dtype, copy=False).reshape(shape)
        place += size
    return arrays


def deflate(array: Array) -> tuple[bytes, bool]:
    """The bytes of an array, deflated where that saves a quarter, and whether they are deflated."""
    plain = array.tobytes()
    small = zlib.compress(_bytes_by_significance(plain, array.dtype.itemsize), _DEFLATE_LEVEL)
    return (small, True) if len(small) <= len(plain) * 3 // 4 else (plain, False)


def inflate(body: bytes, dtype: np.dtype[Any]) -> Array:
    """Read the flat array from deflated bytes."""
    by_significance = np.frombuffer(zlib.decompress(body), dtype=np.uint8).reshape(dtype.itemsize, -1)
    return np.ascontiguousarray(by_significance.T).reshape(-1).view(dtype)


def narrowest(array: Array) -> Array:
    """The same whole numbers in the smallest type that holds them all."""
    if array.size == 0:
        return array
    low, high = int(array.min()), int(array.max())
    # Negative and large numbers together need a signed type that holds both.
    return array.astype(np.min_scalar_type(high) if low >= 0 else np.min_scalar_type(min(low, -high - 1)))


def _narrowed(array: Array) -> tuple[Array, bool]:
    """The array to store, and whether it holds differences of neighbours."""
    if array.dtype != np.int64 or array.ndim != 1:
        return array, False
    # Differences that overflow wrap around, and back when they are summed.
    return narrowest(np.diff(array, prepend=0)), True


def _bytes_by_significance(plain: bytes, width: int) -> bytes:
    if width == 1:
        return plain
    return np.ascontiguousarray(np.frombuffer(plain, dtype=np.uint8).reshape(-1, width).T).tobytes()


_FLOAT64 = np.dtype("<f8")


@dataclass(kw_only=True)  # not frozen: a run has thousands, and freezing takes longer than reading
class Block:
    """Position of a block: `reports` reports of one stream, by rising position."""

    key: int
    stream_key: int
    first_position: int
    last_position: int
    first_step: int
    """The lowest step, which need not be the first report's."""
    last_step: int
    reports: int
    packed_positions: bytes | None
    """None: consecutive."""
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
    """Indices of the block's reports that have the metric; None: all."""
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramChunk:
    """One histogram of one block, for its reports with this number of bins."""

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
    """What the reports of a block contain besides numbers; one row each."""

    seq: NDArray[np.int64]
    payload_hash: Array
    received_at: NDArray[np.float64]
    recorded_at: NDArray[np.float64]
    control_version: NDArray[np.int64]
    labels: Array
    """Index into `label_sets`."""
    label_sets: Sequence[Mapping[str, str]]


def of_run(connection: Connection, run_key: int, *where: ColumnElement[bool]) -> list[Block]:
    """A run's blocks that fulfil all conditions on the table, by first position."""
    query = select(*_COLUMNS).where(blocks.c.run_key == run_key, *where).order_by(blocks.c.first_position)
    return [Block(**row._mapping) for row in connection.execute(query)]


def at(connection: Connection, run_key: int, position: int) -> list[tuple[Block, int]]:
    """The packed report at a position as (block, row), at most one."""
    around = of_run(connection, run_key, blocks.c.first_position <= position, blocks.c.last_position >= position)
    return [
        (block, int(row))
        for block in around
        # Blocks of several ranks overlap.
        for row in np.flatnonzero(block.positions == position)
    ]


def last_position(connection: Connection, stream_key: int) -> int:
    """The last packed position of a stream; 0 without any."""
    query = select(func.max(blocks.c.last_position)).where(blocks.c.stream_key == stream_key)
    return connection.execute(query).scalar() or 0


def facts_of_block(connection: Connection, block_key: int) -> Facts:
    """Read what the reports of a block contain besides numbers."""
    return read_facts(connection.execute(select(blocks.c.facts).where(blocks.c.key == block_key)).scalar_one())


def read_facts(stored: bytes) -> Facts:
    arrays = unpack_arrays(stored)
    label_sets = json.loads(arrays.pop("label_sets").tobytes())
    return Facts(**arrays, label_sets=label_sets)


def payload_hashes(connection: Connection, stream_key: int, seqs: Sequence[int]) -> dict[int, bytes]:
    """Payload hashes of a stream's packed reports with these seqs, by seq."""
    found: dict[int, bytes] = {}
    around = select(blocks.c.facts).where(
        blocks.c.stream_key == stream_key, blocks.c.first_seq <= max(seqs), blocks.c.last_seq >= min(seqs)
    )
    for stored in connection.execute(around).scalars():
        those = read_facts(stored)
        for row in np.flatnonzero(np.isin(those.seq, seqs)):
            # numpy would remove zero bytes at the end of a fixed-width string.
            found[int(those.seq[row])] = those.payload_hash[row].tobytes()
    return found


def metric_chunks_of(
    connection: Connection, run_key: int, names: Sequence[str], among: Collection[int]
) -> Iterator[MetricChunk]:
    """Chunks of metrics in the blocks with these keys, by key; some of blocks in between may be among them."""
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
    """A stream's newest chunk of each of these metrics, with its block."""
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
    # The newest block has most metrics; a metric last measured long ago needs a query by name.
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
    """A run's histogram chunks that fulfil all conditions on their table, by name."""
    table = histogram_chunks.c
    query = (
        select(table.name, table.block_key, table.rows, table.count, table.bins, table.packed)
        .where(table.run_key == run_key, *where)
        .order_by(table.name)
    )
    return (_histogram_chunk(row) for row in connection.execute(query))


def read_values(stored: bytes, count: int) -> NDArray[np.float64]:
    """Read a chunk's values; deflated ones always have fewer bytes than `count` values."""
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
    return np.arange(first, first + count, dtype=np.int64) if packed is None else unpack_arrays(packed)["numbers"]


def _rows(stored: bytes | None) -> NDArray[np.int64] | None:
    return None if stored is None else unpack_arrays(stored)["numbers"]


def _metric_chunk(row: Row[*tuple[Any, ...]]) -> MetricChunk:
    name, block_key, rows, count, values = row
    return MetricChunk(name=name, block_key=block_key, rows=_rows(rows), values=read_values(values, count))


def _histogram_chunk(row: Row[*tuple[Any, ...]]) -> HistogramChunk:
    arrays = unpack_arrays(row.packed)
    return HistogramChunk(name=row.name, block_key=row.block_key, rows=_rows(row.rows), **arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReport:
    """One step report without its histograms, packed or not."""

    position: int
    stream_key: int
    step: int
    recorded_at: float
    received_at: float
    control_version: int
    scalars: Mapping[str, float]
    labels: Mapping[str, str]


def read_packed_reports(connection: Connection, run_key: int, block: Block, rows: Sequence[int]) -> list[StoredReport]:
    """Read the reports in these rows of a block, in this order."""
    facts = facts_of_block(connection, block.key)
    scalars: list[dict[str, float]] = [{} for _ in rows]
    for chunk in metrics_of_block(connection, run_key, block.key):
        for index, place in enumerate(places_of(rows, chunk.rows)):
            if place >= 0:
                scalars[index][chunk.name] = float(chunk.values[place])
    return [
        StoredReport(
            position=int(block.positions[row]),
            stream_key=block.stream_key,
            step=int(block.steps[row]),
            recorded_at=float(facts.recorded_at[row]),
            received_at=float(facts.received_at[row]),
            control_version=int(facts.control_version[row]),
            scalars=scalars[index],
            labels=facts.label_sets[int(facts.labels[row])],
        )
        for index, row in enumerate(rows)
    ]


def places_of(rows: Sequence[int], held: NDArray[np.int64] | None) -> list[int]:
    """Index in a chunk of the value of each row; -1 without one.

    Args:
        rows: of the block.
        held: the rows the chunk has; None: all.
    """
    if held is None:
        return list(rows)
    places = np.searchsorted(held, rows)
    found = held[np.minimum(places, len(held) - 1)] == rows
    return [int(place) for place in np.where(found, places, -1)]
