"""One version's state changes, each with its audit entry and its announcement.

A version that nobody pushed: each life of a run brings its own version 0, and they may differ.

A control version as users read it, and where a run stands.

What a probe that asks now is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from isentrope_server.store import access, controls, streams
from isentrope_server.store.controls import ControlItem, RankOutcome
from isentrope_server.store.reports import steps
from isentrope_server.store.runs import Run
from isentrope_server.store.streams import InitialControl
from isentrope_server.store.writer import ControlChanged, Transaction
from isentrope_wire.control import Control
from isentrope_wire.control_answers import State
from isentrope_wire.reports import ControlSnapshot

UNANSWERED = "unanswered"
"""Code of an EXPIRED the server concluded from silence: a guess, that yields to a probe's later word."""
RUN_ENDED = "run_ended"
"""Code of an EXPIRED: the run said goodbye without a word of it. A guess too: an older incarnation's may come late."""
RANKS_SILENT = "ranks_silent"
"""Code of a PARTIAL: no rank said it did not apply it, but some had said nothing when the grace was over. A guess too."""


def move_to(
    transaction: Transaction,
    run_id: str,
    item: ControlItem,
    state: State,
    *,
    now: float,
    actor: str,
    token_id: str | None = None,
    code: str = "",
    message: str = "",
    applied_step: int | None = None,
    applied_at: float | None = None,
) -> ControlItem:
    """Put a version into another state; returns it as it is then."""
    is_final = state not in controls.OPEN_STATES
    moved = replace(
        item,
        state=state,
        code=code,
        message=message,
        applied_step=applied_step,
        applied_at=applied_at,
        ended_at=now if is_final else None,
    )
    controls.change(
        transaction.connection,
        item,
        state=state,
        code=code,
        message=message,
        applied_step=applied_step,
        applied_at=applied_at,
        ended_at=moved.ended_at,
    )
    access.record_audit(
        transaction.connection,
        at=now,
        actor=actor,
        token_id=token_id,
        action=f"control.{state.lower()}",
        subject=f"runs/{run_id}/control/{item.version}",
        change={"old": item.state, "new": state, "code": code, "message": message, "step": applied_step},
    )
    transaction.announce(ControlChanged(run_id=run_id, version=item.version))
    return moved


def as_begun(connection: Connection, run: Run, version: int, recorded: ControlItem | None) -> ControlItem | None:
    """A version as the newest life of the run that began under it describes it.

    A life that goes on from a checkpoint goes on under that one's control, whatever it announced. Its reports tell
    method and scope, so where lives differ the newest description counts that agrees with them.

    Args:
        recorded: the version as this server has it; the answer where no life says anything else.
    """
    lives = [life for life in streams.initial_controls(connection, run.key) if life.version == version]
    if not lives:
        return recorded
    told = [_item(run.key, life) for life in lives] + ([] if recorded is None else [recorded])
    chosen = told[0]
    if any(item.document != chosen.document for item in told):
        labels = _newest_labels(connection, run)
        chosen = next((item for item in told if _agrees(item.document, labels)), chosen)
    return recorded if recorded is not None and recorded.document == chosen.document else chosen


def _newest_labels(connection: Connection, run: Run) -> Mapping[str, str]:
    report = None if run.step is None else steps.find(connection, run.key, run.step)
    return {} if report is None else report.labels


def _agrees(document: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    return all(labels.get(f"control/{name}", document[name]) == document[name] for name in ("method", "scope"))


def _item(run_key: int, life: InitialControl) -> ControlItem:
    return ControlItem(
        run_key=run_key,
        version=life.version,
        document=life.document,
        author=life.author or "run",
        requested_at=life.began_at,
        requested_step=None,
        expires_at=None,
        state=State.APPLIED,
        applied_at=life.began_at,
        ended_at=life.began_at,
        message="What the run started with.",
    )


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


def standing_snapshot(transaction: Transaction, run_id: str, run_key: int, now: float) -> ControlSnapshot | None:
    """The newest pushed version that still stands, marked DELIVERED *before* it is sent: a version that is still
    PENDING was certainly never seen by a probe. None: nothing pushed stands."""
    item = controls.desired(transaction.connection, run_key)
    if item is not None and item.state is State.PENDING:
        if item.expires_at is not None and item.expires_at <= now:
            # Too late to fetch; the sweep says so in a moment.
            return None
        item = move_to(transaction, run_id, item, State.DELIVERED, now=now, actor="server")
    return None if item is None else _snapshot(item)


def _snapshot(item: ControlItem) -> ControlSnapshot:
    return ControlSnapshot(
        version=item.version,
        control=Control.from_document(item.document),
        author=item.author,
        requested_at=item.requested_at,
        # The time to live bounds when a change may begin. One that is in force stays so for the next incarnation too.
        expires_at=item.expires_at if item.state is State.DELIVERED else None,
    )
