"""Runs: description, status, name, tags and notes; lists of runs with filters, order and counts;
the digest of each run.

Digests are computed in the background (`isentrope_server.digests`), so that a page of a list is one
query."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    Row,
    Select,
    Text,
    Update,
    and_,
    case,
    cast,
    desc,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    true,
    update,
)

from isentrope_server.store.database import SQLITE
from isentrope_server.store.removal import DELETING
from isentrope_server.store.tables import (
    deleted_runs,
    run_digests,
    runs,
    shown_name,
    streams,
    strip_nul,
)
from isentrope_wire.answers import HealthLevel, NameCount, RunCounts, RunDigest, RunSummary, Status
from isentrope_wire.numbers import read
from isentrope_wire.reports import DEFAULT_NAME, DEFAULT_PROJECT, RunFinished, RunStarted

_log = logging.getLogger(__name__)

_ENDS = {status for status in Status if status.is_over}
_PLACES = {HealthLevel.ACT: 0, HealthLevel.WATCH: 3}
_FAILED, _SILENT, _OTHER_LEVELS, _ENDED = 1, 2, 4, 5
"""Places in the list by attention; a new run has that of other levels until its digest is
computed."""
_FAILED_SECONDS = 24 * 3600.0
"""Seconds for which a failed run needs attention; then it counts as ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(RunSummary):
    """A run in a list, and what else is stored of it. Its name is what people renamed it to, else
    what its training reports."""

    key: int
    last_heard_at: float
    finished_at: float | None
    error: str
    world_size: int
    probe_version: str
    capabilities: list[str]
    control_version: int
    """The active version according to the newest report; 0 is what the run started with."""
    last_position: int
    timeline_version: int
    incarnations: int
    attention: int
    """Place in the list by attention; 0 comes first."""
    basis: Mapping[str, Any] | None
    """What the digest was computed from, so that the next one takes less."""

    @property
    def ended(self) -> bool:
        return self.status.is_over


def find(connection: Connection, run_id: str, *, silent_after_seconds: float) -> Run | None:
    row = connection.execute(_described().where(runs.c.id == run_id)).one_or_none()
    if row is None:
        return None
    return _run_of(row, silent_after_seconds)


def newest_named(connection: Connection, name: str) -> str | None:
    """The id of the newest run with this name."""
    query = (
        select(runs.c.id)
        .where(shown_name == name, runs.c.state != DELETING)
        .order_by(runs.c.key.desc())
        .limit(1)
    )
    return connection.execute(query).scalar_one_or_none()


def count_by_status(connection: Connection, *, silent_after_seconds: float) -> dict[Status, int]:
    status = _status_at(connection, silent_after_seconds)
    # By its label: to PostgreSQL two expressions with parameters differ.
    query = (
        select(status.label("counted"), func.count().label("number"))
        .join_from(runs, run_digests, run_digests.c.run_key == runs.c.key)
        .where(runs.c.state != DELETING)
        .group_by("counted")
    )
    found = {row.counted: row.number for row in connection.execute(query)}
    return {one: found.get(one, 0) for one in Status}


def key_of(connection: Connection, run_id: str) -> int | None:
    return connection.execute(select(runs.c.key).where(runs.c.id == run_id)).scalar_one_or_none()


def last_position(connection: Connection, run_key: int) -> int:
    """The position of the run's newest record; 0 before the first."""
    return int(
        connection.execute(select(runs.c.last_position).where(runs.c.key == run_key)).scalar_one()
    )


def timeline_version(connection: Connection, run_key: int) -> int:
    """Number that rises when other reports may be shown for some steps."""
    return int(
        connection.execute(
            select(runs.c.timeline_version).where(runs.c.key == run_key)
        ).scalar_one()
    )


def raise_timeline_version(connection: Connection, run_key: int) -> None:
    """Note that other reports may be shown for some steps from now on."""
    connection.execute(
        update(runs)
        .where(runs.c.key == run_key)
        .values(timeline_version=runs.c.timeline_version + 1)
    )


def was_deleted(connection: Connection, run_id: str) -> bool:
    return (
        connection.execute(select(deleted_runs.c.id).where(deleted_runs.c.id == run_id)).first()
        is not None
    )


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
            attention=_OTHER_LEVELS,
            level=HealthLevel.NO_DATA,
            status="",
            position=0,
            computed_at=0.0,
        )
    )
    return run_key


def what_changes(
    connection: Connection, run_key: int, started: RunStarted
) -> dict[str, dict[str, object]]:
    """What tells that a newer incarnation may be another experiment, as `old` and `new`: the run
    had finished, or had another name, or other values in its config. Empty where nothing does."""
    row = connection.execute(
        select(runs.c.name, runs.c.config, runs.c.state).where(runs.c.key == run_key)
    ).one()
    described = _described_by(started, 0.0)
    old: dict[str, object] = {}
    new: dict[str, object] = {}
    if row.state == Status.FINISHED:
        old["status"], new["status"] = str(row.state), str(described["state"])
    if described["name"] not in (row.name, DEFAULT_NAME):
        old["name"], new["name"] = row.name, described["name"]
    config = described["config"]
    if isinstance(config, dict) and config:
        names = {
            name for name in {*row.config, *config} if row.config.get(name) != config.get(name)
        }
        old |= {f"config.{name}": row.config.get(name) for name in names}
        new |= {f"config.{name}": config.get(name) for name in names}
    if old:
        return {"old": old, "new": new}
    return {}


def reopen(connection: Connection, run_key: int, started: RunStarted, now: float) -> None:
    """Replace the description by that of a newer incarnation. Name, tags and notes of people
    stay, and what the newer one was not given: a default replaces no stored value."""
    described = _described_by(started, now)
    defaults = {"name": DEFAULT_NAME, "project": DEFAULT_PROJECT, "config": {}}
    given = {
        column: value
        for column, value in described.items()
        if column not in defaults or value != defaults[column]
    }
    connection.execute(
        update(runs).where(runs.c.key == run_key).values(finished_at=None, error="", **given)
    )


def heard(connection: Connection, run_key: int, at: float) -> None:
    """Note that the run's shipper was connected at this time, unless a later time is known."""
    connection.execute(
        update(runs)
        .where(runs.c.key == run_key, runs.c.last_heard_at < at)
        .values(last_heard_at=at)
    )


def advanced(
    run_key: int, *, last_position: int, now: float, newest: tuple[int, int] | None
) -> Update:
    """The update of a run after a push. `newest` is (step, control_version) of its current stream's
    newest report; None leaves them."""
    values: dict[str, object] = {
        "last_position": last_position,
        "last_heard_at": now,
        "last_report_at": now,
    }
    if newest is not None:
        values |= {"step": newest[0], "control_version": newest[1]}
    return update(runs).where(runs.c.key == run_key).values(values)


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
    connection: Connection,
    run_key: int,
    *,
    name: str | None,
    tags: Sequence[str] | None,
    notes: str | None,
) -> None:
    """Change what people wrote; None leaves a field as it is."""
    fields = {
        "given_name": name,
        "tags": None if tags is None else _stored_tags(tags),
        "notes": notes,
    }
    values = {column: value for column, value in fields.items() if value is not None}
    if values:
        connection.execute(update(runs).where(runs.c.key == run_key).values(**values))


def _stored_tags(tags: Sequence[str]) -> list[str]:
    """Without repetitions, as text columns return them: PostgreSQL reads no NUL out of JSON."""
    return list(dict.fromkeys(map(strip_nul, tags)))


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


def _described() -> Select[*tuple[Any, ...]]:
    incarnations = (
        select(func.count(streams.c.incarnation.distinct()))
        .where(streams.c.run_key == runs.c.key)
        .scalar_subquery()
    )
    return (
        select(
            runs,
            incarnations.label("incarnations"),
            run_digests.c.attention,
            run_digests.c.digest,
            run_digests.c.basis,
        )
        .join(run_digests, run_digests.c.run_key == runs.c.key)
        .where(runs.c.state != DELETING)
    )


_SILENT_STEPS = 5.0
"""A run is silent no sooner than after so many of its own steps."""


def _status_at(connection: Connection, silent_after_seconds: float) -> ColumnElement[str]:
    """The status now, over runs and their digests. A running run that was last heard longer ago
    than that, and longer than five of its steps, is silent."""
    now = time.time()
    document, name = run_digests.c.digest, "seconds_per_step"
    step: ColumnElement[Any]
    if connection.dialect.name == SQLITE:
        step = func.json_extract(document, f"$.{name}", type_=Double)
    else:
        step = cast(func.json_extract_path_text(document, name), Double)
    is_silent = and_(
        runs.c.state == Status.RUNNING,
        runs.c.last_heard_at < now - silent_after_seconds,
        runs.c.last_heard_at < now - _SILENT_STEPS * func.coalesce(step, 0.0),
    )
    return case((is_silent, literal(str(Status.SILENT))), else_=runs.c.state)


def _run_of(
    row: Row[*tuple[Any, ...]], silent_after_seconds: float, metrics: Sequence[str] = ()
) -> Run:
    """The run; of the newest values those of these metrics."""
    values = dict(row._mapping)
    digest = _digest_of(values, metrics)
    state = Status(values.pop("state"))
    of_steps = _SILENT_STEPS * ((digest and digest.seconds_per_step) or 0.0)
    heard_ago = time.time() - values["last_heard_at"]
    silent = state is Status.RUNNING and heard_ago > max(silent_after_seconds, of_steps)
    values["status"] = Status.SILENT if silent else state
    given = values.pop("given_name")
    if given is not None:
        values["name"] = given
    values["digest"] = digest
    return Run(**values)


def seconds_per_step(connection: Connection, run_key: int) -> float | None:
    """Seconds a step, from the run's digest; None: not known."""
    query = select(run_digests.c.digest).where(run_digests.c.run_key == run_key)
    document = connection.execute(query).scalar_one_or_none()
    if not isinstance(document, dict):
        return None
    return document.get("seconds_per_step")


def _digest_of(run: Mapping[str, Any], metrics: Sequence[str]) -> RunDigest | None:
    """A run's stored digest with the newest values of these metrics; None where it can't be read,
    so that lists show the run without it until the next one is computed."""
    document = run["digest"]
    if document is None:
        return None
    try:
        newest = document.get("metrics", {})
        chosen = {name: newest[name] for name in metrics if name in newest}
        return read(RunDigest, document | {"metrics": chosen})
    except (AttributeError, TypeError, ValueError) as error:
        _log.warning("The digest of run %s can't be read: %s", run["id"], error)
        return None


DIGESTS = ":digests"
"""In place of a run's id for the writer: one server at a time writes digests, and need not wait for
reports. No run's id may contain a colon."""
_NAMES_COUNTED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs a list shows: those that have one of the values of each field. Empty: any."""

    projects: Sequence[str] = ()
    statuses: Sequence[Status] = ()
    tags: Sequence[str] = ()
    levels: Sequence[HealthLevel] = ()
    """Of running ones; others have none of them."""
    text: str | None = None
    """Part of id, name, project, a tag or the error, ignoring case."""


def page(
    connection: Connection,
    wanted: RunFilter,
    *,
    after: Sequence[int] | None,
    by_attention: bool,
    limit: int,
    silent_after_seconds: float,
    sort: str | None = None,
    metrics: Sequence[str] = (),
) -> list[Run]:
    """Runs, newest first, or those that need attention first, after the last one of the page
    before: its key, or (attention, key). With `sort`, one of SORTED_BY or one with `-` before it,
        by that column instead, after so many."""
    query = _matching(connection, _described(), wanted, silent_after_seconds).limit(limit)
    attention, key = run_digests.c.attention, run_digests.c.run_key
    if sort:
        status = _status_at(connection, silent_after_seconds)
        for column in _sort_keys(connection, sort.removeprefix("-"), status):
            order = column.desc() if sort.startswith("-") else column.asc()
            query = query.order_by(order.nulls_last())
        query = query.order_by(key.desc()).offset(after[0] if after else 0)
    elif by_attention:
        query = query.order_by(attention, key.desc())
        if after is not None:
            query = query.where(
                or_(attention > after[0], and_(attention == after[0], key < after[1]))
            )
    else:
        query = query.order_by(runs.c.key.desc())
        if after is not None:
            query = query.where(runs.c.key < after[0])
    return [_run_of(row, silent_after_seconds, metrics) for row in connection.execute(query)]


_OF_DIGEST = ("share_lost", "steps_to_three_quarters_lost", "entropy", "reward", "seconds_per_step")
_COLUMNS: Mapping[str, ColumnElement[Any]] = {
    "name": func.lower(shown_name),
    "attention": run_digests.c.attention,
    **{name: runs.c[name] for name in ("project", "step", "created_at", "last_report_at")},
}
SORTED_BY = ("status", *_COLUMNS, *_OF_DIGEST)
NAMED = ("config", "metric")
"""What a list is sorted by with a name behind a dot: `config.lr`."""
_NUMBER = r"^-?[0-9]+\.?[0-9]*([eE][-+]?[0-9]+)?$"
_MOST_PARTS = 6


def _sort_keys(
    connection: Connection, column: str, status: ColumnElement[str]
) -> tuple[ColumnElement[Any], ...]:
    """What a list is sorted by, NULL where a run has none: of a column in JSON the number, also one
    that came as text, then the text."""
    if column in _COLUMNS or column == "status":
        return (_COLUMNS.get(column, status),)
    kind, _, name = column.partition(".")
    if column in _OF_DIGEST:
        document, places = run_digests.c.digest, [[column]]
    elif kind == "metric":
        document, places = run_digests.c.digest, [["metrics", name]]
    else:
        document, places = runs.c.config, _places(name)
    if connection.dialect.name == SQLITE:
        value = _first(_json_value(document, place) for place in places)
        text = cast(value, Text)
        looks_so = and_(text.op("GLOB")("*[0-9]*"), text.op("NOT GLOB")("*[^0-9.eE+-]*"))
        is_number = or_(func.typeof(value).in_(("integer", "real")), looks_so)
        return case((is_number, cast(value, Double))), value
    value = _first(func.json_extract_path_text(document, *place) for place in places)
    return case((value.op("~")(_NUMBER), cast(value, Double))), value


def _first(values: Iterable[ColumnElement[Any]]) -> ColumnElement[Any]:
    """The first that is not NULL."""
    some = list(values)
    if len(some) == 1:
        return some[0]
    return func.coalesce(*some)


def _places(name: str) -> list[list[str]]:
    """Where a parameter may stand: a dot is part of a key, or before a key within it. The key as it
    stands comes first; of names with many dots the two plain readings alone."""
    parts = name.split(".")
    if len(parts) > _MOST_PARTS:
        return [[name], parts]
    places = [[parts[0]]]
    for part in parts[1:]:
        places = [
            grown
            for place in places
            for grown in ([*place[:-1], f"{place[-1]}.{part}"], [*place, part])
        ]
    return places


def _json_value(document: ColumnElement[Any], place: Sequence[str]) -> ColumnElement[Any]:
    """A value in a JSON document of SQLite. Its paths know no quotes and no escapes: keys with
    these are compared one by one."""
    if all(part.isascii() and not set(part) & set('"\\') for part in place):
        return func.json_extract(document, "$" + "".join(f'."{part}"' for part in place))
    value = document
    for part in place:
        # What is no JSON, as a text is none, has no keys.
        value = case((func.json_valid(value), value))
        item = func.json_each(value).table_valued("key", "value")
        value = select(item.c.value).where(item.c.key == part).limit(1).scalar_subquery()
    return value


def counts(connection: Connection, wanted: RunFilter, *, silent_after_seconds: float) -> RunCounts:
    """Count the runs that pass a filter, by status, level, project and tag; each field's own filter
    is ignored."""
    status = _status_at(connection, silent_after_seconds)
    listed = select().select_from(runs).join(run_digests, run_digests.c.run_key == runs.c.key)
    listed = listed.where(runs.c.state != DELETING)
    tag, tags_of = _tags(connection)

    def counted(query: Select[Any], by: ColumnElement[str], wanted: RunFilter) -> dict[str, int]:
        """Runs by a field, the most frequent first."""
        # By its label: to PostgreSQL two expressions with parameters differ.
        query = query.add_columns(by.label("counted"), func.count().label("number")).group_by(
            "counted"
        )
        query = query.order_by(desc("number"), "counted").limit(_NAMES_COUNTED)
        rows = connection.execute(_matching(connection, query, wanted, silent_after_seconds))
        return {row.counted: row.number for row in rows}

    statuses = counted(listed, status, replace(wanted, statuses=()))
    levels = counted(
        listed.where(status == Status.RUNNING), run_digests.c.level, replace(wanted, levels=())
    )
    projects = counted(listed, runs.c.project, replace(wanted, projects=()))
    tags = counted(listed.join(tags_of, true()), tag, replace(wanted, tags=()))
    return RunCounts(
        total=connection.execute(
            _matching(connection, listed.add_columns(func.count()), wanted, silent_after_seconds)
        ).scalar_one(),
        statuses={one: statuses.get(one, 0) for one in Status},
        levels={one: levels.get(one, 0) for one in HealthLevel},
        projects=[NameCount(name=name, runs=number) for name, number in projects.items()],
        tags=[NameCount(name=name, runs=number) for name, number in tags.items()],
    )


def due_digests(connection: Connection, *, limit: int, silent_after_seconds: float) -> list[Run]:
    """Runs that changed since their digest was computed, the oldest digest first."""
    is_old = or_(
        run_digests.c.position != runs.c.last_position,
        run_digests.c.status != _status_at(connection, silent_after_seconds),
        and_(
            run_digests.c.attention == _FAILED,
            runs.c.finished_at < time.time() - _FAILED_SECONDS,
        ),
    )
    query = _described().where(is_old).order_by(run_digests.c.computed_at).limit(limit)
    return [_run_of(row, silent_after_seconds) for row in connection.execute(query)]


def store_digest(
    connection: Connection, run: Run, digest: RunDigest, basis: Mapping[str, Any] | None, now: float
) -> None:
    """Store a digest, and what the next one is computed from, of the run as it was when it was
    found."""
    connection.execute(
        update(run_digests)
        .where(run_digests.c.run_key == run.key)
        .values(
            attention=_place_of(run, digest.level, now),
            level=digest.level,
            status=run.status,
            position=run.last_position,
            computed_at=now,
            digest=asdict(digest),
            basis=basis,
        )
    )


def _place_of(run: Run, level: HealthLevel, now: float) -> int:
    """Its place in the list by attention."""
    is_recent = run.finished_at is not None and run.finished_at >= now - _FAILED_SECONDS
    if run.status is Status.FAILED and is_recent:
        return _FAILED
    if run.ended:
        return _ENDED
    if run.status is Status.SILENT:
        return _SILENT
    return _PLACES.get(level, _OTHER_LEVELS)


def _matching(
    connection: Connection,
    query: Select[*tuple[Any, ...]],
    wanted: RunFilter,
    silent_after_seconds: float,
) -> Select[*tuple[Any, ...]]:
    """The query with a filter's conditions; it is over runs and their digests."""
    status = _status_at(connection, silent_after_seconds)
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
        parts = [
            c.icontains(text, autoescape=True)
            for c in (runs.c.id, shown_name, runs.c.project, runs.c.error)
        ]
        parts.append(
            exists(select(1).select_from(tags_of).where(tag.icontains(text, autoescape=True)))
        )
        query = query.where(or_(*parts))
    return query


def _tags(connection: Connection) -> tuple[ColumnElement[str], Any]:
    """A run's tags as a table: its one column, and the table."""
    if connection.dialect.name == SQLITE:
        function = func.json_each
    else:
        function = func.json_array_elements_text
    table = function(runs.c.tags).table_valued("value")
    return table.c.value, table
