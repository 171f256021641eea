"""Lists of runs: filters, order, counts; and the digest of each run, which a list shows.

Digests are computed in the background (`isentrope_server.digests`), so that a page of a list is one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    desc,
    exists,
    func,
    or_,
    select,
    true,
    update,
)

from isentrope_server.store.database import SQLITE
from isentrope_server.store.removal import DELETING
from isentrope_server.store.runs import Run, described, run_of, silent_before, status_at
from isentrope_server.store.tables import run_digests, runs, shown_name
from isentrope_wire.answers import HealthLevel, NameCount, RunCounts, Status

WRITTEN_AS = ":digests"
"""In the place of a run's id for the writer: digests are written by one server at a time, which need not wait for reports.
No id of a run may contain a colon."""
_NAMES_COUNTED = 500
_FIRST = {HealthLevel.ACT: 0, HealthLevel.WATCH: 1}
_OTHER_LEVELS, _SILENT, _ENDED = 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs a list shows: a run must have one of the values of each field. Empty: any."""

    projects: Sequence[str] = ()
    statuses: Sequence[Status] = ()
    tags: Sequence[str] = ()
    levels: Sequence[HealthLevel] = ()
    """Levels of health, which only running runs have."""
    text: str | None = None
    """Part of id, name, project, a tag or the error, ignoring case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDigest:
    """A digest, and what it was computed from."""

    run_key: int
    status: Status
    position: int
    """Position of the newest record."""
    level: HealthLevel
    digest: dict[str, Any]
    """The fields of a `RunDigest`."""
    basis: dict[str, Any] | None


def page(
    connection: Connection,
    wanted: RunFilter,
    *,
    after: Sequence[int] | None,
    by_attention: bool,
    limit: int,
    silent_after_seconds: float,
) -> list[Run]:
    """Runs, newest first, or runs that need attention first.

    Args:
        after: key of the last run on the previous page, by attention (attention, key).
    """
    before = silent_before(silent_after_seconds)
    query = _matching(connection, described(), wanted, before).limit(limit)
    attention, key = run_digests.c.attention, run_digests.c.run_key
    if by_attention:
        query = query.order_by(attention, key.desc())
        if after is not None:
            query = query.where(or_(attention > after[0], and_(attention == after[0], key < after[1])))
    else:
        query = query.order_by(runs.c.key.desc())
        if after is not None:
            query = query.where(runs.c.key < after[0])
    return [run_of(row, before) for row in connection.execute(query)]


def count(connection: Connection, wanted: RunFilter, *, silent_after_seconds: float) -> RunCounts:
    """Count the runs that pass a filter, by status, level, project and tag; each field's own filter is ignored."""
    before = silent_before(silent_after_seconds)
    status = status_at(before)
    listed = select().select_from(runs).join(run_digests, run_digests.c.run_key == runs.c.key)
    listed = listed.where(runs.c.state != DELETING)
    tag, tags_of = _tags(connection)

    def counted(query: Select[Any], by: ColumnElement[str], wanted: RunFilter) -> dict[str, int]:
        """Runs by a field, the most frequent first."""
        # By its label: to PostgreSQL two expressions with parameters differ.
        query = query.add_columns(by.label("counted"), func.count().label("number")).group_by("counted")
        query = query.order_by(desc("number"), "counted").limit(_NAMES_COUNTED)
        rows = connection.execute(_matching(connection, query, wanted, before))
        return {row.counted: row.number for row in rows}

    statuses = counted(listed, status, replace(wanted, statuses=()))
    levels = counted(listed.where(status == Status.RUNNING), run_digests.c.level, replace(wanted, levels=()))
    projects = counted(listed, runs.c.project, replace(wanted, projects=()))
    tags = counted(listed.join(tags_of, true()), tag, replace(wanted, tags=()))
    return RunCounts(
        total=connection.execute(_matching(connection, listed.add_columns(func.count()), wanted, before)).scalar_one(),
        statuses={one: statuses.get(one, 0) for one in Status},
        levels={one: levels.get(one, 0) for one in HealthLevel},
        projects=[NameCount(name=name, runs=number) for name, number in projects.items()],
        tags=[NameCount(name=name, runs=number) for name, number in tags.items()],
    )


def due(connection: Connection, *, limit: int, silent_after_seconds: float) -> list[Run]:
    """Runs that changed since their digest was computed, the oldest digest first."""
    before = silent_before(silent_after_seconds)
    is_old = or_(run_digests.c.position != runs.c.last_position, run_digests.c.status != status_at(before))
    query = described().where(is_old).order_by(run_digests.c.computed_at).limit(limit)
    return [run_of(row, before) for row in connection.execute(query)]


def store(connection: Connection, digests: Sequence[StoredDigest], now: float) -> None:
    rows = [
        {
            "of_run": one.run_key,
            "new_attention": _attention(one.status, one.level),
            "new_level": one.level,
            "new_status": one.status,
            "new_position": one.position,
            "now": now,
            "new_digest": one.digest,
            "new_basis": one.basis,
        }
        for one in digests
    ]
    if rows:
        connection.execute(_REPLACED, rows)


_REPLACED = (
    update(run_digests)
    .where(run_digests.c.run_key == bindparam("of_run"))
    .values(
        attention=bindparam("new_attention"),
        level=bindparam("new_level"),
        status=bindparam("new_status"),
        position=bindparam("new_position"),
        computed_at=bindparam("now"),
        digest=bindparam("new_digest"),
        basis=bindparam("new_basis"),
    )
)


def _attention(status: Status, level: HealthLevel) -> int:
    if status.is_over:
        return _ENDED
    return _SILENT if status is Status.SILENT else _FIRST.get(level, _OTHER_LEVELS)


def _matching(
    connection: Connection, query: Select[*tuple[Any, ...]], wanted: RunFilter, silent_before: float
) -> Select[*tuple[Any, ...]]:
    """The query with a filter's conditions; it is over runs and their digests."""
    status = status_at(silent_before)
    if wanted.projects:
        query = query.where(runs.c.project.in_(wanted.projects))
    if wanted.statuses:
        query = query.where(status.in_(wanted.statuses))
    if wanted.levels:
        query = query.where(status == Status.RUNNING, run_digests.c.level.in_(wanted.levels))
    if wanted.tags:
        tag, tags_of = _tags(connection)
        query = query.where(exists(select(1).select_from(tags_of).where(tag.in_(wanted.tags))))
    if wanted.text:
        text = wanted.text
        tag, tags_of = _tags(connection)
        parts = [c.icontains(text, autoescape=True) for c in (runs.c.id, shown_name, runs.c.project, runs.c.error)]
        parts.append(exists(select(1).select_from(tags_of).where(tag.icontains(text, autoescape=True))))
        query = query.where(or_(*parts))
    return query


def _tags(connection: Connection) -> tuple[ColumnElement[str], Any]:
    """A run's tags as a table: its one column, and the table."""
    function = func.json_each if connection.dialect.name == SQLITE else func.json_array_elements_text
    table = function(runs.c.tags).table_valued("value")
    return table.c.value, table
