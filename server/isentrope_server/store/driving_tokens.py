"""The tokens that counted most for the change of entropy in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, insert, select

from isentrope_server.store import streams
from isentrope_server.store.tables import driving_tokens
from isentrope_server.store.timeline import Timeline
from isentrope_wire.codec import decode_tokens, encode_tokens
from isentrope_wire.messages import DrivingToken, StepReport

_NEWEST_LOOKED_AT = 256
"""Rows among which the newest step is looked for: more than the ranks that may report one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTokens:
    """Those of the report that speaks for a step, largest first."""

    step: int
    tokens: tuple[DrivingToken, ...]


def append(connection: Connection, run_key: int, stream_key: int, reports: Sequence[tuple[int, StepReport]]) -> None:
    """Store the tokens of those reports that name any; `reports` come with their positions."""
    rows = [
        {
            "run_key": run_key,
            "position": position,
            "stream_key": stream_key,
            "step": report.step,
            "packed": encode_tokens(report.tokens),
        }
        for position, report in reports
        if report.tokens
    ]
    if rows:
        connection.execute(insert(driving_tokens), rows)


def find(connection: Connection, run_key: int, step: int | None = None) -> StoredTokens | None:
    """The tokens of a step; of the newest one that names any when none is asked for. None: there are none."""
    table = driving_tokens.c
    query = select(table.step, table.stream_key, table.position, table.packed).where(table.run_key == run_key)
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
    return StoredTokens(step=row.step, tokens=decode_tokens(row.packed))
