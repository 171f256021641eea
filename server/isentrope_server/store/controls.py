"""Controls: every requested version, and each rank's outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, func, insert, select, update

from isentrope_server.store.database import build_answer
from isentrope_server.store.tables import control_outcomes, controls, runs, streams
from isentrope_wire.control_answers import RankOutcome, State
from isentrope_wire.reports import ControlOutcome, OutcomeState

_LONGEST_MESSAGE = 10_000
"""Characters; no probe writes more."""


OPEN_STATES = (State.PENDING, State.DELIVERED)
SENT_STATES = (State.PENDING, State.DELIVERED, State.APPLIED, State.PARTIAL)
"""States of versions that are sent to a probe on Hello and Watch."""


NAMED_BY_REPORT = "named_by_report"
"""Code of an APPLIED concluded from a report made under the version, without an outcome of the
rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlItem:
    """One version of a run's control."""

    run_key: int
    version: int
    document: Mapping[str, object]
    author: str
    requested_at: float
    requested_step: int | None
    expires_at: float | None
    state: State
    applied_step: int | None = None
    applied_at: float | None = None
    ended_at: float | None = None
    code: str = ""
    message: str = ""
    idempotency_key: str | None = None
    predicted: Mapping[str, Any] | None = None
    """The fields of a `PredictedEffect`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOutcome(RankOutcome):
    """One rank's outcome of a version, with where it came from."""

    state: OutcomeState
    stream_key: int
    received_at: float


def begun_with(
    *, run_key: int, version: int, document: Mapping[str, object], author: str, began_at: float
) -> ControlItem:
    """A version that an incarnation began under at `began_at`, seconds since the epoch by the
    trainer's clock."""
    return ControlItem(
        run_key=run_key,
        version=version,
        document=document,
        author=author or "run",
        requested_at=began_at,
        requested_step=None,
        expires_at=None,
        state=State.APPLIED,
        applied_at=began_at,
        ended_at=began_at,
        message="The control the run started with.",
    )


def add(connection: Connection, item: ControlItem) -> None:
    values = {column.name: getattr(item, column.name) for column in controls.columns}
    connection.execute(insert(controls).values(values))


def find(connection: Connection, run_key: int, version: int) -> ControlItem | None:
    return newest(connection, run_key, controls.c.version == version)


def newest(connection: Connection, run_key: int, *where: ColumnElement[bool]) -> ControlItem | None:
    """The highest version, in any state, that fulfils the conditions."""
    query = (
        select(controls)
        .where(controls.c.run_key == run_key, *where)
        .order_by(controls.c.version.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return _item(row)


def desired(connection: Connection, run_key: int) -> ControlItem | None:
    """The newest requested version that has not ended unapplied; None without one."""
    return newest(connection, run_key, controls.c.version >= 1, controls.c.state.in_(SENT_STATES))


def page(
    connection: Connection, run_key: int, *, before_version: int | None, limit: int
) -> list[ControlItem]:
    query = (
        select(controls)
        .where(controls.c.run_key == run_key)
        .order_by(controls.c.version.desc())
        .limit(limit)
    )
    if before_version is not None:
        query = query.where(controls.c.version < before_version)
    return [_item(row) for row in connection.execute(query)]


def applied_steps(connection: Connection, run_key: int) -> list[tuple[int, int]]:
    """Version and first step of every version that was applied."""
    table = controls.c
    query = select(table.version, table.applied_step).where(
        table.run_key == run_key, table.applied_step.is_not(None)
    )
    return [(row.version, row.applied_step) for row in connection.execute(query)]


def newest_applied(
    connection: Connection, run_key: int, *, below: int | None = None
) -> ControlItem | None:
    """The highest version that a step was made under, below a version where one is given; None
    without one."""
    where: list[ColumnElement[bool]] = [controls.c.applied_step.is_not(None)]
    if below is not None:
        where.append(controls.c.version < below)
    return newest(connection, run_key, *where)


def find_by_idempotency_key(connection: Connection, run_key: int, key: str) -> ControlItem | None:
    return newest(connection, run_key, controls.c.idempotency_key == key)


def open_before(connection: Connection, run_key: int, version: int) -> list[ControlItem]:
    """Open versions below `version`, oldest first."""
    rows = connection.execute(
        select(controls)
        .where(
            controls.c.run_key == run_key,
            controls.c.version < version,
            controls.c.state.in_(OPEN_STATES),
        )
        .order_by(controls.c.version)
    )
    return [_item(row) for row in rows]


def all_open(connection: Connection) -> list[tuple[str, ControlItem]]:
    """Every open version with the id of its run."""
    rows = connection.execute(
        select(controls, runs.c.id)
        .join(runs, runs.c.key == controls.c.run_key)
        .where(controls.c.state.in_(OPEN_STATES))
        .order_by(controls.c.run_key, controls.c.version)
    )
    return [(row.id, _item(row)) for row in rows]


def change(connection: Connection, item: ControlItem, **values: object) -> None:
    connection.execute(
        update(controls)
        .where(controls.c.run_key == item.run_key, controls.c.version == item.version)
        .values(**values)
    )


def add_outcome(
    connection: Connection, run_key: int, stream_key: int, outcome: ControlOutcome, now: float
) -> bool:
    """Record a rank's outcome of a version. The first outcome counts: False when the rank has one
    already. One concluded from its reports is replaced."""
    of_rank = and_(
        control_outcomes.c.run_key == run_key,
        control_outcomes.c.version == outcome.version,
        control_outcomes.c.stream_key == stream_key,
    )
    known = connection.execute(select(control_outcomes.c.code).where(of_rank)).scalar()
    if known is not None and (known != NAMED_BY_REPORT or outcome.code == NAMED_BY_REPORT):
        return False
    values = {
        "state": outcome.state,
        "step": outcome.step,
        "at": outcome.at,
        "received_at": now,
        "code": outcome.code[:64],
        "message": outcome.message[:_LONGEST_MESSAGE],
    }
    if known is None:
        key = {"run_key": run_key, "version": outcome.version, "stream_key": stream_key}
        connection.execute(insert(control_outcomes).values(key | values))
    else:
        connection.execute(update(control_outcomes).where(of_rank).values(values))
    return True


def outcomes(connection: Connection, run_key: int, version: int) -> list[StoredOutcome]:
    """Each rank's outcome of a version, in order of arrival."""
    rows = connection.execute(
        select(control_outcomes, streams.c.incarnation, streams.c.rank)
        .join(streams, streams.c.key == control_outcomes.c.stream_key)
        .where(control_outcomes.c.run_key == run_key, control_outcomes.c.version == version)
        .order_by(control_outcomes.c.received_at, streams.c.rank)
    )
    return [build_answer(StoredOutcome, row) for row in rows]


def count_by_state(connection: Connection) -> dict[State, int]:
    found = connection.execute(select(controls.c.state, func.count()).group_by(controls.c.state))
    return dict.fromkeys(State, 0) | {State(state): count for state, count in found}


def _item(row: Row[*tuple[Any, ...]]) -> ControlItem:
    values = {column.name: getattr(row, column.name) for column in controls.columns}
    return ControlItem(**(values | {"state": State(values["state"])}))
