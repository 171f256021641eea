"""Packed reports, one at a time: what a block's chunks say of some of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from isentrope_server.store import blocks
from isentrope_server.store.blocks import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReport:
    """One step report without its histograms, wherever it is stored."""

    position: int
    stream_key: int
    step: int
    recorded_at: float
    received_at: float
    control_version: int
    scalars: Mapping[str, float]
    labels: Mapping[str, str]


def read(connection: Connection, run_key: int, block: Block, rows: Sequence[int]) -> list[StoredReport]:
    """The reports in these rows of a block, in this order."""
    facts = blocks.facts(connection, block.key)
    scalars: list[dict[str, float]] = [{} for _ in rows]
    for chunk in blocks.metrics_of_block(connection, run_key, block.key):
        for index, place in enumerate(places_of(rows, chunk.rows)):
            if place >= 0:
                scalars[index][chunk.name] = float(chunk.values[place])
    return [
        StoredReport(
            position=int(block.positions[row]),
            stream_key=block.stream_key,
            step=int(block.steps[row]),
            recorded_at=float(facts.recorded_at[row]),
            received_at=float(facts.received_at[row]),
            control_version=int(facts.control_version[row]),
            scalars=scalars[index],
            labels=facts.label_sets[int(facts.labels[row])],
        )
        for index, row in enumerate(rows)
    ]


def places_of(rows: Sequence[int], held: NDArray[np.int64] | None) -> list[int]:
    """Where in a chunk the values of these rows stand; -1: it holds none. `held` are the rows it has, None: all."""
    if held is None:
        return list(rows)
    places = np.searchsorted(held, rows)
    found = held[np.minimum(places, len(held) - 1)] == rows
    return [int(place) for place in np.where(found, places, -1)]
