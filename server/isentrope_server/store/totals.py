"""How much there is of everything, for the server's figures."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from isentrope_server.store import quarantine, runs
from isentrope_server.store.controls import State
from isentrope_server.store.runs import Status
from isentrope_server.store.tables import controls, gaps, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Over all runs."""

    runs: dict[Status, int]
    records: int
    quarantined: int
    gaps: int
    records_in_gaps: int
    """Records the shippers said are lost."""
    controls: dict[State, int]
    tokens_in_force: int


def totals(connection: Connection, *, silent_after_seconds: float) -> Totals:
    found_gaps, lost = connection.execute(
        select(func.count(), func.coalesce(func.sum(gaps.c.last_seq - gaps.c.first_seq + 1), 0)).select_from(gaps)
    ).one()
    by_state = dict.fromkeys(State, 0)
    for state, count in connection.execute(select(controls.c.state, func.count()).group_by(controls.c.state)):
        by_state[State(state)] = count
    return Totals(
        runs=runs.count_by_status(connection, silent_after_seconds=silent_after_seconds),
        records=runs.count_records(connection),
        quarantined=quarantine.count(connection),
        gaps=found_gaps,
        records_in_gaps=int(lost),
        controls=by_state,
        tokens_in_force=connection.execute(
            select(func.count()).select_from(tokens).where(tokens.c.revoked_at.is_(None))
        ).scalar_one(),
    )
