"""Streams: what one rank of one incarnation sends, how far it is acknowledged, and which report is
shown for a step.

Steps may go backwards: a resumed run repeats some. Nothing is overwritten; what is *shown* follows
three rules. From the first step of the newest incarnation on, reports of older ones are not shown.
Within an incarnation the lowest rank's report is shown. Within a rank the report that came last is
shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import (
    Connection,
    Update,
    bindparam,
    func,
    insert,
    literal,
    select,
    tuple_,
    union_all,
    update,
)

from isentrope_server.store.controls import ControlItem, begun_with
from isentrope_server.store.database import build_answer
from isentrope_server.store.rows import payload_hashes
from isentrope_server.store.tables import gaps, quarantine, records, report_layouts, runs, streams
from isentrope_wire.answers import REFUSED, Gap
from isentrope_wire.reports import RunStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One rank of one incarnation."""

    key: int
    run_key: int
    incarnation: str
    rank: int
    started_at: float
    opened_at: float
    """When its first Hello came, by the server's clock."""
    first_step: int | None
    last_step: int | None
    acked_through: int
    control_version: int
    """The highest version it named, as active or with an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushState:
    """What a push must know of its stream and run."""

    stream: Stream
    held_through: int
    """No higher seq is stored, quarantined or in a gap."""
    is_current: bool
    """Whether the stream is the lowest known rank of the newest incarnation: the one that is
    shown."""
    last_position: int
    """The run's."""
    overtaken_by: str
    """The newest incarnation, where this is an older one; empty where it is not."""
    layout_key: int | None
    """Key of the push's layout, where the run has used it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One attempt of a run's training process, over all its ranks."""

    name: str
    started_at: float
    """By the trainer's clock; moved behind an older incarnation's where that clock was set back."""
    opened_at: float
    """When its first Hello came, by the server's clock."""
    first_step: int | None
    """The lowest step it reported; from here on older incarnations are not shown."""
    last_step: int | None
    streams: tuple[Stream, ...]


_INCARNATIONS_READ = 16
"""To find a run's first control; a run that is resumed many times seldom changes it."""


def find(connection: Connection, run_id: str, incarnation: str, rank: int) -> Stream | None:
    row = connection.execute(
        _STREAMS.join(runs, runs.c.key == streams.c.run_key).where(
            runs.c.id == run_id, streams.c.incarnation == incarnation, streams.c.rank == rank
        )
    ).one_or_none()
    if row is None:
        return None
    return Stream(**row._mapping)


def push_state(
    connection: Connection, run_id: str, incarnation: str, rank: int, layout_digest: bytes
) -> PushState | None:
    """Read what a push must know of its stream and run; None where no Hello of the stream came."""
    sender = {
        "of_run_id": run_id,
        "of_incarnation": incarnation,
        "of_rank": rank,
        "layout_digest": layout_digest,
    }
    row = connection.execute(_PUSH_STATE, sender).one_or_none()
    if row is None:
        return None
    is_lowest = row.lowest_rank == rank
    # With many ranks, most are decided by the first condition.
    newest = incarnation
    if is_lowest and row.rivals is not None:
        newest = _newest(connection, row.run_key)
    return PushState(
        stream=Stream(**{name: getattr(row, name) for name in _NAMES}),
        held_through=max(
            row.acked_through, row.last_record or 0, row.last_quarantined or 0, row.last_gap or 0
        ),
        is_current=is_lowest and newest == incarnation,
        overtaken_by="" if newest == incarnation else newest,
        last_position=row.last_position,
        layout_key=row.layout_key,
    )


def count(connection: Connection, run_key: int) -> int:
    return connection.execute(
        select(func.count()).select_from(streams).where(streams.c.run_key == run_key)
    ).scalar_one()


def create(connection: Connection, run_key: int, started: RunStarted, now: float) -> int:
    """Insert the stream that `started` describes; return its key."""
    begun = started.initial_control
    result = connection.execute(
        insert(streams)
        .values(
            run_key=run_key,
            incarnation=started.incarnation,
            rank=started.rank,
            started_at=started.started_at,
            opened_at=now,
            acked_through=0,
            initial_control=(
                None
                if begun is None
                else {
                    "version": begun.version,
                    "author": begun.author,
                    "document": begun.control.to_document(),
                }
            ),
        )
        .returning(streams.c.key)
    )
    return int(result.scalar_one())


def initial_controls(connection: Connection, run_key: int) -> list[ControlItem]:
    """The controls that the newest incarnations started with, newest first, where they announced
    one."""
    rows = connection.execute(
        select(streams.c.started_at, streams.c.initial_control)
        .where(streams.c.run_key == run_key, streams.c.rank == 0)
        .order_by(streams.c.started_at.desc(), streams.c.incarnation.desc())
        .limit(_INCARNATIONS_READ)
    )
    return [
        begun_with(run_key=run_key, began_at=row.started_at, **row.initial_control)
        for row in rows
        if row.initial_control
    ]


def all_of(connection: Connection, run_key: int) -> list[Stream]:
    """The streams of a run, of all ranks and incarnations."""
    rows = connection.execute(_STREAMS.where(streams.c.run_key == run_key))
    return [Stream(**row._mapping) for row in rows]


def incarnations(connection: Connection, run_key: int) -> list[Incarnation]:
    """The run's incarnations, oldest first by the time their first rank started."""
    by_name: dict[str, list[Stream]] = {}
    for row in connection.execute(
        _STREAMS.where(streams.c.run_key == run_key).order_by(streams.c.rank)
    ):
        stream = Stream(**row._mapping)
        by_name.setdefault(stream.incarnation, []).append(stream)
    return sorted((_incarnation(name, members) for name, members in by_name.items()), key=_age)


def streams_of_incarnation(connection: Connection, run_key: int, name: str) -> tuple[Stream, ...]:
    """The known streams of an incarnation, by rank; empty where there is no such incarnation."""
    rows = connection.execute(
        _STREAMS.where(streams.c.run_key == run_key, streams.c.incarnation == name).order_by(
            streams.c.rank
        )
    )
    return tuple(Stream(**row._mapping) for row in rows)


def newest_and(connection: Connection, run_key: int, name: str) -> list[Incarnation]:
    """The incarnation with this name, where there is one, and the newest: oldest first. A training
    that crashes and resumes all day has many incarnations, so not all are read."""
    names = {name, _newest(connection, run_key)}
    known = [
        _incarnation(one, list(members))
        for one in names
        if (members := streams_of_incarnation(connection, run_key, one))
    ]
    return sorted(known, key=_age)


def _newest(connection: Connection, run_key: int) -> str:
    """The name of the newest incarnation, by `_age`; empty where there is none."""
    began = func.min(streams.c.started_at)
    of_run = (
        select(streams.c.incarnation)
        .where(streams.c.run_key == run_key)
        .group_by(streams.c.incarnation)
    )
    last = select(
        func.max(of_run.add_columns(began.label("began")).subquery().c.began)
    ).scalar_subquery()
    # Databases sort names differently.
    return max(connection.execute(of_run.having(began == last)).scalars(), default="")


def highest_control_version(connection: Connection, run_key: int, *, below: int) -> int:
    """The highest control version below a bound that any stream has named; 0 where none did."""
    highest = select(func.max(streams.c.control_version)).where(
        streams.c.run_key == run_key, streams.c.control_version < below
    )
    return connection.execute(highest).scalar_one() or 0


def advanced(stream: Stream, *, acked_through: int, steps: Iterable[int], now: float) -> Update:
    """The update of a stream after a push; every record up to `acked_through` is stored,
    quarantined or in a gap."""
    known = [*steps, *(s for s in (stream.first_step, stream.last_step) if s is not None)]
    return (
        update(streams)
        .where(streams.c.key == stream.key)
        .values(
            acked_through=acked_through,
            first_step=min(known, default=None),
            last_step=max(known, default=None),
            control_version=stream.control_version,
            last_report_at=now,
        )
    )


def contiguous_through(
    connection: Connection,
    stream: Stream,
    just_stored: Sequence[int] = (),
    *,
    held_through: int | None = None,
) -> int:
    """The highest seq up to which every record is stored, quarantined or in a gap. The rising seqs
    `just_stored` or refused by this transaction need no query; nor is there one if none is held
    beyond `held_through`."""
    through = stream.acked_through
    for seq in just_stored:
        if seq > through + 1:
            break
        through = max(through, seq)
    if held_through is not None and through >= max([held_through, *just_stored[-1:]]):
        return through
    held = union_all(
        select(quarantine.c.seq.label("first"), quarantine.c.seq.label("last")).where(
            quarantine.c.stream_key == stream.key, quarantine.c.seq > through
        ),
        select(gaps.c.first_seq, gaps.c.last_seq).where(
            gaps.c.stream_key == stream.key, gaps.c.last_seq > through
        ),
    )
    stored = select(records.c.facts).where(
        records.c.stream_key == stream.key, records.c.last_seq > through
    )
    ranges = [(first, last) for first, last in connection.execute(held)]
    for facts in connection.execute(stored).scalars():
        ranges += [(seq, seq) for seq in payload_hashes(facts)]
    for first, last in sorted(ranges):
        if first > through + 1:
            break
        through = max(through, last)
    return through


_NAMES = [field.name for field in fields(Stream)]
_STREAMS = select(*(streams.c[name] for name in _NAMES))
_own = streams.alias("own")
_other = streams.alias("other")
_began = select(func.min(_own.c.started_at)).where(
    _own.c.run_key == streams.c.run_key, _own.c.incarnation == streams.c.incarnation
)
_PUSH_STATE = (
    _STREAMS.add_columns(
        runs.c.last_position,
        select(func.max(records.c.last_seq))
        .where(records.c.stream_key == streams.c.key)
        .scalar_subquery()
        .label("last_record"),
        select(func.max(quarantine.c.seq))
        .where(quarantine.c.stream_key == streams.c.key)
        .scalar_subquery()
        .label("last_quarantined"),
        select(func.max(gaps.c.last_seq))
        .where(gaps.c.stream_key == streams.c.key)
        .scalar_subquery()
        .label("last_gap"),
        select(func.min(_own.c.rank))
        .where(_own.c.run_key == streams.c.run_key, _own.c.incarnation == streams.c.incarnation)
        .scalar_subquery()
        .label("lowest_rank"),
        # An incarnation that is newer, or as old: then names decide, and databases sort names
        # differently.
        select(_other.c.incarnation)
        .where(_other.c.run_key == streams.c.run_key, _other.c.incarnation != streams.c.incarnation)
        .group_by(_other.c.incarnation)
        .having(func.min(_other.c.started_at) >= _began.scalar_subquery())
        .limit(1)
        .scalar_subquery()
        .label("rivals"),
        select(report_layouts.c.key)
        .where(
            report_layouts.c.run_key == streams.c.run_key,
            report_layouts.c.digest == bindparam("layout_digest"),
        )
        .scalar_subquery()
        .label("layout_key"),
    )
    .join(runs, runs.c.key == streams.c.run_key)
    .where(
        runs.c.id == bindparam("of_run_id"),
        streams.c.incarnation == bindparam("of_incarnation"),
        streams.c.rank == bindparam("of_rank"),
    )
)


def _incarnation(name: str, members: list[Stream]) -> Incarnation:
    return Incarnation(
        name=name,
        started_at=min(s.started_at for s in members),
        opened_at=min(s.opened_at for s in members),
        first_step=min((s.first_step for s in members if s.first_step is not None), default=None),
        last_step=max((s.last_step for s in members if s.last_step is not None), default=None),
        streams=tuple(members),
    )


def _age(incarnation: Incarnation) -> tuple[float, str]:
    return incarnation.started_at, incarnation.name


class Timeline:
    """Picks the rows of one run that are shown, given its incarnations, oldest first."""

    def __init__(self, incarnations: Sequence[Incarnation]) -> None:
        last = int(np.iinfo(np.int64).max)
        places: list[tuple[int, int, int, int]] = []
        for age, incarnation in enumerate(reversed(incarnations)):
            places += [(stream.key, last, age, stream.rank) for stream in incarnation.streams]
            if incarnation.first_step is not None:
                last = min(last, incarnation.first_step - 1)
        self._keys, self._lasts, self._ages, self._ranks = (
            np.array(sorted(places), dtype=np.int64).reshape(-1, 4).T
        )

    def order_of(self, stream_key: int) -> tuple[int, int]:
        """Sort key of a stream; lowest precedence first."""
        place = int(np.searchsorted(self._keys, stream_key))
        return -int(self._ages[place]), -int(self._ranks[place])

    def shown(
        self, steps: NDArray[np.int64], stream_keys: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.intp]:
        """Indices of the rows that are shown, one per step, by rising step; step, stream and
        position of each row are (rows,). Much faster where rows come by rising position and little
        is out of order."""
        if len(self._keys) == 1 and bool((steps[1:] > steps[:-1]).all()):
            return np.arange(len(steps))
        places = np.searchsorted(self._keys, stream_keys)
        candidates = np.flatnonzero(steps <= self._lasts[places])
        found, places = steps[candidates], places[candidates]
        if bool((found[1:] > found[:-1]).all()):
            return candidates
        order = np.lexsort(
            (positions[candidates], -self._ranks[places], -self._ages[places], found)
        )
        in_order = found[order]
        is_last_of_step = np.ones(len(order), dtype=bool)
        is_last_of_step[:-1] = in_order[1:] != in_order[:-1]
        return candidates[order[is_last_of_step]]


def newest_gaps(
    connection: Connection, run_key: int, *, before: Sequence[int] | None, limit: int
) -> list[tuple[tuple[int, int], Gap]]:
    """Gaps and refused records of a run with their places (stream key, first seq), those of the
    newest stream first."""
    of_run = select(streams.c.key).where(streams.c.run_key == run_key)
    lost = select(gaps.c.stream_key, gaps.c.first_seq, gaps.c.last_seq, gaps.c.reason).where(
        gaps.c.stream_key.in_(of_run)
    )
    why = literal(REFUSED).concat(func.min(quarantine.c.message))
    refused = (
        select(quarantine.c.stream_key, quarantine.c.seq, quarantine.c.seq, why)
        .where(quarantine.c.stream_key.in_(of_run))
        .group_by(quarantine.c.stream_key, quarantine.c.seq)
    )
    either = union_all(lost, refused).subquery()
    wanted = (
        select(either, streams.c.incarnation, streams.c.rank)
        .join(streams, streams.c.key == either.c.stream_key)
        .where(streams.c.run_key == run_key)
        .order_by(either.c.stream_key.desc(), either.c.first_seq.desc())
        .limit(limit)
    )
    if before is not None:
        wanted = wanted.where(tuple_(either.c.stream_key, either.c.first_seq) < tuple(before))
    return [
        ((row.stream_key, row.first_seq), build_answer(Gap, row))
        for row in connection.execute(wanted)
    ]
