"""Steps: the whole report of one step, and the reports after a position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, select

from isentrope_server.store import histograms, streams
from isentrope_server.store.events import StepStored
from isentrope_server.store.histograms import StoredHistogram
from isentrope_server.store.layouts import unpack
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
    rows = connection.execute(
        select(
            records.c.position,
            records.c.stream_key,
            records.c.recorded_at,
            records.c.received_at,
            records.c.control_version,
            records.c.scalars,
            records.c.labels,
            layouts.c.names,
        )
        .join(layouts, layouts.c.key == records.c.layout_key)
        .where(records.c.run_key == run_key, records.c.step == step)
    ).all()
    if not rows:
        return None
    incarnations = streams.incarnations(connection, run_key)
    chosen = Timeline(incarnations).speaking(
        np.full(len(rows), step, dtype=np.int64),
        np.array([row.stream_key for row in rows], dtype=np.int64),
        np.array([row.position for row in rows], dtype=np.int64),
    )
    if len(chosen) == 0:
        return None
    row = rows[int(chosen[0])]
    stream = next(s for i in incarnations for s in i.streams if s.key == row.stream_key)
    return StoredStep(
        step=step,
        recorded_at=row.recorded_at,
        received_at=row.received_at,
        control_version=row.control_version,
        incarnation=stream.incarnation,
        rank=stream.rank,
        scalars=unpack(tuple(row.names), row.scalars),
        labels=row.labels,
        histograms=histograms.at(connection, run_key, row.position),
    )


def after(connection: Connection, run_key: int, position: int, limit: int) -> list[StepStored]:
    """The next `limit` step reports after a position, in the order they came, of whatever stream."""
    rows = connection.execute(
        select(
            runs_table.c.id,
            records.c.position,
            records.c.step,
            records.c.recorded_at,
            records.c.control_version,
            records.c.scalars,
            layouts.c.names,
            streams_table.c.rank,
        )
        .join(layouts, layouts.c.key == records.c.layout_key)
        .join(runs_table, runs_table.c.key == records.c.run_key)
        .join(streams_table, streams_table.c.key == records.c.stream_key)
        .where(records.c.run_key == run_key, records.c.position > position)
        .order_by(records.c.position)
        .limit(limit)
    )
    return [
        StepStored(
            run_id=row.id,
            position=row.position,
            step=row.step,
            recorded_at=row.recorded_at,
            control_version=row.control_version,
            rank=row.rank,
            scalars=unpack(tuple(row.names), row.scalars),
        )
        for row in rows
    ]
