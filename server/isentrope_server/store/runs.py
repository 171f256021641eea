"""Runs: description, status, name, tags and notes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal,
    select,
    update,
)

from isentrope_server.store.database import Change
from isentrope_server.store.removal import DELETING
from isentrope_server.store.tables import deleted_runs, names_as_stored, run_digests, runs, shown_name, streams
from isentrope_wire.answers import HealthLevel, Status
from isentrope_wire.reports import RunFinished, RunStarted

_ENDS = {status for status in Status if status.is_over}
_AMONG_THE_RUNNING = 2
"""Place of a new run in the list by attention, until its digest is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    key: int
    id: str
    name: str
    """As it is shown: what people renamed it to, else what its training reports."""
    reported_name: str
    project: str
    status: Status
    step: int | None
    planned_steps: int | None
    created_at: float
    last_report_at: float | None
    last_heard_at: float
    finished_at: float | None
    error: str
    world_size: int
    probe_version: str
    capabilities: tuple[str, ...]
    config: Mapping[str, object]
    tags: tuple[str, ...]
    notes: str
    control_version: int
    """The active version according to the newest report; 0 is what the run started with."""
    last_position: int
    timeline_version: int
    incarnations: int
    attention: int
    """Place in the list by attention; 0 comes first."""
    digest: Mapping[str, Any] | None
    """The fields of a `RunDigest`; None: not computed yet."""
    basis: Mapping[str, Any] | None
    """What the digest was computed from, so that the next one takes less."""

    @property
    def ended(self) -> bool:
        return self.status.is_over


def find(connection: Connection, run_id: str, *, silent_after_seconds: float) -> Run | None:
    """Return the run with this id; None without one."""
    row = connection.execute(described().where(runs.c.id == run_id)).one_or_none()
    return None if row is None else run_of(row, silent_before(silent_after_seconds))


def newest_named(connection: Connection, name: str) -> str | None:
    """The id of the newest run with this name."""
    query = select(runs.c.id).where(shown_name == name, runs.c.state != DELETING).order_by(runs.c.key.desc()).limit(1)
    return connection.execute(query).scalar_one_or_none()


def count_by_status(connection: Connection, *, silent_after_seconds: float) -> dict[Status, int]:
    status = status_at(silent_before(silent_after_seconds))
    # By its label: to PostgreSQL two expressions with parameters differ.
    query = (
        select(status.label("status"), func.count().label("number")).where(runs.c.state != DELETING).group_by("status")
    )
    found = {row.status: row.number for row in connection.execute(query)}
    return {one: found.get(one, 0) for one in Status}


def count_records(connection: Connection) -> int:
    """How many records are stored, over all runs: positions count them."""
    return int(connection.execute(select(func.coalesce(func.sum(runs.c.last_position), 0))).scalar_one())


def key_of(connection: Connection, run_id: str) -> int | None:
    return connection.execute(select(runs.c.key).where(runs.c.id == run_id)).scalar_one_or_none()


def last_position(connection: Connection, run_key: int) -> int:
    """The position of the run's newest record; 0 before the first."""
    return int(connection.execute(select(runs.c.last_position).where(runs.c.key == run_key)).scalar_one())


def timeline_version(connection: Connection, run_key: int) -> int:
    """Number that rises when other reports may be shown for some steps."""
    return int(connection.execute(select(runs.c.timeline_version).where(runs.c.key == run_key)).scalar_one())


def raise_timeline_version(connection: Connection, run_key: int) -> None:
    """Note that other reports may be shown for some steps from now on."""
    connection.execute(update(runs).where(runs.c.key == run_key).values(timeline_version=runs.c.timeline_version + 1))


def was_deleted(connection: Connection, run_id: str) -> bool:
    return connection.execute(select(deleted_runs.c.id).where(deleted_runs.c.id == run_id)).first() is not None


def create(connection: Connection, started: RunStarted, now: float) -> int:
    """Insert a run as its first rank describes it; returns its key."""
    result = connection.execute(
        insert(runs)
        .values(
            id=started.run_id,
            created_at=now,
            error="",
            tags=_stored_tags(started.tags),
            notes="",
            control_version=0,
            last_position=0,
            timeline_version=0,
            **_described_by(started, now),
        )
        .returning(runs.c.key)
    )
    run_key = int(result.scalar_one())
    connection.execute(
        insert(run_digests).values(
            run_key=run_key,
            attention=_AMONG_THE_RUNNING,
            level=HealthLevel.NO_DATA,
            status="",
            position=0,
            computed_at=0.0,
        )
    )
    return run_key


def reopen(connection: Connection, run_key: int, started: RunStarted, now: float) -> None:
    """Replace the description by that of a newer incarnation. Name, tags and notes of people stay."""
    connection.execute(
        update(runs).where(runs.c.key == run_key).values(finished_at=None, error="", **_described_by(started, now))
    )


def heard(connection: Connection, run_key: int, now: float) -> None:
    connection.execute(update(runs).where(runs.c.key == run_key).values(last_heard_at=now))


def heard_at_least(connection: Connection, run_key: int, at: float) -> None:
    """Note that the run's shipper was connected at this time, unless a later time is known."""
    connection.execute(update(runs).where(runs.c.key == run_key, runs.c.last_heard_at < at).values(last_heard_at=at))


def advanced(run_key: int, *, last_position: int, now: float, newest: tuple[int, int] | None) -> Change:
    """The update of a run after a push.

    Args:
        last_position: of its newest record.
        newest: (step, control_version) of its current stream's newest report; None leaves them.
    """
    values: dict[str, object] = {"of_run": run_key, "new_last_position": last_position, "heard_at": now}
    if newest is None:
        return Change(_ADVANCED, values)
    return Change(_ADVANCED_AND_SPOKEN_FOR, {**values, "new_step": newest[0], "active_version": newest[1]})


def finish(connection: Connection, run_key: int, finished: RunFinished) -> None:
    connection.execute(
        update(runs)
        .where(runs.c.key == run_key)
        .values(
            state=finished.status if finished.status in _ENDS else Status.FINISHED,
            finished_at=finished.finished_at,
            error=finished.error,
        )
    )


def edit(
    connection: Connection, run_key: int, *, name: str | None, tags: Sequence[str] | None, notes: str | None
) -> None:
    """Change what people wrote; None leaves a field as it is."""
    values: dict[str, object] = {}
    if name is not None:
        values["given_name"] = name
    if tags is not None:
        values["tags"] = _stored_tags(tags)
    if notes is not None:
        values["notes"] = notes
    if values:
        connection.execute(update(runs).where(runs.c.key == run_key).values(**values))


def _stored_tags(tags: Sequence[str]) -> list[str]:
    """Without repetitions, as text columns return them: PostgreSQL reads no NUL out of JSON."""
    return list(dict.fromkeys(names_as_stored(tags)))


_ADVANCED = (
    update(runs)
    .where(runs.c.key == bindparam("of_run"))
    .values(
        last_position=bindparam("new_last_position"),
        last_heard_at=bindparam("heard_at"),
        last_report_at=bindparam("heard_at"),
    )
)
_ADVANCED_AND_SPOKEN_FOR = _ADVANCED.values(step=bindparam("new_step"), control_version=bindparam("active_version"))


def _described_by(started: RunStarted, now: float) -> dict[str, object]:
    return {
        "name": started.name,
        "project": started.project,
        "state": Status.RUNNING,
        "planned_steps": started.planned_steps,
        "last_heard_at": now,
        "world_size": started.world_size,
        "probe_version": started.probe_version,
        "capabilities": list(started.capabilities),
        "config": dict(started.config),
    }


def described() -> Select[*tuple[Any, ...]]:
    """Every column that `run_of` needs, of all runs that are not deleted."""
    incarnations = (
        select(func.count(streams.c.incarnation.distinct())).where(streams.c.run_key == runs.c.key).scalar_subquery()
    )
    return (
        select(
            runs, incarnations.label("incarnations"), run_digests.c.attention, run_digests.c.digest, run_digests.c.basis
        )
        .join(run_digests, run_digests.c.run_key == runs.c.key)
        .where(runs.c.state != DELETING)
    )


def silent_before(silent_after_seconds: float) -> float:
    """A running run that was last heard before this time is silent; in seconds since the epoch."""
    return time.time() - silent_after_seconds


def status_at(silent_before: float) -> ColumnElement[str]:
    """A run's status, in SQL."""
    is_silent = and_(runs.c.state == Status.RUNNING, runs.c.last_heard_at < silent_before)
    return case((is_silent, literal(str(Status.SILENT))), else_=runs.c.state)


def run_of(row: Row[*tuple[Any, ...]], silent_before: float) -> Run:
    values = dict(row._mapping)
    state = Status(values.pop("state"))
    silent = state is Status.RUNNING and values["last_heard_at"] < silent_before
    values["status"] = Status.SILENT if silent else state
    values["reported_name"], given = values["name"], values.pop("given_name")
    values["name"] = values["name"] if given is None else given
    for name in ("capabilities", "tags"):
        values[name] = tuple(values[name])
    return Run(**values)
