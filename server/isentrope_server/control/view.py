"""A control version as users read it, and where a run stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from isentrope_server.control.beginning import as_begun
from isentrope_server.store import controls
from isentrope_server.store.controls import ControlItem, RankOutcome, State
from isentrope_server.store.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlStanding:
    """The newest version of a run's control, and the one its newest report was made under."""

    newest: ControlItem
    in_force: ControlItem | None
    """None: the run reports a version that this server never gave out, or another document under its number."""
    outcomes: Sequence[RankOutcome]
    """What each rank made of the newest version."""


def standing(connection: Connection, run: Run) -> ControlStanding:
    newest = controls.newest(connection, run.key)
    assert newest is not None, "the first version is written with the run"
    in_force = _in_force(connection, run)
    nothing_pushed = in_force is not None and in_force.version == newest.version == 0
    return ControlStanding(
        # Nobody asks for a version 0; each life of the run brings its own.
        newest=in_force if in_force is not None and nothing_pushed else newest,
        in_force=in_force,
        outcomes=controls.outcomes(connection, run.key, newest.version),
    )


def _in_force(connection: Connection, run: Run) -> ControlItem | None:
    version = run.control_version
    item = as_begun(connection, run, version, controls.find(connection, run.key, version))
    # What no probe has seen, or what it refused, is not what it reports under this number.
    return None if item is None or item.state in (State.PENDING, State.REJECTED) else item
