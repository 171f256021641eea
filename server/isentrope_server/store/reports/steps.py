"""Whole reports: of one step, after a position, and all reports of a run in pieces that fit into
memory.

Pieces are found by position, so each may be read on its own connection: reports that are packed
between two pieces are neither missed nor read twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from isentrope_server.store import rows, streams
from isentrope_server.store.reports import histograms
from isentrope_server.store.rows import MISSING, Reports
from isentrope_server.store.streams import Stream, Timeline
from isentrope_server.store.tables import records
from isentrope_wire.answers import StepReport
from isentrope_wire.reports import ScoreHistogram

_NEWEST_TIMED = 32
"""Reports; of several ranks those of one are used."""


def find(connection: Connection, run_key: int, step: int) -> StepReport | None:
    """The report shown for a step, with what earlier reports of the same rank and attempt have of
    that step alone; None where it was never reported."""
    around = (records.c.first_step <= step, records.c.last_step >= step)
    candidates = [
        (reports, row)
        for reports in rows.read(connection, run_key, *around, histograms=True)
        for row in np.flatnonzero(reports.steps == step).tolist()
    ]
    if not candidates:
        return None
    incarnations = streams.incarnations(connection, run_key)
    chosen = Timeline(incarnations).shown(
        np.full(len(candidates), step, dtype=np.int64),
        np.array([reports.stream_key for reports, _ in candidates], dtype=np.int64),
        np.array([reports.positions[row] for reports, row in candidates], dtype=np.int64),
    )
    if len(chosen) == 0:
        return None
    reports, row = candidates[int(chosen[0])]
    newest = reports.positions[row]
    of_stream = [
        (other.positions[at], other, at)
        for other, at in candidates
        if other.stream_key == reports.stream_key and other.positions[at] <= newest
    ]
    scalars: dict[str, float] = {}
    labels: dict[str, str] = {}
    drawn: dict[str, ScoreHistogram] = {}
    for _, other, at in sorted(of_stream, key=itemgetter(0)):
        scalars |= other.scalars_of(at)
        labels |= other.labels_of(at)
        drawn |= {drawing.name: drawing for drawing in histograms.histograms_of_report(other, at)}
    streams_ = [stream for incarnation in incarnations for stream in incarnation.streams]
    stream = next(stream for stream in streams_ if stream.key == reports.stream_key)
    return StepReport(
        step=step,
        recorded_at=float(reports.recorded_at[row]),
        received_at=float(reports.received_at[row]),
        control_version=int(reports.control_versions[row]),
        incarnation=stream.incarnation,
        rank=stream.rank,
        scalars=scalars,
        labels=labels,
        histograms=list(drawn.values()),
    )


def seconds_per_step(connection: Connection, run_key: int) -> float | None:
    """Time between the newest steps; None where fewer than two of them are known, or their clock
    was set back."""
    newest = (
        select(records.c.stream_key, records.c.facts)
        .where(records.c.run_key == run_key, records.c.layout_key.is_not(None))
        .order_by(records.c.last_position.desc())
        .limit(_NEWEST_TIMED)
    )
    stored = connection.execute(newest).all()
    # Ranks, and attempts of a run, have clocks of their own.
    of_stream = [
        rows.steps_and_times(row.facts) for row in stored if row.stream_key == stored[0].stream_key
    ]
    if not of_stream:
        return None
    steps, times = (
        np.concatenate(column)[-_NEWEST_TIMED:] for column in zip(*reversed(of_stream), strict=True)
    )
    passed, seconds = int(steps[-1] - steps[0]), float(times[-1] - times[0])
    if passed > 0 and seconds >= 0:
        return seconds / passed
    return None


REPORTS_AT_ONCE = 1_000
_CELLS_AT_ONCE = 1_000_000
"""Numbers in a piece: some 20 MB of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric in a piece."""

    values: NDArray[np.float64]
    """One per report; 0 where it was not measured."""
    measured: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Neighbouring reports of one rank of one incarnation, by rising position."""

    incarnation: str
    rank: int
    positions: NDArray[np.int64]
    steps: NDArray[np.int64]
    recorded_at: NDArray[np.float64]
    control_versions: NDArray[np.int64]
    labels: Sequence[Mapping[str, str]]
    metrics: Mapping[str, Metric]
    """The requested metrics that one of these reports has."""


def piece_after(
    connection: Connection, stream: Stream, names: Sequence[str], *, after: int, through: int
) -> Piece | None:
    """The next piece of a stream's reports after position `after`, up to `through`; None without
    one."""
    of_stream = (
        records.c.run_key == stream.run_key,
        records.c.stream_key == stream.key,
        records.c.last_position > after,
        records.c.first_position <= through,
        records.c.layout_key.is_not(None),
    )
    ahead = connection.execute(
        select(records.c.last_position, records.c.reports)
        .where(*of_stream)
        .order_by(records.c.last_position)
        .limit(REPORTS_AT_ONCE)
    ).all()
    if not ahead:
        return None
    totals = np.cumsum([row.reports for row in ahead])
    most = min(REPORTS_AT_ONCE, _CELLS_AT_ONCE // max(len(names), 1))
    fitting = max(1, int(np.searchsorted(totals, most, side="right")))
    last = ahead[:fitting][-1].last_position
    packs = list(rows.read(connection, stream.run_key, *of_stream, records.c.last_position <= last))
    wanted = [(pack.positions > after) & (pack.positions <= through) for pack in packs]
    if not any(inside.any() for inside in wanted):
        return None
    # A report may have thousands of names.
    places: dict[rows.Layout, Mapping[str, int]] = {}
    labels: list[Mapping[str, str]] = []
    for pack, inside in zip(packs, wanted, strict=True):
        if pack.layout not in places:
            places[pack.layout] = {name: place for place, name in enumerate(pack.layout.names)}
        labels += map(pack.labels_of, np.flatnonzero(inside).tolist())
    metrics = {}
    for name in names:
        metric = _metric([places[pack.layout].get(name) for pack in packs], packs, wanted)
        if metric.measured.any():
            metrics[name] = metric
    return Piece(
        incarnation=stream.incarnation,
        rank=stream.rank,
        positions=_column([pack.positions for pack in packs], wanted),
        steps=_column([pack.steps for pack in packs], wanted),
        recorded_at=_column([pack.recorded_at for pack in packs], wanted),
        control_versions=_column([pack.control_versions for pack in packs], wanted),
        labels=labels,
        metrics=metrics,
    )


def _column(columns: Sequence[NDArray[Any]], wanted: Sequence[NDArray[np.bool_]]) -> NDArray[Any]:
    return np.concatenate([column[inside] for column, inside in zip(columns, wanted, strict=True)])


def _metric(
    places: Sequence[int | None], packs: Sequence[Reports], wanted: Sequence[NDArray[np.bool_]]
) -> Metric:
    columns = [
        np.full(pack.count, MISSING) if place is None else pack.scalars[place]
        for pack, place in zip(packs, places, strict=True)
    ]
    words = _column(columns, wanted)
    measured = words != MISSING
    return Metric(values=np.where(measured, words.view(np.float64), 0.0), measured=measured)
