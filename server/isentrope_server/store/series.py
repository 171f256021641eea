"""Series: one metric over the steps of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select

from isentrope_server.store import blocks, layouts, series_parts, streams
from isentrope_server.store.layouts import UsedLayout, unpack
from isentrope_server.store.series_parts import Part, StepRange
from isentrope_server.store.tables import blocks as blocks_table
from isentrope_server.store.tables import records
from isentrope_server.store.timeline import Timeline

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
    found: dict[str, list[Part]] = defaultdict(list)
    if after_position:
        wanted = _steps_reported_after(connection, run_key, wanted, after_position)
    # What is not packed comes first: packed meanwhile, it is found twice and counts once.
    for parts in (series_parts.unpacked, series_parts.packed):
        for name, part in parts(connection, run_key, names, wanted):
            found[name].append(part)
    return {name: _speaking(series_parts.quietest_first(found[name], timeline), after_position) for name in names}


def names(connection: Connection, run_key: int) -> frozenset[str]:
    """Every metric the run has ever reported; none before its first report."""
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


def _add_latest(
    connection: Connection, run_key: int, newest_first: Sequence[UsedLayout], values: dict[str, LatestValue]
) -> None:
    """Add the newest values of those metrics of a stream that have none yet."""
    for index, layout in enumerate(newest_first):
        # Of thousands of layouts some few name all there is.
        if all(name in values for name in layout.names):
            continue
        row = connection.execute(
            select(records.c.step, records.c.scalars).where(
                records.c.run_key == run_key, records.c.position == layout.last_position
            )
        ).one_or_none()
        if row is None:  # it is packed, and so is whatever came before it
            missing = {name for older in newest_first[index:] for name in older.names} - values.keys()
            chunks = blocks.newest_metric_chunks(connection, run_key, layout.stream_key, missing)
            for block, chunk in chunks:
                step = int(block.steps[-1 if chunk.rows is None else chunk.rows[-1]])
                values[chunk.name] = LatestValue(name=chunk.name, step=step, value=float(chunk.values[-1]))
            return
        for name, value in unpack(layout.names, row.scalars).items():
            values.setdefault(name, LatestValue(name=name, step=row.step, value=value))


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


def _speaking(parts: Sequence[Part], after_position: int) -> Series:
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
