"""Series: one metric over the steps of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Row, Select, func, select

from isentrope_server.store import blocks, layouts, packed_reports, streams
from isentrope_server.store.blocks import Block, MetricChunk
from isentrope_server.store.layouts import UsedLayout, unpack
from isentrope_server.store.tables import blocks as blocks_table
from isentrope_server.store.tables import records
from isentrope_server.store.timeline import Timeline

_FLOAT64_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """Steps first..last, both included; None: open."""

    first: int | None = None
    last: int | None = None

    def conditions(self, step: ColumnElement[Any]) -> list[ColumnElement[bool]]:
        """What a column must fulfil to lie within."""
        bounds = [] if self.first is None else [step >= self.first]
        return bounds if self.last is None else [*bounds, step <= self.last]

    def holds(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these steps lie within."""
        inside = np.ones(len(steps), dtype=bool)
        if self.first is not None:
            inside &= steps >= self.first
        if self.last is not None:
            inside &= steps <= self.last
        return inside


_NO_STEPS = StepRange(first=0, last=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One value per step, by rising step. The newest incarnation speaks from its first step on, rank 0 preferred."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    """NaN and infinities are values; what was not measured has no step here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced:
    """A series in buckets of neighbouring steps: no spike is lost, however few the buckets."""

    steps: NDArray[np.int64]
    """The last step of each bucket."""
    values: NDArray[np.float64]
    """The value there."""
    minima: NDArray[np.float64]
    """NaN only where a bucket holds nothing else."""
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
    """The series of these names, from reports that came after a position. A name never reported has no points."""
    timeline = Timeline(streams.incarnations(connection, run_key))
    found: dict[str, list[_Columns]] = defaultdict(list)
    if after_position:
        wanted = _steps_reported_after(connection, run_key, wanted, after_position)
    # What is not packed comes first: packed meanwhile, it is found twice and counts once.
    for layout in _distinct(layouts.used_by(connection, run_key)):
        held = [name for name in names if name in layout.names]
        if held:
            rows = connection.execute(_cut_out(run_key, layout, held, wanted)).all()
            for name, columns in zip(held, _columns(rows, len(held)), strict=True):
                found[name].append(columns)
    for name, columns in _packed(connection, run_key, names, wanted):
        found[name].append(columns)
    return {name: _speaking(timeline, found[name], after_position) for name in names}


def blocks_around(wanted: StepRange) -> list[ColumnElement[bool]]:
    """What the table of blocks must fulfil to hold a report of these steps."""
    later = [] if wanted.first is None else [blocks_table.c.last_step >= wanted.first]
    return later if wanted.last is None else [*later, blocks_table.c.first_step <= wanted.last]


def names(connection: Connection, run_key: int) -> frozenset[str]:
    """Every metric the run has ever reported; none before its first report."""
    return frozenset(name for layout in layouts.used_by(connection, run_key) for name in layout.names)


def latest(connection: Connection, run_key: int) -> list[LatestValue]:
    """Every metric of a run with its newest value, by name."""
    timeline = Timeline(streams.incarnations(connection, run_key))
    used = sorted(
        layouts.used_by(connection, run_key), key=lambda u: (*timeline.order_of(u.stream_key), u.last_position)
    )
    values: dict[str, LatestValue] = {}
    for layout in used:
        step, scalars = _report_at(connection, run_key, layout)
        for name, value in scalars.items():
            values[name] = LatestValue(name=name, step=step, value=value)
    return [values[name] for name in sorted(values)]


def reduce(series: Series, points: int) -> Reduced | None:
    """At most `points` buckets with minimum, maximum and last value; None when the series is short enough as it is."""
    if len(series.steps) <= points:
        return None
    edges = np.linspace(0, len(series.steps), points + 1).astype(np.intp)
    lasts = edges[1:] - 1
    return Reduced(
        steps=series.steps[lasts],
        values=series.values[lasts],
        # fmin and fmax pass over NaN as long as there is anything else.
        minima=np.fmin.reduceat(series.values, edges[:-1]),
        maxima=np.fmax.reduceat(series.values, edges[:-1]),
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    positions: NDArray[np.int64]
    stream_keys: NDArray[np.int64]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def within(self, wanted: StepRange) -> _Columns:
        inside = wanted.holds(self.steps)
        return _Columns(self.positions[inside], self.stream_keys[inside], self.steps[inside], self.values[inside])


def _report_at(connection: Connection, run_key: int, layout: UsedLayout) -> tuple[int, Mapping[str, float]]:
    """Step and scalars of the report that used a layout last."""
    row = connection.execute(
        select(records.c.step, records.c.scalars).where(
            records.c.run_key == run_key, records.c.position == layout.last_position
        )
    ).one_or_none()
    if row is not None:
        return row.step, unpack(layout.names, row.scalars)
    ((block, place),) = blocks.at(connection, run_key, layout.last_position)
    (report,) = packed_reports.read(connection, run_key, block, [place])
    return report.step, report.scalars


def _distinct(used: Sequence[UsedLayout]) -> list[UsedLayout]:
    return list({layout.key: layout for layout in used}.values())


def _steps_reported_after(connection: Connection, run_key: int, wanted: StepRange, position: int) -> StepRange:
    """The part of `wanted` that newer reports speak of. Older reports of these steps may speak louder."""
    ranges = [
        connection.execute(select(func.min(first), func.max(last)).where(of_run == run_key, newest > position)).one()
        for first, last, of_run, newest in (
            (records.c.step, records.c.step, records.c.run_key, records.c.position),
            # A block that holds the position may begin with older steps: more is read than need be, and passed over.
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


def _packed(
    connection: Connection, run_key: int, names: Sequence[str], wanted: StepRange
) -> Iterator[tuple[str, _Columns]]:
    """What blocks hold of these metrics in a range of steps, a chunk at a time."""
    around = blocks_around(wanted)
    by_key = {block.key: block for block in blocks.of_run(connection, run_key, *around)}
    if not by_key:
        return
    order = {key: index for index, key in enumerate(by_key)}
    chunks = sorted(
        blocks.metric_chunks_of(connection, run_key, names, *around), key=lambda chunk: order.get(chunk.block_key, -1)
    )
    for chunk in chunks:
        # A block packed since the blocks were read is not among them, and its reports were found unpacked.
        if chunk.block_key in by_key:
            yield chunk.name, _chunk_columns(by_key[chunk.block_key], chunk, wanted)


def _chunk_columns(block: Block, chunk: MetricChunk, wanted: StepRange) -> _Columns:
    steps, positions = block.steps, block.positions
    if chunk.rows is not None:
        steps, positions = steps[chunk.rows], positions[chunk.rows]
    stream_keys = np.broadcast_to(np.int64(block.stream_key), steps.shape)
    columns = _Columns(positions, stream_keys, steps, chunk.values)
    return columns if _covers(wanted, block) else columns.within(wanted)


def _covers(wanted: StepRange, block: Block) -> bool:
    return (wanted.first is None or wanted.first <= block.first_step) and (
        wanted.last is None or block.last_step <= wanted.last
    )


def _cut_out(run_key: int, layout: UsedLayout, names: Sequence[str], wanted: StepRange) -> Select[*tuple[Any, ...]]:
    """Positions, streams, steps and only those 8 bytes of each blob that hold the names."""
    starts = (layout.names.index(name) * _FLOAT64_BYTES + 1 for name in names)
    query = select(
        records.c.position,
        records.c.stream_key,
        records.c.step,
        *(func.substr(records.c.scalars, start, _FLOAT64_BYTES, type_=records.c.scalars.type) for start in starts),
    )
    return query.where(
        records.c.run_key == run_key, records.c.layout_key == layout.key, *wanted.conditions(records.c.step)
    )


def _columns(rows: Sequence[Row[*tuple[Any, ...]]], names: int) -> list[_Columns]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * (3 + names)
    positions, stream_keys, steps = (np.array(column, dtype=np.int64) for column in columns[:3])
    return [
        _Columns(positions, stream_keys, steps, np.frombuffer(b"".join(column), dtype="<f8")) for column in columns[3:]
    ]


def _speaking(timeline: Timeline, parts: Sequence[_Columns], after_position: int) -> Series:
    if not parts:
        return Series(steps=np.empty(0, np.int64), values=np.empty(0, np.float64))
    steps = np.concatenate([part.steps for part in parts])
    positions = np.concatenate([part.positions for part in parts])
    chosen = timeline.speaking(steps, np.concatenate([part.stream_keys for part in parts]), positions)
    chosen = chosen[positions[chosen] > after_position]
    return Series(steps=steps[chosen], values=np.concatenate([part.values for part in parts])[chosen])
