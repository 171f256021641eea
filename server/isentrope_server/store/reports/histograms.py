"""Histograms: the distribution of one quantity, per step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select

from isentrope_server.store import streams
from isentrope_server.store.reports import blocks, layouts
from isentrope_server.store.reports.blocks import Array, Block, HistogramChunk
from isentrope_server.store.reports.layouts import HistogramPlace, Layout, layout_of
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.streams import Timeline
from isentrope_server.store.tables import histogram_chunks, records
from isentrope_server.store.tables import report_layouts as layouts_table

_LAYOUTS_AT_ONCE = 10_000
"""A statement may have three times as many parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistogram:
    """Counts over equal bins of [low, high] at one step."""

    name: str
    step: int
    low: float
    high: float
    counts: NDArray[np.uint64]
    not_finite: int


def at(connection: Connection, run_key: int, position: int, block: Block | None) -> list[StoredHistogram]:
    """Read the histograms of one report, by name.

    Args:
        position: of the report.
        block: where the report is packed; None where it was not packed when it was read.
    """
    if block is None:
        row = connection.execute(
            select(
                records.c.step, records.c.histograms, layouts_table.c.names, layouts_table.c.histograms.label("places")
            )
            .join(layouts_table, layouts_table.c.key == records.c.layout_key)
            .where(records.c.run_key == run_key, records.c.position == position)
        ).one_or_none()
        if row is not None:
            return _unpacked(layout_of(row.names, row.places), row.step, row.histograms)
        # Packed meanwhile.
        ((block, _),) = blocks.at(connection, run_key, position)
    row_of_report = int(np.flatnonzero(block.positions == position)[0])
    step = int(block.steps[row_of_report])
    found = []
    for chunk in blocks.histogram_chunks_of(connection, run_key, histogram_chunks.c.block_key == block.key):
        (place,) = blocks.places_of([row_of_report], chunk.rows)
        if place >= 0:
            found.append(_of_chunk(chunk, place, step))
    return found


def read(
    connection: Connection, run_key: int, name: str, wanted: StepRange, *, points: int | None
) -> list[StoredHistogram]:
    """Read one histogram per step, by rising step.

    Args:
        points: at most this many; neighbours with equal edges are added, of others the last is kept. None: all.
    """
    parts = [*_unpacked_parts(connection, run_key, name, wanted), *_packed_parts(connection, run_key, name, wanted)]
    if not parts:
        return []
    steps, stream_keys, positions = (
        np.concatenate([getattr(part, field) for part in parts]) for field in ("steps", "stream_keys", "positions")
    )
    chosen = Timeline(streams.incarnations(connection, run_key)).shown(steps, stream_keys, positions)
    part_of = np.repeat(np.arange(len(parts)), [len(part.steps) for part in parts])[chosen]
    starts = np.cumsum([0, *(len(part.steps) for part in parts)])
    row_of = chosen - starts[part_of]
    if points is None or len(chosen) <= points:
        return [parts[index].histogram(int(row)) for index, row in zip(part_of.tolist(), row_of, strict=True)]
    return _reduced(parts, part_of, row_of, points)


def is_known(connection: Connection, run_key: int, name: str) -> bool:
    """Whether the run has ever reported a histogram of this name."""
    used = layouts.used_by(connection, run_key)
    return any(place.name == name for layout in used for place in layout.layout.histograms)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Histograms of one name and number of bins, as columns of one length."""

    name: str
    positions: NDArray[np.int64]
    stream_keys: NDArray[np.int64]
    steps: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    not_finite: NDArray[np.uint64]
    counts: Array

    def histogram(self, row: int) -> StoredHistogram:
        return StoredHistogram(
            name=self.name,
            step=int(self.steps[row]),
            low=float(self.low[row]),
            high=float(self.high[row]),
            counts=self.counts[row].astype(np.uint64),
            not_finite=int(self.not_finite[row]),
        )


def _unpacked(layout: Layout, step: int, blob: bytes) -> list[StoredHistogram]:
    found = []
    for place in layout.histograms:
        piece = np.frombuffer(blob, dtype=place.dtype, count=1, offset=layout.start_of(place))[0]
        found.append(
            StoredHistogram(
                name=place.name,
                step=step,
                low=float(piece["low"]),
                high=float(piece["high"]),
                counts=piece["counts"].astype(np.uint64),
                not_finite=int(piece["not_finite"]),
            )
        )
    return found


def _of_chunk(chunk: HistogramChunk, place: int, step: int) -> StoredHistogram:
    return StoredHistogram(
        name=chunk.name,
        step=step,
        low=float(chunk.low[place]),
        high=float(chunk.high[place]),
        counts=chunk.counts[place].astype(np.uint64),
        not_finite=int(chunk.not_finite[place]),
    )


def _unpacked_parts(connection: Connection, run_key: int, name: str, wanted: StepRange) -> Iterator[_Part]:
    used = {layout.key: layout.layout for layout in layouts.used_by(connection, run_key)}
    # Reports with different metrics mostly have the same histograms.
    alike: dict[tuple[HistogramPlace, int], list[int]] = defaultdict(list)
    for key, layout in used.items():
        place = next((place for place in layout.histograms if place.name == name), None)
        if place is not None:
            alike[place, layout.start_of(place)].append(key)
    for (place, start), keys in alike.items():
        for first in range(0, len(keys), _LAYOUTS_AT_ONCE):
            yield _unpacked_part(connection, run_key, keys[first : first + _LAYOUTS_AT_ONCE], place, start, wanted)


def _unpacked_part(
    connection: Connection,
    run_key: int,
    layout_keys: Sequence[int],
    place: HistogramPlace,
    start: int,
    wanted: StepRange,
) -> _Part:
    # substr counts from 1.
    piece = func.substr(records.c.histograms, start + 1, place.bytes, type_=records.c.histograms.type)
    query = select(records.c.position, records.c.stream_key, records.c.step, piece.label("piece")).where(
        records.c.run_key == run_key, records.c.layout_key.in_(layout_keys), *wanted.conditions(records.c.step)
    )
    rows = connection.execute(query).all()
    pieces = np.frombuffer(b"".join(row.piece for row in rows), dtype=place.dtype)
    return _Part(
        name=place.name,
        positions=np.array([row.position for row in rows], dtype=np.int64),
        stream_keys=np.array([row.stream_key for row in rows], dtype=np.int64),
        steps=np.array([row.step for row in rows], dtype=np.int64),
        **{field: pieces[field] for field in ("low", "high", "not_finite", "counts")},
    )


def _packed_parts(connection: Connection, run_key: int, name: str, wanted: StepRange) -> Iterator[_Part]:
    by_key = {block.key: block for block in blocks.of_run(connection, run_key, *wanted.conditions_on_blocks())}
    if not by_key:
        return
    conditions = [histogram_chunks.c.name == name, histogram_chunks.c.block_key.between(min(by_key), max(by_key))]
    for chunk in blocks.histogram_chunks_of(connection, run_key, *conditions):
        block = by_key.get(chunk.block_key)
        if block is not None:
            yield _packed_part(block, chunk, wanted)


def _packed_part(block: Block, chunk: HistogramChunk, wanted: StepRange) -> _Part:
    rows = np.arange(block.reports) if chunk.rows is None else chunk.rows
    inside = wanted.holds(block.steps[rows])
    return _Part(
        name=chunk.name,
        positions=block.positions[rows][inside],
        stream_keys=np.full(int(inside.sum()), block.stream_key, dtype=np.int64),
        steps=block.steps[rows][inside],
        low=chunk.low[inside],
        high=chunk.high[inside],
        not_finite=chunk.not_finite[inside],
        counts=chunk.counts[inside],
    )


def _reduced(
    parts: Sequence[_Part], part_of: NDArray[np.intp], row_of: NDArray[np.intp], points: int
) -> list[StoredHistogram]:
    """Buckets of neighbours, each with the edges of its last; histograms with these edges are added."""
    ends = np.linspace(0, len(row_of), points + 1).astype(np.intp)[1:]
    bucket_of = np.searchsorted(ends, np.arange(len(row_of)), side="right")
    buckets = [parts[part_of[end - 1]].histogram(int(row_of[end - 1])) for end in ends]
    low, high = (np.array([getattr(bucket, edge) for bucket in buckets]) for edge in ("low", "high"))
    bins = np.array([len(bucket.counts) for bucket in buckets])
    is_last = np.zeros(len(row_of), dtype=bool)
    is_last[ends - 1] = True
    for index in np.unique(part_of):
        part, mine = parts[int(index)], np.flatnonzero((part_of == index) & ~is_last)
        rows, bucket = row_of[mine], bucket_of[mine]
        alike = (part.low[rows] == low[bucket]) & (part.high[rows] == high[bucket])
        alike &= bins[bucket] == part.counts.shape[1]
        _add(buckets, bucket[alike], part, rows[alike])
    return buckets


def _add(buckets: list[StoredHistogram], bucket_of: NDArray[np.intp], part: _Part, rows: NDArray[np.intp]) -> None:
    """Add rows of a part to their buckets; neighbours share one."""
    if not len(rows):
        return
    firsts = np.flatnonzero(np.diff(bucket_of, prepend=-1))
    counts = np.add.reduceat(part.counts[rows], firsts, axis=0, dtype=np.uint64)
    not_finite = np.add.reduceat(part.not_finite[rows], firsts)
    for bucket, more, more_non_finite in zip(bucket_of[firsts].tolist(), counts, not_finite.tolist(), strict=True):
        known = buckets[bucket]
        buckets[bucket] = replace(known, counts=known.counts + more, not_finite=known.not_finite + more_non_finite)
