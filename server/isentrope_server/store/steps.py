"""Steps: the whole report of one step, and the reports after a position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, select

from isentrope_server.store import blocks, histograms, packed_reports, streams
from isentrope_server.store.blocks import Block
from isentrope_server.store.events import StepStored
from isentrope_server.store.histograms import StoredHistogram
from isentrope_server.store.layouts import layout_of, unpack
from isentrope_server.store.packed_reports import StoredReport
from isentrope_server.store.tables import blocks as blocks_table
from isentrope_server.store.tables import layouts, records
from isentrope_server.store.tables import runs as runs_table
from isentrope_server.store.tables import streams as streams_table
from isentrope_server.store.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """The report that speaks for a step."""

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
    """The report of one step by the newest incarnation that speaks for it, rank 0 preferred; None: never reported."""
    # Unpacked first: a report that is packed meanwhile is found twice, and counts once.
    candidates = {report.position: (report, block) for report, block in _reports_of(connection, run_key, step)}
    if not candidates:
        return None
    incarnations = streams.incarnations(connection, run_key)
    positions = np.array(list(candidates), dtype=np.int64)
    chosen = Timeline(incarnations).speaking(
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


def after(connection: Connection, run_key: int, position: int, limit: int) -> list[StepStored]:
    """The next `limit` step reports after a position, in the order they came, of whatever stream."""
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
    layouts.c.names,
).join(layouts, layouts.c.key == records.c.layout_key)


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
            found.extend((report, block) for report in packed_reports.read(connection, run_key, block, rows))
    return found


def _packed_after(connection: Connection, run_key: int, position: int, limit: int) -> list[StoredReport]:
    """The first `limit` packed reports after a position."""
    ahead = blocks.of_run(connection, run_key, blocks_table.c.last_position > position)
    places: list[tuple[int, int, int]] = []
    for index, block in enumerate(ahead):
        # Blocks come by first position, and those of several ranks overlap.
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
        for report in packed_reports.read(connection, run_key, ahead[index], rows)
    ]


def _ranks(connection: Connection, run_key: int) -> dict[int, int]:
    query = select(streams_table.c.key, streams_table.c.rank).where(streams_table.c.run_key == run_key)
    return {row.key: row.rank for row in connection.execute(query)}
