"""The state of a run's control: changes of state, the control a run started with, and the snapshot sent to probes.

Every change of state has an audit entry and an event. Version 0 is not requested by anybody: each incarnation of a run
announces the control it starts with, and these may differ.
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
"""Code of an EXPIRED that the server concluded because no outcome came; a later outcome replaces it."""
RUN_ENDED = "run_ended"
"""Code of an EXPIRED: the run finished without an outcome. Replaced by a late outcome of an older incarnation."""
RANKS_SILENT = "ranks_silent"
"""Code of a PARTIAL: no rank failed to apply it, but some reported no outcome in time. Replaced by later outcomes."""


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
    """Put a version into another state.

    Args:
        now: the server's time, seconds since the epoch.
        actor: who caused the change, for the audit trail.
        code: reason in one word, for programs.
        message: reason in a sentence, for people.
        applied_step: first step under the version, where a rank applied it.

    Returns:
        The version in its new state.
    """
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
    """A version as the newest incarnation that started with it describes it.

    An incarnation that resumes from a checkpoint continues with the checkpoint's control, whatever it announced. Its
    reports contain method and scope: where descriptions differ, the newest one that agrees with the reports is used.

    Args:
        recorded: the version in this server's table; returned where no incarnation started with this version.
    """
    started = [initial for initial in streams.initial_controls(connection, run.key) if initial.version == version]
    if not started:
        return recorded
    described = [_item(run.key, initial) for initial in started] + ([] if recorded is None else [recorded])
    chosen = described[0]
    if any(item.document != chosen.document for item in described):
        labels = _newest_labels(connection, run)
        chosen = next((item for item in described if _agrees(item.document, labels)), chosen)
    return recorded if recorded is not None and recorded.document == chosen.document else chosen


def _newest_labels(connection: Connection, run: Run) -> Mapping[str, str]:
    report = None if run.step is None else steps.find(connection, run.key, run.step)
    return {} if report is None else report.labels


def _agrees(document: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    return all(labels.get(f"control/{name}", document[name]) == document[name] for name in ("method", "scope"))


def _item(run_key: int, initial: InitialControl) -> ControlItem:
    return ControlItem(
        run_key=run_key,
        version=initial.version,
        document=initial.document,
        author=initial.author or "run",
        requested_at=initial.began_at,
        requested_step=None,
        expires_at=None,
        state=State.APPLIED,
        applied_at=initial.began_at,
        ended_at=initial.began_at,
        message="The control the run started with.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentControl:
    """The newest version of a run's control, and the one its newest report was made under."""

    newest: ControlItem
    active: ControlItem | None
    """None: the run reports a version that this server never made, or another document under its number."""
    outcomes: Sequence[RankOutcome]
    """Each rank's outcome of the newest version."""


def current_control(connection: Connection, run: Run) -> CurrentControl:
    """Read the newest version of a run's control and the active one."""
    newest = controls.newest(connection, run.key)
    assert newest is not None, "the first version is written with the run"
    active = active_control(connection, run, newest)
    nothing_pushed = active is not None and active.version == newest.version == 0
    return CurrentControl(
        # Version 0 is never requested; each incarnation announces its own.
        newest=active if active is not None and nothing_pushed else newest,
        active=active,
        outcomes=controls.outcomes(connection, run.key, newest.version),
    )


def active_control(connection: Connection, run: Run, newest: ControlItem | None = None) -> ControlItem | None:
    """The version that the run's newest report was made under.

    Args:
        newest: the newest version, where it was read already: it is mostly the active one.

    Returns:
        None: the run reports a version that this server never made, or another document under its number.
    """
    version = run.control_version
    known = newest if newest is not None and newest.version == version else controls.find(connection, run.key, version)
    item = as_begun(connection, run, version, known)
    # A version that no probe has seen, or that it refused, is not the one it reports under this number.
    return None if item is None or item.state in (State.PENDING, State.REJECTED) else item


def snapshot_to_send(transaction: Transaction, run_id: str, run_key: int, now: float) -> ControlSnapshot | None:
    """Control snapshot sent on Hello and Watch.

    The version is marked DELIVERED *before* it is sent: a version that is still PENDING was never seen by a probe.

    Returns:
        The newest requested version that has not ended unapplied; None without one.
    """
    item = controls.desired(transaction.connection, run_key)
    if item is not None and item.state is State.PENDING:
        if item.expires_at is not None and item.expires_at <= now:
            # Too late to fetch; the sweep ends it in a moment.
            return None
        item = move_to(transaction, run_id, item, State.DELIVERED, now=now, actor="server")
    return None if item is None else _snapshot(item)


def _snapshot(item: ControlItem) -> ControlSnapshot:
    return ControlSnapshot(
        version=item.version,
        control=Control.from_document(item.document),
        author=item.author,
        requested_at=item.requested_at,
        # The time to live bounds when a change may begin. An active control stays active for the next incarnation.
        expires_at=item.expires_at if item.state is State.DELIVERED else None,
    )
