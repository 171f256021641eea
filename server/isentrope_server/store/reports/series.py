"""Series: one metric over the steps of a run, read from unpacked rows and from blocks.

SQLite's driver releases Python's lock for each row and waits for it again: beside two busy threads 50 000 rows took 1.1
s instead of 0.17 s. `whole_columns` has SQLite join each column to one text, which took 0.37 s. PostgreSQL's driver
reads all rows at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Select, func, select

from isentrope_server.store import streams
from isentrope_server.store.database import SQLITE
from isentrope_server.store.reports import blocks, layouts
from isentrope_server.store.reports.blocks import Block, MetricChunk
from isentrope_server.store.reports.layouts import Names, UsedLayout, unpack
from isentrope_server.store.streams import Timeline
from isentrope_server.store.tables import blocks as blocks_table
from isentrope_server.store.tables import records


def whole_columns(
    connection: Connection,
    query: Select[*tuple[Any, ...]],
    *,
    integers: Sequence[ColumnElement[Any]],
    float64s: Sequence[ColumnElement[Any]],
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
    """Read a query's rows as one array per column.

    Args:
        query: FROM, WHERE and ORDER BY; it selects no column yet.
        integers: columns without NULL.
        float64s: columns of 8 bytes each, little-endian, without NULL.
    """
    if connection.dialect.name == SQLITE:
        return _joined_by_sqlite(connection, query, integers, float64s)
    columns = list(zip(*connection.execute(query.add_columns(*integers, *float64s)).all(), strict=True))
    if not columns:
        columns = [()] * (len(integers) + len(float64s))
    whole, parts = columns[: len(integers)], columns[len(integers) :]
    return [np.array(column, dtype=np.int64) for column in whole], [_float64s(b"".join(column)) for column in parts]


def _joined_by_sqlite(
    connection: Connection,
    query: Select[*tuple[Any, ...]],
    integers: Sequence[ColumnElement[Any]],
    float64s: Sequence[ColumnElement[Any]],
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.float64]]]:
    numbered = [column.label(f"column_{index}") for index, column in enumerate((*integers, *float64s))]
    rows = query.add_columns(*numbered).subquery()
    columns = [rows.c[column.name] for column in numbered]
    joined = connection.execute(
        select(
            *(func.group_concat(column) for column in columns[: len(integers)]),
            # Hexadecimal, because a NUL in a blob would end the text.
            *(func.group_concat(func.hex(column), "") for column in columns[len(integers) :]),
        )
    ).one()
    texts = [text or "" for text in joined]
    return (
        [np.fromstring(text, dtype=np.int64, sep=",") for text in texts[: len(integers)]],
        [_float64s(bytes.fromhex(text)) for text in texts[len(integers) :]],
    )


def _float64s(column: bytes) -> NDArray[np.float64]:
    return np.frombuffer(column, dtype="<f8")


_FLOAT64_BYTES = 8
_FEW_LAYOUTS = 4
"""Up to this many layouts are queried one by one; with more, all rows are read once."""
_ROWS_AT_ONCE = 20_000
_FLOATS_AT_ONCE = 2_000_000
"""Of whole rows; reading them needs several times their stored bytes."""
_NOT_THERE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """Steps first..last, both included; None: no bound."""

    first: int | None = None
    last: int | None = None

    def conditions(self, step: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """SQL conditions on a column of steps."""
        bounds = [] if self.first is None else [step >= self.first]
        return bounds if self.last is None else [*bounds, step <= self.last]

    def conditions_on_blocks(self) -> list[ColumnElement[bool]]:
        """SQL conditions on blocks that may hold these steps."""
        later = [] if self.first is None else [blocks_table.c.last_step >= self.first]
        return later if self.last is None else [*later, blocks_table.c.first_step <= self.last]

    def holds(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these steps are in the range, shape (rows,)."""
        inside = np.ones(len(steps), dtype=bool)
        if self.first is not None:
            inside &= steps >= self.first
        if self.last is not None:
            inside &= steps <= self.last
        return inside

    def covers(self, block: Block) -> bool:
        """Whether all steps of a block are in the range."""
        return (self.first is None or self.first <= block.first_step) and (
            self.last is None or block.last_step <= self.last
        )


@dataclass(slots=True)
class Part:
    """Values of one metric of one stream, by rising position."""

    stream_key: int
    positions: NDArray[np.int64]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def at(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Part:
        return Part(self.stream_key, self.positions[rows], self.steps[rows], self.values[rows])


def lowest_precedence_first(parts: Sequence[Part], timeline: Timeline) -> list[Part]:
    """Lowest precedence first, without values that are never shown: a later value of a step replaces an earlier one."""
    ordered = sorted(
        (part for part in parts if len(part.steps)),
        key=lambda part: (*timeline.order_of(part.stream_key), part.positions[0]),
    )
    return [_through(part, timeline.shown_through(part.stream_key)) for part in ordered]


def unpacked(
    connection: Connection, run_key: int, names: Sequence[str], wanted: StepRange
) -> Iterator[tuple[str, Part]]:
    """Read these metrics from unpacked rows."""
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
    # Rows of different layouts alternate; those of one stream become one part, by position.
    for (name, _), parts in by_stream.items():
        yield name, _joined(parts)


def packed(connection: Connection, run_key: int, names: Sequence[str], wanted: StepRange) -> Iterator[tuple[str, Part]]:
    """Read these metrics from blocks, a chunk at a time."""
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
    """Read only the 8 bytes of each blob that belong to the names."""
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
    """Read whole blobs, each row once: finding the rows of one layout needs a scan of all rows."""
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
        # A report that came after the layouts were read may have a new one; it is read next time.
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
    """Index of a name in a layout, whose names are sorted."""
    place = bisect_left(layout, name)
    return place if place < len(layout) and layout[place] == name else _NOT_THERE


def _joined(parts: Sequence[Part]) -> Part:
    positions, steps, values = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("positions", "steps", "values")
    )
    return Part(parts[0].stream_key, positions, steps, values).at(np.argsort(positions))


_NO_STEPS = StepRange(first=0, last=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One value per step, by rising step, of the report shown for the step."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    """NaN and infinities are values; a step without a measurement is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """A series in buckets of neighbouring steps, with minimum and maximum, so that no spike is lost."""

    steps: NDArray[np.int64]
    """The last step of each bucket."""
    values: NDArray[np.float64]
    """The value at that step."""
    minima: NDArray[np.float64]
    """NaN only where all values of a bucket are NaN."""
    maxima: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestValue:
    """The newest value of one metric."""

    name: str
    step: int
    value: float


def read(
    connection: Connection, run_key: int, names: Sequence[str], wanted: StepRange, *, after_position: int = 0
) -> dict[str, Series]:
    """Read series from reports after a position. A name that was never reported has no points."""
    timeline = Timeline(streams.incarnations(connection, run_key))
    found: dict[str, list[Part]] = defaultdict(list)
    if after_position:
        wanted = _steps_reported_after(connection, run_key, wanted, after_position)
    # Unpacked rows first: reports packed meanwhile are read twice and shown once.
    for parts in (unpacked, packed):
        for name, part in parts(connection, run_key, names, wanted):
            found[name].append(part)
    return {name: _shown(lowest_precedence_first(found[name], timeline), after_position) for name in names}


def names(connection: Connection, run_key: int) -> frozenset[str]:
    """Every metric the run has reported."""
    return frozenset(name for layout in layouts.used_by(connection, run_key) for name in layout.names)


def latest(connection: Connection, run_key: int) -> list[LatestValue]:
    """Every metric of a run with its newest value, by name."""
    timeline = Timeline(streams.incarnations(connection, run_key))
    by_stream: dict[int, list[UsedLayout]] = defaultdict(list)
    for used in layouts.used_by(connection, run_key):
        by_stream[used.stream_key].append(used)
    values: dict[str, LatestValue] = {}
    for stream_key in sorted(by_stream, key=timeline.order_of, reverse=True):
        newest_first = sorted(by_stream[stream_key], key=lambda layout: layout.last_position, reverse=True)
        _add_latest(connection, run_key, newest_first, values)
    return [values[name] for name in sorted(values)]


def reduce(series: Series, points: int) -> Reduced | None:
    """Reduce a series to at most `points` buckets; None when it has no more points."""
    if len(series.steps) <= points:
        return None
    edges = np.linspace(0, len(series.steps), points + 1).astype(np.intp)
    lasts = edges[1:] - 1
    return Reduced(
        steps=series.steps[lasts],
        values=series.values[lasts],
        # fmin and fmax ignore NaN while there is another value.
        minima=np.fmin.reduceat(series.values, edges[:-1]),
        maxima=np.fmax.reduceat(series.values, edges[:-1]),
    )


def _add_latest(
    connection: Connection, run_key: int, newest_first: Sequence[UsedLayout], values: dict[str, LatestValue]
) -> None:
    """Add the newest values of a stream's metrics that have none yet."""
    for index, layout in enumerate(newest_first):
        # A few of thousands of layouts name all metrics.
        if all(name in values for name in layout.names):
            continue
        row = connection.execute(
            select(records.c.step, records.c.scalars).where(
                records.c.run_key == run_key, records.c.position == layout.last_position
            )
        ).one_or_none()
        if row is None:  # it is packed, and so is everything before it
            missing = {name for older in newest_first[index:] for name in older.names} - values.keys()
            chunks = blocks.newest_metric_chunks(connection, run_key, layout.stream_key, missing)
            for block, chunk in chunks:
                step = int(block.steps[-1 if chunk.rows is None else chunk.rows[-1]])
                values[chunk.name] = LatestValue(name=chunk.name, step=step, value=float(chunk.values[-1]))
            return
        for name, value in unpack(layout.names, row.scalars).items():
            values.setdefault(name, LatestValue(name=name, step=row.step, value=value))


def _steps_reported_after(connection: Connection, run_key: int, wanted: StepRange, position: int) -> StepRange:
    """The part of `wanted` with steps of newer reports. Older reports of these steps may have precedence."""
    ranges = [
        connection.execute(select(func.min(first), func.max(last)).where(of_run == run_key, newest > position)).one()
        for first, last, of_run, newest in (
            (records.c.step, records.c.step, records.c.run_key, records.c.position),
            # A block with the position may begin with older steps: some are read and ignored.
            (
                blocks_table.c.first_step,
                blocks_table.c.last_step,
                blocks_table.c.run_key,
                blocks_table.c.last_position,
            ),
        )
    ]
    found = [(first, last) for first, last in ranges if first is not None]
    if not found:
        return _NO_STEPS
    first, last = min(first for first, _ in found), max(last for _, last in found)
    return StepRange(
        first=first if wanted.first is None else max(first, wanted.first),
        last=last if wanted.last is None else min(last, wanted.last),
    )


def _shown(parts: Sequence[Part], after_position: int) -> Series:
    if not parts:
        return Series(steps=np.empty(0, np.int64), values=np.empty(0, np.float64))
    steps = np.concatenate([part.steps for part in parts])
    values = np.concatenate([part.values for part in parts])
    chosen = Timeline.last_of_each_step(steps)
    if chosen is not None:
        steps, values = steps[chosen], values[chosen]
    if after_position:
        positions = np.concatenate([part.positions for part in parts])
        is_new = (positions if chosen is None else positions[chosen]) > after_position
        steps, values = steps[is_new], values[is_new]
    return Series(steps=steps, values=values)
