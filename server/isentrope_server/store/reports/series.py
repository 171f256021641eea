"""Series: one metric over the steps of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, case, func, literal_column, select

from isentrope_server.store import rows, streams
from isentrope_server.store.rows import MISSING, WORD, Layout
from isentrope_server.store.streams import Timeline
from isentrope_server.store.tables import records
from isentrope_wire.answers import LatestMetric, SeriesColumns

_PLACES_AT_ONCE = 1_000
"""Places of metrics in layouts that a statement names."""
_ALL_ROWS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRange:
    """Steps first..last, both included; None: no bound."""

    first: int | None = None
    last: int | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """SQL conditions on rows that may hold these steps."""
        if self.first is None:
            later = []
        else:
            later = [records.c.last_step >= self.first]
        if self.last is None:
            return later
        return [*later, records.c.first_step <= self.last]

    def holds(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these steps are in the range, shape (rows,)."""
        inside = np.ones(len(steps), dtype=bool)
        if self.first is not None:
            inside &= steps >= self.first
        if self.last is not None:
            inside &= steps <= self.last
        return inside


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One value per step, by rising step, of the report shown for the step."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    """NaN and infinities are values; a step without a measurement is absent."""


def read(
    connection: Connection,
    run_key: int,
    names: Sequence[str],
    wanted: StepRange,
    *,
    after_position: int = 0,
) -> dict[str, Series]:
    """Read series from reports after a position. A name that was never reported has no points."""
    where = wanted.conditions()
    if after_position:
        # Older reports of the same steps may have precedence. A row with the position may begin
        # with older ones: some are read and ignored.
        newer = select(func.min(records.c.first_step), func.max(records.c.last_step)).where(
            records.c.run_key == run_key, records.c.last_position > after_position
        )
        first, last = connection.execute(newer).one()
        where += StepRange(first=first or 0, last=-1 if last is None else last).conditions()
    known = rows.layouts_of(connection, run_key)
    holding = {
        key: layout for key, layout in known.items() if not set(names).isdisjoint(layout.names)
    }
    # In one order for all runs, see `_parts`.
    keys, at_once = (
        sorted(holding, key=lambda key: holding[key].names),
        max(1, _PLACES_AT_ONCE // max(1, len(names))),
    )
    parts: dict[str, list[_Part]] = defaultdict(list)
    for first in range(0, len(keys), at_once):
        some = {key: holding[key] for key in keys[first : first + at_once]}
        for name, part in _parts(connection, run_key, some, names, where).items():
            parts[name].append(part)
    timeline = Timeline(streams.incarnations(connection, run_key))
    return {name: _shown(parts[name], timeline, wanted, after_position) for name in names}


@dataclass(frozen=True, slots=True)
class _Part:
    """Values of one metric, by rising position within each stream; all of one length."""

    stream_keys: NDArray[np.int64]
    positions: NDArray[np.int64]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


def _parts(
    connection: Connection,
    run_key: int,
    layouts: Mapping[int, Layout],
    names: Sequence[str],
    where: Sequence[ColumnElement[bool]],
) -> dict[str, _Part]:
    """Read from rows of these layouts only the slices that belong to the names."""
    columns = (
        records.c[name] for name in ("stream_key", "reports", "last_position", "facts", "scalars")
    )
    # Keys are bound, so that runs with the same layouts share a statement: SQLAlchemy keeps
    # hundreds, and so does each connection of SQLite.
    layout = case({key: at for at, key in enumerate(layouts)}, value=records.c.layout_key).label(
        "layout"
    )
    # With a limit SQLite reads each row's numbers once, however many slices are taken.
    inner = (
        select(*columns, layout)
        .where(records.c.run_key == run_key, records.c.layout_key.in_(layouts), *where)
        .limit(_ALL_ROWS)
        .subquery()
    )
    size = WORD * inner.c.reports
    slices = [_slice(inner.c.scalars, size, layouts.values(), name) for name in names]
    # Positions, then steps: the first two facts.
    facts = func.substr(inner.c.facts, 1, 2 * size, type_=records.c.facts.type)
    query = select(inner.c.stream_key, inner.c.reports, facts, *slices, inner.c.last_position)
    # SQLite would write all numbers into a sorter.
    found = sorted(connection.execute(query).all(), key=itemgetter(-1))
    counts = [row[1] for row in found]
    stream_keys = np.repeat(np.array([row[0] for row in found], dtype=np.int64), counts)
    whole = (
        b"".join(row[2][: WORD * row[1]] for row in found),
        b"".join(row[2][WORD * row[1] :] for row in found),
    )
    positions, steps = (np.frombuffer(column, dtype="<i8") for column in whole)
    missing = MISSING.tobytes()
    parts = {}
    for column, name in enumerate(names, start=3):
        words = np.frombuffer(
            b"".join(row[column] if row[column] is not None else missing * row[1] for row in found),
            dtype="<u8",
        )
        held = words != MISSING
        part = _Part(stream_keys, positions, steps, words.view("<f8"))
        if held.all():
            parts[name] = part
        else:
            parts[name] = _select_steps(part, held)
    return parts


def _slice(
    scalars: ColumnElement[bytes], size: ColumnElement[int], layouts: Collection[Layout], name: str
) -> ColumnElement[Any]:
    """One metric of a row; NULL where the row's layout lacks it. Column `layout` is the layout's
    place among these."""
    places = " ".join(
        f"WHEN {at} THEN {layout.names.index(name)}"
        for at, layout in enumerate(layouts)
        if name in layout.names
    )
    if not places:
        return literal_column("NULL")
    place: ColumnElement[int] = literal_column(f"CASE layout {places} END")
    # substr counts from 1.
    return func.substr(scalars, place * size + 1, size, type_=records.c.scalars.type)


def _select_steps(part: _Part, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> _Part:
    return _Part(
        part.stream_keys[chosen], part.positions[chosen], part.steps[chosen], part.values[chosen]
    )


def _shown(
    parts: Sequence[_Part], timeline: Timeline, wanted: StepRange, after_position: int
) -> Series:
    whole = _joined(parts)
    chosen = timeline.shown(whole.steps, whole.stream_keys, whole.positions)
    steps = whole.steps[chosen]
    is_asked_for = wanted.holds(steps) & (whole.positions[chosen] > after_position)
    return Series(steps=steps[is_asked_for], values=whole.values[chosen][is_asked_for])


def _joined(parts: Sequence[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    empty = np.empty(0, np.int64)
    whole = _Part(
        np.concatenate([empty, *(part.stream_keys for part in parts)]),
        np.concatenate([empty, *(part.positions for part in parts)]),
        np.concatenate([empty, *(part.steps for part in parts)]),
        np.concatenate([empty.view(np.float64), *(part.values for part in parts)]),
    )
    # Rows of different layouts alternate.
    return _select_steps(whole, np.argsort(whole.positions, kind="stable"))


def names(connection: Connection, run_key: int) -> frozenset[str]:
    return frozenset(
        name for layout in rows.layouts_of(connection, run_key).values() for name in layout.names
    )


def latest(
    connection: Connection, run_key: int, names: Collection[str] | None = None
) -> list[LatestMetric]:
    """Every metric of a run, or those with these names, with its newest value, by name."""
    timeline = Timeline(streams.incarnations(connection, run_key))
    known = {
        key: {name for name in layout.names if names is None or name in names}
        for key, layout in rows.layouts_of(connection, run_key).items()
    }
    newest_first = (
        select(records.c.stream_key, records.c.layout_key, records.c.last_position)
        .where(records.c.run_key == run_key, records.c.layout_key.is_not(None))
        .order_by(records.c.last_position.desc())
    )
    by_stream: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for stream_key, layout_key, position in connection.execute(newest_first):
        by_stream[stream_key].append((layout_key, position))
    values: dict[str, LatestMetric] = {}
    for stream_key in sorted(by_stream, key=timeline.order_of, reverse=True):
        for layout_key, position in by_stream[stream_key]:
            # A few of many rows name all metrics.
            if not known[layout_key] <= values.keys():
                for reports in rows.read(connection, run_key, records.c.last_position == position):
                    _add_latest(reports, values)
    return [values[name] for name in sorted(values) if names is None or name in names]


def _add_latest(reports: rows.Reports, values: dict[str, LatestMetric]) -> None:
    for name, column in zip(reports.layout.names, reports.scalars, strict=True):
        if name not in values:
            row = int(np.flatnonzero(column != MISSING)[-1])
            value = float(column[row : row + 1].view(np.float64)[0])
            values[name] = LatestMetric(name=name, step=int(reports.steps[row]), value=value)


def columns(series: Series, points: int | None) -> SeriesColumns:
    """The series as an answer. One of more than `points` is reduced to so many buckets, as
    REDUCED_SERIES says, so that no spike is lost and sums over steps stay exact."""
    values = series.values
    if points is None or len(values) <= points:
        return SeriesColumns(step=series.steps.tolist(), value=values.tolist(), min=None, max=None)
    edges = np.linspace(0, len(values), points + 1).astype(np.intp)
    firsts, lasts = edges[:-1], edges[1:] - 1
    finite = np.isfinite(values)
    counts = np.diff(edges)
    measured = np.add.reduceat(finite.astype(np.int64), firsts)
    # Divided before they are added: values near the largest number have a mean, too.
    shares = np.where(finite, values, 0.0) / np.maximum(measured, 1).repeat(counts)
    means = np.where(measured > 0, np.add.reduceat(shares, firsts), np.nan)
    return SeriesColumns(
        step=series.steps[lasts].tolist(),
        value=values[lasts].tolist(),
        # fmin and fmax ignore NaN while there is another value.
        min=np.fmin.reduceat(values, firsts).tolist(),
        max=np.fmax.reduceat(values, firsts).tolist(),
        mean=means.tolist(),
        count=counts.tolist(),
        not_finite=(counts - measured).tolist(),
    )
