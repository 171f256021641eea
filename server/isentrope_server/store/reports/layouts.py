"""Layouts: the order of scalars and histograms in a record's blobs.

A report's scalars are one blob of float64 in the order of the layout's names; its histograms are another, one piece of
fixed width after the other. So one metric of many records is a slice at one place, and records that share a layout are
one array.

Packed reports are found by metric name and need no layout. The layouts that only packed reports of a stream have are
united to one: a run whose reports have different metrics at each step would else have one for each.
"""

from __future__ import annotations

import hashlib
import json
import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection, Text, bindparam, cast, delete, func, insert, select, update

from isentrope_server.store.database import Change, hold_what_runs_share
from isentrope_server.store.tables import names_as_stored, report_layouts, stream_layouts, streams
from isentrope_wire.reports import ScoreHistogram, StepReport

Names = tuple[str, ...]

_EDGES = struct.Struct("<ddQ")
"""low, high, not_finite: before the counts of a histogram."""
_COUNT_TYPES = ((4, "I"), (8, "Q"))
"""Bytes a count takes, and the array type that holds it."""


class HistogramPlace(NamedTuple):
    """One histogram's piece of a blob."""

    name: str
    bins: int
    count_bytes: int
    """4, or 8 where a count needs it."""

    @property
    def bytes(self) -> int:
        return _EDGES.size + self.bins * self.count_bytes

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The piece as numpy reads it: `low`, `high`, `not_finite`, `counts`."""
        counts = ("counts", f"<u{self.count_bytes}", (self.bins,))
        return np.dtype([("low", "<f8"), ("high", "<f8"), ("not_finite", "<u8"), counts])


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of the scalars in their order, and the histograms in theirs."""

    names: Names
    histograms: tuple[HistogramPlace, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """Each report's layout is looked up several times, and has some sixty names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.names, self.histograms)))

    def __hash__(self) -> int:
        return self._hash

    def start_of(self, place: HistogramPlace) -> int:
        """Where a histogram's piece begins in the blob, in bytes."""
        before = self.histograms[: self.histograms.index(place)]
        return sum(other.bytes for other in before)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedLayout:
    """A layout one stream has used, and where it did so last."""

    key: int
    layout: Layout
    stream_key: int
    last_position: int

    @property
    def names(self) -> Names:
        return self.layout.names


class PackedReport(NamedTuple):
    """A report's numbers as they are stored."""

    layout: Layout
    scalars: bytes
    histograms: bytes


def packed(report: StepReport) -> PackedReport:
    """Pack a report's scalars and histograms; of histograms with one name the last one is used."""
    by_name = {histogram.name: histogram for histogram in report.histograms}
    shapes: list[tuple[str, int, int]] = []
    pieces: list[bytes] = []
    for name in sorted(by_name):
        count_bytes, piece = _packed_histogram(by_name[name])
        shapes.append((name, len(by_name[name].counts), count_bytes))
        pieces.append(piece)
    layout = _layout(tuple(report.scalars), tuple(shapes))
    return PackedReport(layout, pack(layout.names, report.scalars), b"".join(pieces))


@lru_cache(maxsize=4096)
def _layout(names: Names, shapes: tuple[tuple[str, int, int], ...]) -> Layout:
    """One object for all reports that share it: sorting sixty names takes as long as packing their values."""
    return Layout(tuple(sorted(names)), tuple(HistogramPlace(*shape) for shape in shapes))


def pack(names: Names, scalars: Mapping[str, float]) -> bytes:
    """Little-endian float64 in the order of `names`; NaN and infinities are kept bit for bit."""
    # The getter is ten times as quick as a loop, and the same for all reports of a layout.
    return struct.pack(f"<{len(names)}d", *_values_of(names)(scalars))


def unpack(names: Names, packed: bytes) -> dict[str, float]:
    return dict(zip(names, struct.unpack(f"<{len(names)}d", packed), strict=True))


def intern(connection: Connection, wanted: Iterable[Layout]) -> dict[Layout, int]:
    """Return the keys of layouts; insert new ones."""
    by_digest = {digest(layout): layout for layout in wanted}
    if not by_digest:
        return {}
    keys = _known(connection, by_digest)
    if len(keys) == len(by_digest):
        return keys
    hold_what_runs_share(connection)
    keys = _known(connection, by_digest)
    for layout_digest, layout in by_digest.items():
        if layout not in keys:
            result = connection.execute(
                insert(report_layouts)
                .values(digest=layout_digest, names=list(layout.names), histograms=[list(h) for h in layout.histograms])
                .returning(report_layouts.c.key)
            )
            keys[layout] = result.scalar_one()
    return keys


def _known(connection: Connection, by_digest: Mapping[bytes, Layout]) -> dict[Layout, int]:
    found = connection.execute(
        select(report_layouts.c.key, report_layouts.c.digest).where(report_layouts.c.digest.in_(by_digest))
    )
    return {by_digest[bytes(found_digest)]: key for key, found_digest in found}


def mark_used(connection: Connection, stream_key: int, last_positions: Mapping[int, int]) -> None:
    """Store where a stream used each layout last, so that names and latest values need no scan."""
    for layout_key, position in last_positions.items():
        place = (stream_layouts.c.stream_key == stream_key, stream_layouts.c.layout_key == layout_key)
        if connection.execute(update(stream_layouts).where(*place).values(last_position=position)).rowcount == 0:
            connection.execute(
                insert(stream_layouts).values(stream_key=stream_key, layout_key=layout_key, last_position=position)
            )


def used_again(stream_key: int, layout_key: int, position: int) -> Change:
    """As `mark_used`, for a layout that the stream has used before."""
    return Change(_USED_AGAIN, {"used_by": stream_key, "used_layout": layout_key, "used_at": position})


_USED_AGAIN = (
    update(stream_layouts)
    .where(stream_layouts.c.stream_key == bindparam("used_by"), stream_layouts.c.layout_key == bindparam("used_layout"))
    .values(last_position=bindparam("used_at"))
)


def unite_packed(connection: Connection, stream_key: int, *, through: int) -> None:
    """Make one of a stream's layouts that no report after position `through` has, in the caller's transaction."""
    packed = (stream_layouts.c.stream_key == stream_key, stream_layouts.c.last_position <= through)
    of_layouts = select(report_layouts.c.names, report_layouts.c.histograms).join(
        stream_layouts, stream_layouts.c.layout_key == report_layouts.c.key
    )
    found = [layout_of(row.names, row.histograms) for row in connection.execute(of_layouts.where(*packed))]
    if len(found) < 2:
        return
    names = {name for layout in found for name in layout.names}
    places = {place for layout in found for place in layout.histograms}
    ((_, key),) = intern(connection, [Layout(tuple(sorted(names)), tuple(sorted(places)))]).items()
    newest = connection.execute(select(func.max(stream_layouts.c.last_position)).where(*packed)).scalar_one()
    connection.execute(delete(stream_layouts).where(*packed, stream_layouts.c.layout_key != key))
    of_key = (stream_layouts.c.stream_key == stream_key, stream_layouts.c.layout_key == key)
    position = connection.execute(select(stream_layouts.c.last_position).where(*of_key)).scalar()
    # The united layout may be one that reports have, newer ones too.
    mark_used(connection, stream_key, {key: max(newest, position or 0)})


def used_by(connection: Connection, run_key: int) -> list[UsedLayout]:
    """Layouts of a run's streams: of unpacked reports, and those that name the packed metrics."""
    query = (
        select(
            report_layouts.c.key,
            cast(report_layouts.c.names, Text).label("names"),
            cast(report_layouts.c.histograms, Text).label("histograms"),
            stream_layouts.c.stream_key,
            stream_layouts.c.last_position,
        )
        .join(stream_layouts, stream_layouts.c.layout_key == report_layouts.c.key)
        .join(streams, streams.c.key == stream_layouts.c.stream_key)
        .where(streams.c.run_key == run_key)
    )
    return [
        UsedLayout(
            key=row.key,
            layout=_layout_of_text(row.names, row.histograms),
            stream_key=row.stream_key,
            last_position=row.last_position,
        )
        for row in connection.execute(query)
    ]


def by_key(connection: Connection, keys: Iterable[int]) -> dict[int, Layout]:
    """The layouts with these keys."""
    wanted = select(report_layouts.c.key, report_layouts.c.names, report_layouts.c.histograms).where(
        report_layouts.c.key.in_(set(keys))
    )
    return {row.key: layout_of(row.names, row.histograms) for row in connection.execute(wanted)}


@lru_cache(maxsize=4096)
def _layout_of_text(names: str, histograms: str | None) -> Layout:
    """Cached by text, not by key: a key may be used again after its layout was removed."""
    return layout_of(json.loads(names), None if histograms is None else json.loads(histograms))


def layout_of(names: Sequence[str], histograms: Sequence[Sequence[object]] | None) -> Layout:
    """A layout from its row. JSON keeps a NUL in a name; packed names have none."""
    places = [HistogramPlace(*place) for place in histograms or ()]  # type: ignore[arg-type]
    stored = names_as_stored([place.name for place in places])
    return Layout(
        names_as_stored(names), tuple(place._replace(name=name) for place, name in zip(places, stored, strict=True))
    )


def _packed_histogram(histogram: ScoreHistogram) -> tuple[int, bytes]:
    edges = _EDGES.pack(histogram.low, histogram.high, histogram.not_finite)
    for count_bytes, kind in _COUNT_TYPES:
        try:
            return count_bytes, edges + array(kind, histogram.counts).tobytes()
        except OverflowError:
            continue
    raise AssertionError("the wire's counts are uint64")


@lru_cache(maxsize=4096)
def _values_of(names: Names) -> Callable[[Mapping[str, float]], tuple[float, ...]]:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda scalars: tuple(scalars[name] for name in names)


@lru_cache(maxsize=4096)
def digest(layout: Layout) -> bytes:
    """The hash a layout is found by in the database."""
    return hashlib.blake2b(json.dumps([layout.names, layout.histograms]).encode(), digest_size=16).digest()
