"""Series, part by part: what rows of their own and chunks hold of some metrics, each part of one stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, func, select

from isentrope_server.store import blocks, layouts
from isentrope_server.store.blocks import Block, MetricChunk
from isentrope_server.store.layouts import Names, UsedLayout
from isentrope_server.store.tables import blocks as blocks_table
from isentrope_server.store.tables import records
from isentrope_server.store.timeline import Timeline
from isentrope_server.store.whole_columns import whole_columns

_FLOAT64_BYTES = 8
_FEW_LAYOUTS = 4
"""For each of so many, rows are looked through; with more, all rows are read once and whole."""
_ROWS_AT_ONCE = 20_000
_FLOATS_AT_ONCE = 2_000_000
"""Of whole rows; some times as many bytes as they are stored in are needed to read them."""
_NOT_THERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """Steps first..last, both included; None: open."""

    first: int | None = None
    last: int | None = None

    def conditions(self, step: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """What a column must fulfil to lie within."""
        bounds = [] if self.first is None else [step >= self.first]
        return bounds if self.last is None else [*bounds, step <= self.last]

    def conditions_on_blocks(self) -> list[ColumnElement[bool]]:
        """What a block must fulfil to hold a report of these steps."""
        later = [] if self.first is None else [blocks_table.c.last_step >= self.first]
        return later if self.last is None else [*later, blocks_table.c.first_step <= self.last]

    def holds(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these steps lie within."""
        inside = np.ones(len(steps), dtype=bool)
        if self.first is not None:
            inside &= steps >= self.first
        if self.last is not None:
            inside &= steps <= self.last
        return inside

    def covers(self, block: Block) -> bool:
        """Whether all steps of a block lie within."""
        return (self.first is None or self.first <= block.first_step) and (
            self.last is None or block.last_step <= self.last
        )


@dataclass(slots=True)
class Part:
    """Some values of one metric, of one stream, by rising position."""

    stream_key: int
    positions: NDArray[np.int64]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def at(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Part:
        return Part(self.stream_key, self.positions[rows], self.steps[rows], self.values[rows])


def quietest_first(parts: Sequence[Part], timeline: Timeline) -> list[Part]:
    """Only what speaks for its step unless a later value does: louder streams, and later reports of one, come last."""
    ordered = sorted(
        (part for part in parts if len(part.steps)),
        key=lambda part: (*timeline.order_of(part.stream_key), part.positions[0]),
    )
    return [_through(part, timeline.speaks_through(part.stream_key)) for part in ordered]


def unpacked(
    connection: Connection, run_key: int, names: Sequence[str], wanted: StepRange
) -> Iterator[tuple[str, Part]]:
    """What rows of their own hold of these metrics."""
    used = {layout.key: layout for layout in layouts.used_by(connection, run_key)}
    holding = {key: layout for key, layout in used.items() if not set(names).isdisjoint(layout.names)}
    found = (
        _of_many_layouts(connection, run_key, holding, names, wanted)
        if len(holding) > _FEW_LAYOUTS
        else chain.from_iterable(
            _of_layout(connection, run_key, layout, [name for name in names if name in layout.names], wanted)
            for layout in holding.values()
        )
    )
    by_stream: dict[tuple[str, int], list[Part]] = {}
    for name, part in found:
        by_stream.setdefault((name, part.stream_key), []).append(part)
    # Rows of different layouts take turns; those of one stream make one part, by position.
    for (name, _), parts in by_stream.items():
        yield name, _joined(parts)


def packed(connection: Connection, run_key: int, names: Sequence[str], wanted: StepRange) -> Iterator[tuple[str, Part]]:
    """What blocks hold of these metrics, a chunk at a time."""
    by_key = {block.key: block for block in blocks.of_run(connection, run_key, *wanted.conditions_on_blocks())}
    if not by_key:
        return
    for chunk in blocks.metric_chunks_of(connection, run_key, names, by_key):
        block = by_key.get(chunk.block_key)
        if block is not None:
            part = _chunk(block, chunk)
            yield chunk.name, part if wanted.covers(block) else part.at(wanted.holds(part.steps))


def _through(part: Part, step: int) -> Part:
    return part if part.steps[-1] <= step and bool((part.steps <= step).all()) else part.at(part.steps <= step)


def _chunk(block: Block, chunk: MetricChunk) -> Part:
    if chunk.rows is None:
        return Part(block.stream_key, block.positions, block.steps, chunk.values)
    return Part(block.stream_key, block.positions[chunk.rows], block.steps[chunk.rows], chunk.values)


def _of_layout(
    connection: Connection, run_key: int, layout: UsedLayout, names: Sequence[str], wanted: StepRange
) -> Iterator[tuple[str, Part]]:
    """Only those 8 bytes of each blob that hold the names are read."""
    starts = (layout.names.index(name) * _FLOAT64_BYTES + 1 for name in names)
    (positions, stream_keys, steps), columns = whole_columns(
        connection,
        select()
        .where(records.c.run_key == run_key, records.c.layout_key == layout.key, *wanted.conditions(records.c.step))
        .order_by(records.c.position),
        integers=[records.c.position, records.c.stream_key, records.c.step],
        float64s=[
            func.substr(records.c.scalars, start, _FLOAT64_BYTES, type_=records.c.scalars.type) for start in starts
        ],
    )
    for stream_key in np.unique(stream_keys):
        of_stream = stream_keys == stream_key
        for name, values in zip(names, columns, strict=True):
            yield name, Part(int(stream_key), positions[of_stream], steps[of_stream], values[of_stream])


def _of_many_layouts(
    connection: Connection, run_key: int, used: Mapping[int, UsedLayout], names: Sequence[str], wanted: StepRange
) -> Iterator[tuple[str, Part]]:
    """Whole blobs, but each row once: rows of a layout are found by looking at all rows."""
    keys = np.array(sorted(used), dtype=np.int64)
    of_keys = [used[key].names for key in keys.tolist()]
    columns = {name: np.array([_column_of(layout, name) for layout in of_keys], dtype=np.int64) for name in names}
    rows_at_once = max(1, min(_ROWS_AT_ONCE, _FLOATS_AT_ONCE // max(len(layout) for layout in of_keys)))
    after = 0
    while True:
        (positions, stream_keys, steps, layout_keys, lengths), (floats,) = whole_columns(
            connection,
            select()
            .where(
                records.c.run_key == run_key,
                records.c.position > after,
                records.c.layout_key.is_not(None),
                *wanted.conditions(records.c.step),
            )
            .order_by(records.c.position)
            .limit(rows_at_once),
            integers=[
                records.c.position,
                records.c.stream_key,
                records.c.step,
                records.c.layout_key,
                func.length(records.c.scalars),
            ],
            float64s=[records.c.scalars],
        )
        if not len(positions):
            return
        after = int(positions[-1])
        starts = np.concatenate(([0], np.cumsum(lengths // _FLOAT64_BYTES)))[:-1]
        # A report that came since the layouts were listed may have another one, and is not read yet.
        place = np.minimum(np.searchsorted(keys, layout_keys), len(keys) - 1)
        is_listed = keys[place] == layout_keys
        for name, column_of_key in columns.items():
            column = column_of_key[place]
            held = is_listed & (column != _NOT_THERE)
            for stream_key in np.unique(stream_keys[held]):
                rows = held & (stream_keys == stream_key)
                values = floats[starts[rows] + column[rows]]
                yield name, Part(int(stream_key), positions[rows], steps[rows], values)


def _column_of(layout: Names, name: str) -> int:
    """Names of a layout are sorted."""
    place = bisect_left(layout, name)
    return place if place < len(layout) and layout[place] == name else _NOT_THERE


def _joined(parts: Sequence[Part]) -> Part:
    positions, steps, values = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("positions", "steps", "values")
    )
    return Part(parts[0].stream_key, positions, steps, values).at(np.argsort(positions))
