"""Whole reports: of one step, after a position, and all reports of a run in pieces that fit into memory.

Pieces are found by position, so each may be read on its own connection: reports that are packed between two pieces are
neither missed nor read twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Select, select

from isentrope_server.store import streams
from isentrope_server.store.reports import blocks, histograms, layouts
from isentrope_server.store.reports.blocks import Block, StoredReport
from isentrope_server.store.reports.histograms import StoredHistogram
from isentrope_server.store.reports.layouts import layout_of, unpack
from isentrope_server.store.streams import Timeline
from isentrope_server.store.tables import blocks as blocks_table
from isentrope_server.store.tables import records, report_layouts
from isentrope_server.store.tables import runs as runs_table
from isentrope_server.store.tables import streams as streams_table
from isentrope_server.store.writer import StepStored

_NEWEST_TIMED = 32
"""Reports; of several ranks those of one are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """The report shown for a step."""

    step: int
    recorded_at: float
    received_at: float
    control_version: int
    incarnation: str
    rank: int
    scalars: Mapping[str, float]
    labels: Mapping[str, str]
    histograms: Sequence[StoredHistogram]


def find(connection: Connection, run_key: int, step: int) -> StoredStep | None:
    """The report shown for a step; None where it was never reported."""
    # Unpacked first: a report packed meanwhile is read twice and shown once.
    candidates = {report.position: (report, block) for report, block in _reports_of(connection, run_key, step)}
    if not candidates:
        return None
    incarnations = streams.incarnations(connection, run_key)
    positions = np.array(list(candidates), dtype=np.int64)
    chosen = Timeline(incarnations).shown(
        np.full(len(candidates), step, dtype=np.int64),
        np.array([report.stream_key for report, _ in candidates.values()], dtype=np.int64),
        positions,
    )
    if len(chosen) == 0:
        return None
    report, block = candidates[int(positions[chosen[0]])]
    stream = next(s for i in incarnations for s in i.streams if s.key == report.stream_key)
    return StoredStep(
        step=step,
        recorded_at=report.recorded_at,
        received_at=report.received_at,
        control_version=report.control_version,
        incarnation=stream.incarnation,
        rank=stream.rank,
        scalars=report.scalars,
        labels=report.labels,
        histograms=histograms.at(connection, run_key, report.position, block),
    )


def seconds_per_step(connection: Connection, run_key: int) -> float | None:
    """Time between the newest steps; None where fewer than two of them are unpacked, or their clock was set back."""
    newest = (
        select(records.c.stream_key, records.c.step, records.c.recorded_at)
        .where(records.c.run_key == run_key, records.c.step.is_not(None))
        .order_by(records.c.position.desc())
        .limit(_NEWEST_TIMED)
    )
    rows = connection.execute(newest).all()
    # Ranks, and attempts of a run, have clocks of their own.
    of_stream = [row for row in rows if row.stream_key == rows[0].stream_key]
    if not of_stream:
        return None
    steps = of_stream[0].step - of_stream[-1].step
    seconds = float(of_stream[0].recorded_at - of_stream[-1].recorded_at)
    return seconds / steps if steps > 0 and seconds >= 0 else None


def after(connection: Connection, run_key: int, position: int, limit: int) -> list[StepStored]:
    """The next `limit` step reports of all streams after a position, in order of arrival."""
    unpacked = connection.execute(
        _UNPACKED.where(records.c.run_key == run_key, records.c.position > position)
        .order_by(records.c.position)
        .limit(limit)
    )
    found = {row.position: _report(row) for row in unpacked}
    for report in _packed_after(connection, run_key, position, limit):
        found.setdefault(report.position, report)
    run_id = connection.execute(select(runs_table.c.id).where(runs_table.c.key == run_key)).scalar_one_or_none()
    ranks = _ranks(connection, run_key)
    return [
        StepStored(
            run_id=run_id or "",
            position=report.position,
            step=report.step,
            recorded_at=report.recorded_at,
            control_version=report.control_version,
            rank=ranks[report.stream_key],
            scalars=report.scalars,
        )
        for _, report in sorted(found.items())[:limit]
    ]


_UNPACKED: Select[*tuple[Any, ...]] = select(
    records.c.position,
    records.c.stream_key,
    records.c.step,
    records.c.recorded_at,
    records.c.received_at,
    records.c.control_version,
    records.c.scalars,
    records.c.labels,
    report_layouts.c.names,
).join(report_layouts, report_layouts.c.key == records.c.layout_key)


def _report(row: Any) -> StoredReport:
    values = dict(row._mapping)
    scalars = unpack(layout_of(values.pop("names"), None).names, values.pop("scalars"))
    return StoredReport(**values, scalars=scalars)


def _reports_of(connection: Connection, run_key: int, step: int) -> list[tuple[StoredReport, Block | None]]:
    """Every report of a step, with its block where it is packed."""
    found: list[tuple[StoredReport, Block | None]] = [
        (_report(row), None)
        for row in connection.execute(_UNPACKED.where(records.c.run_key == run_key, records.c.step == step))
    ]
    around = blocks.of_run(connection, run_key, blocks_table.c.first_step <= step, blocks_table.c.last_step >= step)
    for block in around:
        rows = np.flatnonzero(block.steps == step).tolist()
        if rows:
            found.extend((report, block) for report in blocks.read_packed_reports(connection, run_key, block, rows))
    return found


def _packed_after(connection: Connection, run_key: int, position: int, limit: int) -> list[StoredReport]:
    """The first `limit` packed reports after a position."""
    ahead = blocks.of_run(connection, run_key, blocks_table.c.last_position > position)
    places: list[tuple[int, int, int]] = []
    for index, block in enumerate(ahead):
        # Blocks are sorted by first position, and those of several ranks overlap.
        if len(places) >= limit and sorted(places)[limit - 1][0] < block.first_position:
            break
        rows = np.flatnonzero(block.positions > position)
        places.extend((int(block.positions[row]), index, int(row)) for row in rows[:limit])
    by_block: dict[int, list[int]] = {}
    for _, index, row in sorted(places)[:limit]:
        by_block.setdefault(index, []).append(row)
    return [
        report
        for index, rows in by_block.items()
        for report in blocks.read_packed_reports(connection, run_key, ahead[index], rows)
    ]


def _ranks(connection: Connection, run_key: int) -> dict[int, int]:
    query = select(streams_table.c.key, streams_table.c.rank).where(streams_table.c.run_key == run_key)
    return {row.key: row.rank for row in connection.execute(query)}


REPORTS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric in a piece."""

    values: NDArray[np.float64]
    """One per report; 0 where it was not measured."""
    measured: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Neighbouring reports of one stream, by rising position."""

    positions: NDArray[np.int64]
    steps: NDArray[np.int64]
    recorded_at: NDArray[np.float64]
    control_versions: NDArray[np.int64]
    labels: Sequence[Mapping[str, str]]
    metrics: Mapping[str, Metric]
    """The requested metrics that one of these reports has."""


def pieces_after(
    connection: Connection, run_key: int, stream_key: int, names: Sequence[str], *, after: int, through: int
) -> Piece | None:
    """The next piece of a stream's reports after position `after`, up to `through`; None without one."""
    # Unpacked first: reports packed meanwhile are then found in their block.
    unpacked = _unpacked(connection, run_key, stream_key, names, after, through)
    packed = blocks.of_run(
        connection,
        run_key,
        blocks_table.c.stream_key == stream_key,
        blocks_table.c.last_position > after,
        blocks_table.c.first_position <= through,
    )
    # Within a stream packed reports come first.
    return unpacked if not packed else _packed(connection, run_key, packed[0], names, after, through)


def _packed(
    connection: Connection, run_key: int, block: Block, names: Sequence[str], after: int, through: int
) -> Piece | None:
    wanted = (block.positions > after) & (block.positions <= through)
    if not wanted.any():
        return None
    metrics = {}
    for chunk in blocks.metric_chunks_of(connection, run_key, names, [block.key]):
        rows = slice(None) if chunk.rows is None else chunk.rows
        metrics[chunk.name] = _spread(block.reports, rows, chunk.values, wanted)
    facts = blocks.facts_of_block(connection, block.key)
    return Piece(
        positions=block.positions[wanted],
        steps=block.steps[wanted],
        recorded_at=facts.recorded_at[wanted],
        control_versions=facts.control_version[wanted],
        labels=[facts.label_sets[index] for index in facts.labels[wanted].tolist()],
        metrics=metrics,
    )


def _spread(
    reports: int, rows: slice | NDArray[np.int64], values: NDArray[np.float64], wanted: NDArray[np.bool_]
) -> Metric:
    """Expand a metric that only some reports have to all reports."""
    everywhere, measured = np.zeros(reports), np.zeros(reports, dtype=bool)
    everywhere[rows] = values
    measured[rows] = True
    return Metric(values=everywhere[wanted], measured=measured[wanted])


def _unpacked(
    connection: Connection, run_key: int, stream_key: int, names: Sequence[str], after: int, through: int
) -> Piece | None:
    rows = connection.execute(
        select(
            records.c.position,
            records.c.step,
            records.c.recorded_at,
            records.c.control_version,
            records.c.labels,
            records.c.layout_key,
            records.c.scalars,
        )
        .where(
            records.c.run_key == run_key,
            records.c.position.between(after + 1, through),
            records.c.stream_key == stream_key,
            records.c.step.is_not(None),
        )
        .order_by(records.c.position)
        .limit(REPORTS_AT_ONCE)
    ).all()
    if not rows:
        return None
    positions, steps, versions, layout_keys = (
        np.array([getattr(row, name) for row in rows], dtype=np.int64)
        for name in ("position", "step", "control_version", "layout_key")
    )
    everywhere = {name: (np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)) for name in names}
    for key, layout in layouts.by_key(connection, layout_keys.tolist()).items():
        where = np.flatnonzero(layout_keys == key)
        blob = b"".join(rows[int(index)].scalars for index in where)
        columns = np.frombuffer(blob, dtype="<f8").reshape(len(where), -1)
        for column, name in enumerate(layout.names):
            if name in everywhere:
                values, measured = everywhere[name]
                values[where] = columns[:, column]
                measured[where] = True
    return Piece(
        positions=positions,
        steps=steps,
        recorded_at=np.array([row.recorded_at for row in rows]),
        control_versions=versions,
        labels=[row.labels for row in rows],
        metrics={
            name: Metric(values=values, measured=measured)
            for name, (values, measured) in everywhere.items()
            if measured.any()
        },
    )
