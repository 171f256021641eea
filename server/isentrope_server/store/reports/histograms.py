"""Histograms: the distribution of one quantity, per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, select

from isentrope_server.store import rows, streams
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.rows import WORD, Histograms, Reports
from isentrope_server.store.streams import Timeline
from isentrope_server.store.tables import records
from isentrope_wire.answers import HistogramColumns
from isentrope_wire.reports import ScoreHistogram


class _Counts(NamedTuple):
    """Counts over equal bins of [low, high] at one step."""

    step: int
    low: float
    high: float
    counts: NDArray[np.uint64]
    not_finite: int


def histograms_of_report(reports: Reports, row: int) -> list[ScoreHistogram]:
    """The histograms of one report, by name."""
    drawn = []
    for place, histograms in zip(reports.layout.histograms, reports.histograms, strict=True):
        if histograms.held[row]:
            bins = _counts(reports.steps, histograms, row)
            drawn.append(
                ScoreHistogram(
                    name=place.name,
                    low=bins.low,
                    high=bins.high,
                    counts=tuple(bins.counts.tolist()),
                    not_finite=bins.not_finite,
                )
            )
    return drawn


def _counts(steps: NDArray[np.int64], histograms: Histograms, row: int) -> _Counts:
    low, high = histograms.edges[:2, row].copy().view(np.float64).tolist()
    counts = histograms.counts[row].astype(np.uint64)
    return _Counts(int(steps[row]), low, high, counts, int(histograms.edges[2, row]))


def read(
    connection: Connection, run_key: int, name: str, wanted: StepRange, *, points: int | None
) -> HistogramColumns:
    """Read one histogram per step, by rising step. Where there are more than `points`, neighbours
    with equal edges are added, and of others the last is kept."""
    parts = list(_parts(connection, run_key, name, wanted))
    drawn = _shown(connection, run_key, parts, points)
    return HistogramColumns(
        name=name,
        step=[histogram.step for histogram in drawn],
        low=[histogram.low for histogram in drawn],
        high=[histogram.high for histogram in drawn],
        counts=[histogram.counts.tolist() for histogram in drawn],
        not_finite=[histogram.not_finite for histogram in drawn],
    )


def _shown(
    connection: Connection, run_key: int, parts: Sequence[_Part], points: int | None
) -> list[_Counts]:
    if not parts:
        return []
    steps, stream_keys, positions = (
        np.concatenate([getattr(part, field) for part in parts])
        for field in ("steps", "stream_keys", "positions")
    )
    chosen = Timeline(streams.incarnations(connection, run_key)).shown(
        steps, stream_keys, positions
    )
    part_of = np.repeat(np.arange(len(parts)), [len(part.steps) for part in parts])[chosen]
    starts = np.cumsum([0, *(len(part.steps) for part in parts)])
    row_of = chosen - starts[part_of]
    if points is None or len(chosen) <= points:
        return [
            parts[index].read_row(int(row))
            for index, row in zip(part_of.tolist(), row_of, strict=True)
        ]
    return _reduced(parts, part_of, row_of, points)


def is_known(connection: Connection, run_key: int, name: str) -> bool:
    """Whether the run has ever reported a histogram of this name."""
    layouts = rows.layouts_of(connection, run_key).values()
    return any(name in layout.histogram_names for layout in layouts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Histograms of one name and number of bins, as columns of one length."""

    stream_keys: NDArray[np.int64]
    positions: NDArray[np.int64]
    steps: NDArray[np.int64]
    histograms: Histograms

    def read_row(self, row: int) -> _Counts:
        return _counts(self.steps, self.histograms, row)


def _parts(connection: Connection, run_key: int, name: str, wanted: StepRange) -> Iterator[_Part]:
    layouts = rows.layouts_of(connection, run_key)
    holding = [key for key, layout in layouts.items() if name in layout.histogram_names]
    facts = func.substr(
        records.c.facts, 1, 2 * WORD * records.c.reports, type_=records.c.facts.type
    )
    query = select(
        records.c.stream_key,
        records.c.layout_key,
        records.c.reports,
        facts.label("facts"),
        records.c.histograms,
    )
    where = [records.c.layout_key.in_(holding), *wanted.conditions()]
    for some in rows.some_at_once(connection, run_key, where):
        for row in connection.execute(query.where(*some)):
            layout = layouts[row.layout_key]
            positions, steps = np.frombuffer(row.facts, dtype="<i8").reshape(2, -1)
            for place in layout.histograms:
                if place.name != name:
                    continue
                histograms = rows.read_histograms(row.histograms, layout, row.reports, place)
                held = histograms.held & wanted.holds(steps)
                yield _Part(
                    stream_keys=np.full(int(held.sum()), row.stream_key, dtype=np.int64),
                    positions=positions[held],
                    steps=steps[held],
                    histograms=Histograms(histograms.edges[:, held], histograms.counts[held]),
                )


def _reduced(
    parts: Sequence[_Part], part_of: NDArray[np.intp], row_of: NDArray[np.intp], points: int
) -> list[_Counts]:
    """Buckets of neighbours, each with the edges of its last; histograms with these edges are
    added."""
    ends = np.linspace(0, len(row_of), points + 1).astype(np.intp)[1:]
    bucket_of = np.searchsorted(ends, np.arange(len(row_of)), side="right")
    buckets = [parts[part_of[end - 1]].read_row(int(row_of[end - 1])) for end in ends]
    low, high = (
        np.array([getattr(bucket, edge) for bucket in buckets]) for edge in ("low", "high")
    )
    bins = np.array([len(bucket.counts) for bucket in buckets])
    is_last = np.zeros(len(row_of), dtype=bool)
    is_last[ends - 1] = True
    for index in np.unique(part_of):
        part, mine = parts[int(index)], np.flatnonzero((part_of == index) & ~is_last)
        chosen, bucket = row_of[mine], bucket_of[mine]
        part_low, part_high = part.histograms.edges[:2, chosen].copy().view(np.float64)
        alike = (part_low == low[bucket]) & (part_high == high[bucket])
        alike &= bins[bucket] == part.histograms.counts.shape[1]
        _add(buckets, bucket[alike], part, chosen[alike])
    return buckets


def _add(
    buckets: list[_Counts], bucket_of: NDArray[np.intp], part: _Part, chosen: NDArray[np.intp]
) -> None:
    """Add rows of a part to their buckets; neighbours share one."""
    if not len(chosen):
        return
    firsts = np.flatnonzero(np.diff(bucket_of, prepend=-1))
    counts = np.add.reduceat(part.histograms.counts[chosen], firsts, axis=0, dtype=np.uint64)
    not_finite = np.add.reduceat(part.histograms.edges[2, chosen], firsts)
    for bucket, more, more_non_finite in zip(
        bucket_of[firsts].tolist(), counts, not_finite.tolist(), strict=True
    ):
        sums = buckets[bucket]
        buckets[bucket] = sums._replace(
            counts=sums.counts + more, not_finite=sums.not_finite + more_non_finite
        )
