"""Series: one metric over the steps of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, Select, func, select

from isentrope_server.store import layouts, streams
from isentrope_server.store.layouts import UsedLayout, unpack
from isentrope_server.store.tables import records
from isentrope_server.store.timeline import Timeline

_FLOAT64_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """Steps first..last, both included; None: open."""

    first: int | None = None
    last: int | None = None


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
    for layout in _distinct(layouts.used_by(connection, run_key)):
        held = [name for name in names if name in layout.names]
        if held:
            rows = connection.execute(_cut_out(run_key, layout, held, wanted)).all()
            for name, columns in zip(held, _columns(rows, len(held)), strict=True):
                found[name].append(columns)
    return {name: _speaking(timeline, found[name], after_position) for name in names}


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
        step, packed = connection.execute(
            select(records.c.step, records.c.scalars).where(
                records.c.run_key == run_key, records.c.position == layout.last_position
            )
        ).one()
        for name, value in unpack(layout.names, packed).items():
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


def _distinct(used: Sequence[UsedLayout]) -> list[UsedLayout]:
    return list({layout.key: layout for layout in used}.values())


def _steps_reported_after(connection: Connection, run_key: int, wanted: StepRange, position: int) -> StepRange:
    """The part of `wanted` that newer reports speak of. Older reports of these steps may speak louder."""
    first, last = connection.execute(
        select(func.min(records.c.step), func.max(records.c.step)).where(
            records.c.run_key == run_key, records.c.position > position
        )
    ).one()
    if first is None:
        return _NO_STEPS
    return StepRange(
        first=first if wanted.first is None else max(first, wanted.first),
        last=last if wanted.last is None else min(last, wanted.last),
    )


def _cut_out(run_key: int, layout: UsedLayout, names: Sequence[str], wanted: StepRange) -> Select[*tuple[Any, ...]]:
    """Positions, streams, steps and only those 8 bytes of each blob that hold the names."""
    starts = (layout.names.index(name) * _FLOAT64_BYTES + 1 for name in names)
    query = select(
        records.c.position,
        records.c.stream_key,
        records.c.step,
        *(func.substr(records.c.scalars, start, _FLOAT64_BYTES, type_=records.c.scalars.type) for start in starts),
    ).where(records.c.run_key == run_key, records.c.layout_key == layout.key)
    if wanted.first is not None:
        query = query.where(records.c.step >= wanted.first)
    if wanted.last is not None:
        query = query.where(records.c.step <= wanted.last)
    return query


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
