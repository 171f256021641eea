"""The form of stored reports: a row holds n ≥ 1 reports of one stream, of one push or joined later.

Numbers lie column by column, so one metric of a row is one slice, whether n is 1 or 1000: metric i
of the row's layout is bytes 8 n i to 8 n (i + 1) of `scalars`. `facts` are columns, too: of each
report its position, step, seq, times, control version, labels and payload hash. `histograms` has
one piece for each name and number of bins: edges and counts of all n reports, deflated once the row
is packed.

A row whose reports have different metrics has all of them; what a report lacks is marked by
`MISSING`."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Text, cast, func, insert, select

from isentrope_server.store.database import POSTGRESQL
from isentrope_server.store.tables import json_text, records, report_layouts
from isentrope_wire.reports import StepReport

Words = NDArray[np.uint64]

MISSING = np.uint64(0x7FF8_0000_0000_1E57)
"""Bits of a NaN that no report holds: a value that is not there."""
_NAN = np.uint64(0x7FF8_0000_0000_0000)
WORD = 8
"""Bytes of every number."""
KIND = "step_report"

_POSITION, _STEP, _SEQ, _RECORDED_AT, _RECEIVED_AT, _CONTROL_VERSION, _LABELS, _HASH = range(8)
_FACTS = 9
"""Columns of `facts`; the hash takes two."""
_EDGES = 3
"""Words before a histogram's counts: low, high, not_finite."""
_EDGES_FORMAT = struct.Struct("<ddQ")
_PIECE = struct.Struct("<IBB")
"""Before a histogram's piece: its bytes, bytes of a count, whether it is deflated."""
_DEFLATE_LEVEL = 1
"""Higher levels take several times as long and save a few percent."""
_SPARSEST = 4
"""A row has at most four times as many cells as its reports have numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSizes:
    """How large a row becomes."""

    reports: int = 1_000
    fewest: int = 64
    """The rest of a run that ended is packed, too, unless it has fewer reports."""
    bytes: int = 8 * 2**20
    """Largest size of the numbers: packing needs a few times as much memory. A single report may be
    larger."""


ROW_SIZES = RowSizes()


class HistogramPlace(NamedTuple):
    """Histograms of one name and number of bins."""

    name: str
    bins: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of a row's scalars and histograms, in their order."""

    names: tuple[str, ...]
    histograms: tuple[HistogramPlace, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)
    """Each report's layout is looked up several times, and has some sixty names."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.names, self.histograms)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def histogram_names(self) -> set[str]:
        return {place.name for place in self.histograms}

    @property
    def words(self) -> int:
        """Numbers of one report."""
        return len(self.names) + sum(_EDGES + place.bins for place in self.histograms)


NO_LAYOUT = Layout(())


class Histograms(NamedTuple):
    """Histograms of one name and number of bins, of n reports."""

    edges: Words
    """Shape (3, n): low, high, not_finite; low and high are the bits of float64, or `MISSING`."""
    counts: NDArray[Any]
    """Shape (n, bins), unsigned."""

    @property
    def held(self) -> NDArray[np.bool_]:
        """Which of the reports have it, shape (n,)."""
        return np.asarray(self.edges[0] != MISSING)


class PackedReport(NamedTuple):
    """A report's numbers and labels as they are stored."""

    layout: Layout
    scalars: bytes
    histograms: bytes
    labels: str


def packed(report: StepReport) -> PackedReport:
    """Pack a report's numbers; of histograms with one name the last one is used."""
    by_name = {histogram.name: histogram for histogram in report.histograms}
    found = [by_name[name] for name in sorted(by_name)]
    layout = _layout(tuple(report.scalars), tuple((one.name, len(one.counts)) for one in found))
    scalars = struct.pack(f"<{len(layout.names)}d", *_values_of(layout.names)(report.scalars))
    pieces = [
        _EDGES_FORMAT.pack(one.low, one.high, one.not_finite) + array("Q", one.counts).tobytes()
        for one in found
    ]
    return PackedReport(layout, scalars, b"".join(pieces), json_text(dict(report.labels)))


@lru_cache(maxsize=4096)
def _layout(names: tuple[str, ...], histograms: tuple[tuple[str, int], ...]) -> Layout:
    """One object for all reports that share it: sorting sixty names takes as long as packing their
    values."""
    return Layout(tuple(sorted(names)), tuple(HistogramPlace(*place) for place in histograms))


@lru_cache(maxsize=4096)
def _values_of(names: tuple[str, ...]) -> Callable[[Mapping[str, float]], tuple[float, ...]]:
    # The getter is ten times as quick as a loop.
    if len(names) > 1:
        return itemgetter(*names)
    return lambda scalars: tuple(scalars[name] for name in names)


@dataclass(frozen=True, kw_only=True)
class Reports:
    """The n reports of one row, by rising position."""

    stream_key: int
    layout: Layout
    facts: NDArray[np.int64]
    """Shape (9, n)."""
    labels: tuple[str, ...]
    """The different labels, as JSON."""
    scalars: Words
    """Shape (names, n): the bits of float64, or `MISSING`."""
    histograms: tuple[Histograms, ...]
    """One for each place of the layout; empty where they were not read."""

    @property
    def count(self) -> int:
        return len(self.positions)

    @property
    def positions(self) -> NDArray[np.int64]:
        return np.asarray(self.facts[_POSITION])

    @property
    def steps(self) -> NDArray[np.int64]:
        return np.asarray(self.facts[_STEP])

    @property
    def recorded_at(self) -> NDArray[np.float64]:
        return np.asarray(self.facts[_RECORDED_AT]).view(np.float64)

    @property
    def received_at(self) -> NDArray[np.float64]:
        return np.asarray(self.facts[_RECEIVED_AT]).view(np.float64)

    @property
    def control_versions(self) -> NDArray[np.int64]:
        return np.asarray(self.facts[_CONTROL_VERSION])

    @cached_property
    def label_sets(self) -> list[Mapping[str, str]]:
        return [json.loads(text) for text in self.labels]

    def labels_of(self, row: int) -> Mapping[str, str]:
        return self.label_sets[int(self.facts[_LABELS, row])]

    def scalars_of(self, row: int) -> dict[str, float]:
        """The scalars that one report has, by name."""
        column = self.scalars[:, row]
        if column.flags.c_contiguous:
            values = column.view(np.float64).tolist()
        else:
            values = column.copy().view(np.float64).tolist()
        return {
            name: value
            for name, value, bits in zip(self.layout.names, values, column, strict=True)
            if bits != MISSING
        }


def facts_of(
    *,
    positions: Sequence[int],
    seqs: Sequence[int],
    payload_hashes: Sequence[bytes],
    received_at: float,
    steps: Sequence[int] | int = 0,
    recorded_at: Sequence[float] | float = 0.0,
    control_versions: Sequence[int] | int = 0,
    labels: Sequence[int] | int = 0,
) -> NDArray[np.int64]:
    """The facts of some records, shape (9, n)."""
    facts = np.empty((_FACTS, len(positions)), dtype=np.int64)
    facts[_POSITION], facts[_STEP], facts[_SEQ] = positions, steps, seqs
    facts[_RECORDED_AT].view(np.float64)[:] = recorded_at
    facts[_RECEIVED_AT].view(np.float64)[:] = received_at
    facts[_CONTROL_VERSION], facts[_LABELS] = control_versions, labels
    facts[_HASH:] = np.frombuffer(b"".join(payload_hashes), dtype="<i8").reshape(-1, 2).T
    return facts


def payload_hashes(facts: bytes) -> dict[int, bytes]:
    """The payload hash of each seq of a row."""
    columns = _columns(facts)
    hashes = np.ascontiguousarray(columns[_HASH:].T)
    return {seq: hashes[row].tobytes() for row, seq in enumerate(columns[_SEQ].tolist())}


def steps_and_times(facts: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps of a row's reports, and when they were recorded."""
    columns = _columns(facts)
    return columns[_STEP], columns[_RECORDED_AT].view(np.float64)


def _columns(facts: bytes) -> NDArray[np.int64]:
    return np.frombuffer(facts, dtype="<i8").reshape(_FACTS, -1)


def alike(
    stream_key: int,
    layout: Layout,
    reports: Sequence[PackedReport],
    facts: NDArray[np.int64],
    labels: tuple[str, ...],
) -> Reports:
    """Reports that have one layout, as one row holds them."""
    scalars = np.frombuffer(b"".join(report.scalars for report in reports), dtype="<u8").reshape(
        len(reports), -1
    )
    words = np.frombuffer(b"".join(report.histograms for report in reports), dtype="<u8").reshape(
        len(reports), -1
    )
    ends = np.cumsum([_EDGES + place.bins for place in layout.histograms])[:-1]
    return Reports(
        stream_key=stream_key,
        layout=layout,
        facts=facts,
        labels=labels,
        scalars=np.where(scalars == MISSING, _NAN, scalars).T,
        histograms=tuple(
            Histograms(part[:, :_EDGES].T, part[:, _EDGES:])
            for part in (np.split(words, ends, axis=1) if layout.histograms else ())
        ),
    )


def fitting(parts: Sequence[tuple[int, Layout]], sizes: RowSizes = ROW_SIZES) -> int:
    """How many of these parts (number of reports, layout), from the first on, fit into one row; at
    least 1."""
    layout, reports, numbers = parts[0][1], 0, 0
    for index, (count, own) in enumerate(parts):
        united = _united(layout, own)
        reports, numbers = reports + count, numbers + count * own.words
        cells = reports * united.words
        if index and (
            reports > sizes.reports or cells * WORD > sizes.bytes or cells > _SPARSEST * numbers
        ):
            return index
        layout = united
    return len(parts)


def _united(one: Layout, other: Layout) -> Layout:
    if one == other:
        return one
    names, places = {*one.names, *other.names}, {*one.histograms, *other.histograms}
    return Layout(tuple(sorted(names)), tuple(sorted(places)))


def joined(parts: Sequence[Reports]) -> Reports:
    """Join neighbouring reports of one stream into one row."""
    if len(parts) == 1:
        return parts[0]
    layout = parts[0].layout
    for part in parts:
        layout = _united(layout, part.layout)
    count = sum(part.count for part in parts)
    scalars = np.full((len(layout.names), count), MISSING)
    histograms = {
        place: Histograms(
            np.full((_EDGES, count), MISSING), np.zeros((count, place.bins), dtype=np.uint64)
        )
        for place in layout.histograms
    }
    facts = np.concatenate([part.facts for part in parts], axis=1)
    labels = tuple(dict.fromkeys(text for part in parts for text in part.labels))
    numbers = {text: number for number, text in enumerate(labels)}
    columns = {name: column for column, name in enumerate(layout.names)}
    end = 0
    for part in parts:
        inside = slice(end, end := end + part.count)
        scalars[[columns[name] for name in part.layout.names], inside] = part.scalars
        for place, some in zip(part.layout.histograms, part.histograms, strict=True):
            histograms[place].edges[:, inside] = some.edges
            histograms[place].counts[inside] = some.counts
        facts[_LABELS, inside] = np.array([numbers[text] for text in part.labels])[
            part.facts[_LABELS]
        ]
    return Reports(
        stream_key=parts[0].stream_key,
        layout=layout,
        facts=facts,
        labels=labels,
        scalars=scalars,
        histograms=tuple(histograms.values()),
    )


def build_row(reports: Reports, *, is_packed: bool) -> dict[str, object]:
    """The columns of a row but the keys of its run and layout; histograms are deflated where
    `is_packed`."""
    return {
        **record_columns(reports.stream_key, KIND, reports.facts),
        "packed": is_packed,
        "first_step": int(reports.steps.min()),
        "last_step": int(reports.steps.max()),
        "labels": f"[{','.join(reports.labels)}]",
        "scalars": reports.scalars.tobytes(),
        "histograms": b"".join(_piece(some, deflated=is_packed) for some in reports.histograms),
    }


def record_columns(stream_key: int, kind: str, facts: NDArray[np.int64]) -> dict[str, object]:
    """The columns that every row has; those of a report are NULL."""
    return {
        "first_position": int(facts[_POSITION, 0]),
        "last_position": int(facts[_POSITION, -1]),
        "stream_key": stream_key,
        "first_seq": int(facts[_SEQ].min()),
        "last_seq": int(facts[_SEQ].max()),
        "kind": kind,
        "reports": facts.shape[1] if kind == KIND else 0,
        "packed": True,
        "facts": facts.tobytes(),
        **dict.fromkeys(
            ("first_step", "last_step", "layout_key", "labels", "scalars", "histograms")
        ),
    }


def insert_rows(connection: Connection, added: Sequence[Mapping[str, object]]) -> None:
    """Insert rows by the driver: SQLAlchemy's processing of each value would take as long as
    SQLite's storing."""
    values = [tuple(row[name] for name in _COLUMNS) for row in added]
    place = "?"
    if connection.dialect.name == POSTGRESQL:
        place = "%s"
    if values:
        places = ", ".join([place] * len(_COLUMNS))
        connection.exec_driver_sql(f"INSERT INTO records ({_NAMED}) VALUES ({places})", values)


_COLUMNS = tuple(column.name for column in records.columns)
_NAMED = ", ".join(f'"{name}"' for name in _COLUMNS)


def _piece(histograms: Histograms, *, deflated: bool) -> bytes:
    counts = histograms.counts
    narrow = np.ascontiguousarray(counts.astype(np.min_scalar_type(int(counts.max(initial=0)))))
    # Bytes of one significance together: they deflate to less.
    by_significance = narrow.reshape(-1).view(np.uint8).reshape(-1, narrow.itemsize).T
    body = histograms.edges.tobytes() + by_significance.tobytes()
    if deflated:
        body = zlib.compress(body, _DEFLATE_LEVEL)
    return _PIECE.pack(len(body), narrow.itemsize, deflated) + body


def read_histograms(
    stored: bytes, layout: Layout, count: int, wanted: HistogramPlace
) -> Histograms:
    """Histograms of one place from the blob of a row of `count` reports."""
    start = 0
    for place in layout.histograms:
        size, width, deflated = _PIECE.unpack_from(stored, start)
        start += _PIECE.size
        if place == wanted:
            body = stored[start : start + size]
            plain = body
            if deflated:
                plain = zlib.decompress(body)
            edges = np.frombuffer(plain, dtype="<u8", count=_EDGES * count).reshape(_EDGES, count)
            by_significance = np.frombuffer(plain, dtype=np.uint8, offset=edges.nbytes).reshape(
                width, -1
            )
            counts = np.ascontiguousarray(by_significance.T).reshape(-1).view(f"<u{width}")
            return Histograms(edges, counts.reshape(count, place.bins))
        start += size
    raise AssertionError("a layout names each of its places")


def read(
    connection: Connection, run_key: int, *where: ColumnElement[bool], histograms: bool = False
) -> Iterator[Reports]:
    """A run's reports, with or without histograms, that fulfil the conditions on rows, by last
    position, a few rows at a time."""
    known = layouts_of(connection, run_key)
    columns = [
        records.c[name]
        for name in ("stream_key", "layout_key", "reports", "facts", "labels", "scalars")
    ]
    query = select(*columns, *([records.c.histograms] if histograms else []))
    for some in some_at_once(connection, run_key, where):
        for row in connection.execute(query.where(*some).order_by(records.c.last_position)):
            layout = known[row.layout_key]
            yield Reports(
                stream_key=row.stream_key,
                layout=layout,
                facts=_columns(row.facts),
                labels=tuple(json_text(labels) for labels in row.labels),
                scalars=np.frombuffer(row.scalars, dtype="<u8").reshape(
                    len(layout.names), row.reports
                ),
                histograms=(
                    tuple(
                        read_histograms(row.histograms, layout, row.reports, place)
                        for place in layout.histograms
                    )
                    if histograms
                    else ()
                ),
            )


def some_at_once(
    connection: Connection, run_key: int, where: Sequence[ColumnElement[bool]]
) -> Iterator[list[ColumnElement[bool]]]:
    """Conditions for some rows at once: drivers read all rows of a query before the first is
    returned. They name a range. Of lists each length would be a statement of its own, of up to 200
    KB, and each connection of SQLite keeps 128."""
    size = func.length(records.c.scalars) + func.length(records.c.histograms)
    wanted = [records.c.run_key == run_key, records.c.layout_key.is_not(None), *where]
    query = (
        select(records.c.last_position, size.label("size"))
        .where(*wanted)
        .order_by(records.c.last_position)
    )
    keys: list[int] = []
    total = 0
    for row in connection.execute(query).all():
        if keys and (total + row.size > ROW_SIZES.bytes or len(keys) == ROW_SIZES.reports):
            yield [*wanted, records.c.last_position.between(keys[0], keys[-1])]
            keys, total = [], 0
        keys.append(row.last_position)
        total += row.size
    if keys:
        yield [*wanted, records.c.last_position.between(keys[0], keys[-1])]


def layouts_of(connection: Connection, run_key: int) -> dict[int, Layout]:
    """The layouts of a run's rows, by key."""
    query = select(
        report_layouts.c.key,
        cast(report_layouts.c.names, Text).label("names"),
        cast(report_layouts.c.histograms, Text).label("histograms"),
    ).where(report_layouts.c.run_key == run_key)
    return {
        row.key: _layout_of_text(row.names, row.histograms) for row in connection.execute(query)
    }


@lru_cache(maxsize=4096)
def _layout_of_text(names: str, histograms: str) -> Layout:
    return Layout(
        tuple(json.loads(names)), tuple(HistogramPlace(*place) for place in json.loads(histograms))
    )


def intern(connection: Connection, run_key: int, wanted: Iterable[Layout]) -> dict[Layout, int]:
    """Return the keys of a run's layouts; insert new ones."""
    by_digest = {digest(layout): layout for layout in wanted}
    if not by_digest:
        return {}
    found = connection.execute(
        select(report_layouts.c.key, report_layouts.c.digest).where(
            report_layouts.c.run_key == run_key, report_layouts.c.digest.in_(by_digest)
        )
    )
    keys = {by_digest[bytes(row.digest)]: row.key for row in found}
    for layout_digest, layout in by_digest.items():
        if layout not in keys:
            values = {
                "names": list(layout.names),
                "histograms": [list(place) for place in layout.histograms],
            }
            result = connection.execute(
                insert(report_layouts)
                .values(run_key=run_key, digest=layout_digest, **values)
                .returning(report_layouts.c.key)
            )
            keys[layout] = result.scalar_one()
    return keys


@lru_cache(maxsize=4096)
def digest(layout: Layout) -> bytes:
    """The hash a layout is found by in the database."""
    return hashlib.blake2b(
        json.dumps([layout.names, layout.histograms]).encode(), digest_size=16
    ).digest()
