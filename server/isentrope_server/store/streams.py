"""Streams: what one rank of one incarnation sends, and how far it is acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, union_all, update

from isentrope_server.store.tables import gaps, quarantine, records, runs, streams
from isentrope_wire.messages import ControlSnapshot, RunStarted


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One rank of one incarnation."""

    key: int
    run_key: int
    incarnation: str
    rank: int
    started_at: float
    opened_at: float
    """When the server first heard of it, by the server's clock."""
    first_step: int | None
    last_step: int | None
    acked_through: int
    control_version: int
    """The highest one it named, in force or decided about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One life of a run's training process, over all its ranks."""

    name: str
    started_at: float
    """By the trainer's clock; moved behind an older incarnation's where that clock was set back in between."""
    opened_at: float
    """When the server first heard of it, by the server's clock."""
    first_step: int | None
    """The lowest step it reported; from here on it speaks for the run."""
    last_step: int | None
    streams: tuple[Stream, ...]


_LIVES_LOOKED_AT = 16
"""To tell under which control a run goes on; a run that is resumed again and again changes it seldom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialControl:
    """The control that an incarnation began under."""

    version: int
    author: str
    document: Mapping[str, object]
    began_at: float


def find(connection: Connection, run_id: str, incarnation: str, rank: int) -> Stream | None:
    row = connection.execute(
        _STREAMS.join(runs, runs.c.key == streams.c.run_key).where(
            runs.c.id == run_id, streams.c.incarnation == incarnation, streams.c.rank == rank
        )
    ).one_or_none()
    return None if row is None else Stream(**row._mapping)


def count(connection: Connection, run_key: int) -> int:
    """How many ranks of how many incarnations report a run."""
    return connection.execute(
        select(func.count()).select_from(streams).where(streams.c.run_key == run_key)
    ).scalar_one()


def create(connection: Connection, run_key: int, started: RunStarted, now: float) -> int:
    """Insert the stream that `started` opens; returns its key."""
    result = connection.execute(
        insert(streams)
        .values(
            run_key=run_key,
            incarnation=started.incarnation,
            rank=started.rank,
            started_at=started.started_at,
            opened_at=now,
            acked_through=0,
            initial_control=_initial(started.initial_control),
        )
        .returning(streams.c.key)
    )
    return int(result.scalar_one())


def initial_controls(connection: Connection, run_key: int) -> list[InitialControl]:
    """What the newest incarnations began under, newest first; those that don't say are left out."""
    rows = connection.execute(
        select(streams.c.started_at, streams.c.initial_control)
        .where(streams.c.run_key == run_key, streams.c.rank == 0)
        .order_by(streams.c.started_at.desc(), streams.c.incarnation.desc())
        .limit(_LIVES_LOOKED_AT)
    )
    return [InitialControl(**row.initial_control, began_at=row.started_at) for row in rows if row.initial_control]


def incarnations(connection: Connection, run_key: int) -> list[Incarnation]:
    """The run's incarnations, oldest first by the time their first rank started."""
    by_name: dict[str, list[Stream]] = {}
    for row in connection.execute(_STREAMS.where(streams.c.run_key == run_key).order_by(streams.c.rank)):
        stream = Stream(**row._mapping)
        by_name.setdefault(stream.incarnation, []).append(stream)
    return sorted((_incarnation(name, members) for name, members in by_name.items()), key=_age)


def of_incarnation(connection: Connection, run_key: int, name: str) -> tuple[Stream, ...]:
    """The ranks of an incarnation that are known here, by rank; empty where there is no such incarnation."""
    rows = connection.execute(
        _STREAMS.where(streams.c.run_key == run_key, streams.c.incarnation == name).order_by(streams.c.rank)
    )
    return tuple(Stream(**row._mapping) for row in rows)


def newest_and(connection: Connection, run_key: int, name: str) -> list[Incarnation]:
    """Of a run's incarnations the one with this name, where there is one, and the newest: oldest first.

    A run may have as many as a training that crashes and resumes all day makes of it, so not all are read.
    """
    names = {name, _newest(connection, run_key)}
    known = [_incarnation(one, list(members)) for one in names if (members := of_incarnation(connection, run_key, one))]
    return sorted(known, key=_age)


def speaks(connection: Connection, stream: Stream) -> bool:
    """Whether a stream speaks for its run: it is the lowest known rank of the newest incarnation."""
    lowest = select(func.min(streams.c.rank)).where(
        streams.c.run_key == stream.run_key, streams.c.incarnation == stream.incarnation
    )
    # Of many ranks most are through here.
    if connection.execute(lowest).scalar_one() != stream.rank:
        return False
    return _newest(connection, stream.run_key) == stream.incarnation


def _newest(connection: Connection, run_key: int) -> str:
    """The name of the newest incarnation, by `_age`; empty where there is none."""
    began = func.min(streams.c.started_at)
    of_run = select(streams.c.incarnation).where(streams.c.run_key == run_key).group_by(streams.c.incarnation)
    last = select(func.max(of_run.add_columns(began.label("began")).subquery().c.began)).scalar_subquery()
    # Databases sort names by rules of their own.
    return max(connection.execute(of_run.having(began == last)).scalars(), default="")


def highest_control_version(connection: Connection, run_key: int, *, below: int) -> int:
    """The highest version under a bound that any rank of any incarnation named last; 0 where none did."""
    highest = select(func.max(streams.c.control_version)).where(
        streams.c.run_key == run_key, streams.c.control_version < below
    )
    return connection.execute(highest).scalar_one() or 0


def advance(connection: Connection, stream: Stream, *, acked_through: int, steps: Iterable[int], now: float) -> None:
    """Note what a push brought: the acknowledgement, the range of steps and the control version the stream has now."""
    known = [*steps, *(s for s in (stream.first_step, stream.last_step) if s is not None)]
    connection.execute(
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


def contiguous_through(connection: Connection, stream: Stream, just_stored: Sequence[int] = ()) -> int:
    """The highest seq up to which every record is stored, kept aside, or known never to come.

    Args:
        just_stored: what this transaction stored or refused, by rising seq: it need not be looked for.
    """
    through = stream.acked_through
    for seq in just_stored:
        if seq > through + 1:
            break
        through = max(through, seq)
    held = union_all(
        select(records.c.seq.label("first"), records.c.seq.label("last")).where(
            records.c.stream_key == stream.key, records.c.seq > through
        ),
        select(quarantine.c.seq, quarantine.c.seq).where(
            quarantine.c.stream_key == stream.key, quarantine.c.seq > through
        ),
        select(gaps.c.first_seq, gaps.c.last_seq).where(gaps.c.stream_key == stream.key, gaps.c.last_seq > through),
    )
    for first, last in connection.execute(held.order_by("first")):
        if first > through + 1:
            break
        through = max(through, last)
    return through


_STREAMS = select(
    streams.c.key,
    streams.c.run_key,
    streams.c.incarnation,
    streams.c.rank,
    streams.c.started_at,
    streams.c.opened_at,
    streams.c.first_step,
    streams.c.last_step,
    streams.c.acked_through,
    streams.c.control_version,
)


def _initial(control: ControlSnapshot | None) -> dict[str, object] | None:
    if control is None:
        return None
    return {"version": control.version, "author": control.author, "document": control.control.to_document()}


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
