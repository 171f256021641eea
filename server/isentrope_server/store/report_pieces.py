"""A run's reports in pieces, for whoever wants all of them: none is left out, and a piece fits into memory.

Pieces are found by position, so each may be read on a connection of its own: reports that are packed between two pieces
are neither missed nor told twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from isentrope_server.store import blocks, layouts
from isentrope_server.store.blocks import Block
from isentrope_server.store.tables import blocks as blocks_table
from isentrope_server.store.tables import records

REPORTS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric in a piece."""

    values: NDArray[np.float64]
    """One for each report; 0 where it was not measured."""
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
    """Of those asked for, the ones that one of these reports holds."""


def after(
    connection: Connection, run_key: int, stream_key: int, names: Sequence[str], *, after: int, through: int
) -> Piece | None:
    """The reports of a stream that follow position `after`, up to `through`; None: there is none."""
    # Unpacked first, as everywhere: what is packed meanwhile is then found in its block.
    unpacked = _unpacked(connection, run_key, stream_key, names, after, through)
    packed = blocks.of_run(
        connection,
        run_key,
        blocks_table.c.stream_key == stream_key,
        blocks_table.c.last_position > after,
        blocks_table.c.first_position <= through,
    )
    # Within a stream whatever is packed came first.
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
    facts = blocks.facts(connection, block.key)
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
    """A metric over all reports, of which only some hold it."""
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
