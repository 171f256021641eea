"""Histograms: the distribution of one quantity, per step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, select

from isentrope_server.store import streams
from isentrope_server.store.series import StepRange
from isentrope_server.store.tables import histograms
from isentrope_server.store.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistogram:
    """Counts over equal bins of [low, high] at one step."""

    name: str
    step: int
    low: float
    high: float
    counts: NDArray[np.uint64]
    not_finite: int


def at(connection: Connection, run_key: int, position: int) -> list[StoredHistogram]:
    """The histograms of one report, by name."""
    rows = connection.execute(
        _HISTOGRAMS.where(histograms.c.run_key == run_key, histograms.c.position == position).order_by(
            histograms.c.name
        )
    )
    return [_histogram(row) for row in rows]


def read(
    connection: Connection, run_key: int, name: str, wanted: StepRange, *, points: int | None
) -> list[StoredHistogram]:
    """One histogram per step, by rising step; with `points`, at most so many.

    Neighbours that share their edges are added up, so that no token is lost; where edges differ the last one speaks.
    """
    query = _HISTOGRAMS.where(histograms.c.run_key == run_key, histograms.c.name == name)
    if wanted.first is not None:
        query = query.where(histograms.c.step >= wanted.first)
    if wanted.last is not None:
        query = query.where(histograms.c.step <= wanted.last)
    rows = connection.execute(query.order_by(histograms.c.position)).all()
    chosen = Timeline(streams.incarnations(connection, run_key)).speaking(
        np.array([row.step for row in rows], dtype=np.int64),
        np.array([row.stream_key for row in rows], dtype=np.int64),
        np.array([row.position for row in rows], dtype=np.int64),
    )
    found = [_histogram(rows[int(index)]) for index in chosen]
    return found if points is None or len(found) <= points else _merged(found, points)


def is_known(connection: Connection, run_key: int, name: str) -> bool:
    """Whether the run has ever reported a histogram of this name."""
    found = select(histograms.c.position).where(histograms.c.run_key == run_key, histograms.c.name == name).limit(1)
    return connection.execute(found).first() is not None


_HISTOGRAMS = select(
    histograms.c.name,
    histograms.c.step,
    histograms.c.position,
    histograms.c.stream_key,
    histograms.c.low,
    histograms.c.high,
    histograms.c.counts,
    histograms.c.not_finite,
)


def _histogram(row: Row[*tuple[Any, ...]]) -> StoredHistogram:
    return StoredHistogram(
        name=row.name,
        step=row.step,
        low=math.nan if row.low is None else row.low,
        high=math.nan if row.high is None else row.high,
        counts=np.frombuffer(row.counts, dtype="<u8"),
        not_finite=row.not_finite,
    )


def _merged(found: Sequence[StoredHistogram], points: int) -> list[StoredHistogram]:
    edges = np.linspace(0, len(found), points + 1).astype(int)
    return [_merge(found[start:end]) for start, end in pairwise(edges)]


def _merge(bucket: Sequence[StoredHistogram]) -> StoredHistogram:
    last = bucket[-1]
    shape = (last.low, last.high, len(last.counts))
    alike = [h for h in bucket if (h.low, h.high, len(h.counts)) == shape]
    return StoredHistogram(
        name=last.name,
        step=last.step,
        low=last.low,
        high=last.high,
        counts=np.sum([h.counts for h in alike], axis=0, dtype=np.uint64),
        not_finite=sum(h.not_finite for h in alike),
    )
