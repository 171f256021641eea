"""What-if sums: what other thresholds would have done to a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, insert, select

from isentrope_server.store import streams
from isentrope_server.store.tables import what_if_sums
from isentrope_server.store.timeline import Timeline
from isentrope_wire.codec import decode_what_if, encode_what_if
from isentrope_wire.messages import StepReport
from isentrope_wire.what_if import WhatIfSums

_NEWEST_LOOKED_AT = 256
"""Rows among which the newest step is looked for: more than the ranks that may report one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWhatIf:
    """The sums of the report that speaks for a step."""

    step: int
    sums: WhatIfSums


def append(connection: Connection, run_key: int, stream_key: int, reports: Sequence[tuple[int, StepReport]]) -> None:
    """Store the sums of those reports that have any; `reports` come with their positions."""
    rows = [
        {
            "run_key": run_key,
            "position": position,
            "stream_key": stream_key,
            "step": report.step,
            "packed": encode_what_if(report.what_if),
        }
        for position, report in reports
        # Of no tokens nothing can be told; such a step must not stand in front of one that can answer.
        if report.what_if is not None and report.what_if.tokens > 0
    ]
    if rows:
        connection.execute(insert(what_if_sums), rows)


def find(connection: Connection, run_key: int, step: int | None = None) -> StoredWhatIf | None:
    """The sums of a step; of the newest one that has any when none is named. None: there are none."""
    table = what_if_sums.c
    query = select(table.step, table.stream_key, table.position).where(table.run_key == run_key)
    query = (
        query.order_by(table.position.desc()).limit(_NEWEST_LOOKED_AT)
        if step is None
        else query.where(table.step == step)
    )
    rows = connection.execute(query).all()
    speaking = Timeline(streams.incarnations(connection, run_key)).speaking(
        *(np.array([getattr(row, name) for row in rows], dtype=np.int64) for name in ("step", "stream_key", "position"))
    )
    if not len(speaking):
        return None
    row = rows[int(speaking[-1])]
    packed = connection.execute(
        select(table.packed).where(table.run_key == run_key, table.position == row.position)
    ).scalar_one()
    sums = decode_what_if(packed)
    return StoredWhatIf(step=row.step, sums=sums) if sums.tokens > 0 else None
