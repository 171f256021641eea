"""Retention: which runs a server keeps no longer."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, or_, select, true

from isentrope_server.store.removal import DELETING
from isentrope_server.store.tables import runs

GIVEN_UP_AFTER_SECONDS = 24 * 3_600.0
"""A run that neither ended nor was heard of for this long is taken for dead.

A step, an evaluation between two of them or a machine without a network may take hours; what is deleted is gone for
good, and keeping a dead run for a day costs little.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long runs are kept. None: for ever. A run that may still report is kept in any case; that its shipper is
    connected is noted as being heard of."""

    seconds: float | None = None
    """Since it was heard of last."""
    runs: int | None = None
    """So many of the newest."""

    @property
    def keeps_all(self) -> bool:
        return self.seconds is None and self.runs is None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueRun:
    """A run that is kept no longer, and by which rule."""

    key: int
    id: str
    name: str
    project: str
    rule: str


def overdue(
    connection: Connection, retention: Retention, *, now: float, run_key: int | None = None
) -> list[OverdueRun]:
    """The runs to delete, oldest first; with a key, that one at most."""
    if retention.keeps_all:
        return []
    shown = runs.c.state != DELETING
    reasons: dict[str, ColumnElement[bool]] = {}
    if retention.seconds is not None:
        reasons["age"] = runs.c.last_heard_at < now - retention.seconds
    if retention.runs is not None:
        newest = select(runs.c.key).where(shown).order_by(runs.c.key.desc()).limit(retention.runs)
        reasons["count"] = runs.c.key.not_in(newest.scalar_subquery())
    over = or_(runs.c.state != "running", runs.c.last_heard_at < now - GIVEN_UP_AFTER_SECONDS)
    asked_for = true() if run_key is None else runs.c.key == run_key
    found: dict[int, OverdueRun] = {}
    for rule, reason in reasons.items():
        query = select(runs.c.key, runs.c.id, runs.c.name, runs.c.project).where(shown, asked_for, over, reason)
        for row in connection.execute(query):
            found.setdefault(row.key, OverdueRun(**row._mapping, rule=rule))
    return [found[key] for key in sorted(found)]
