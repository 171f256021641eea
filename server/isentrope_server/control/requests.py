"""Requests for a new version of a run's control, from a person or a hold controller; what is sent
to probes.

Every change of a version's state has an audit entry and an event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from isentrope_server.control.versions import read_as_begun
from isentrope_server.errors import Conflict, PreconditionFailed, Unprocessable
from isentrope_server.store import access, controls, runs, streams
from isentrope_server.store.access import Principal
from isentrope_server.store.controls import ControlItem
from isentrope_server.store.runs import Run
from isentrope_server.store.writer import ControlChanged, Transaction
from isentrope_wire.control import LONGEST_REASON, Control, begun_at
from isentrope_wire.control_answers import PredictedEffect, State
from isentrope_wire.errors import ConfigurationError
from isentrope_wire.reports import Alert, ControlSnapshot

_HIGHEST_VERSION = 10**17
"""A report that names a higher version is mistaken; If-Match must be able to name the versions that
follow."""


def control_from(document: Mapping[str, object], run: Run) -> Control:
    """Read the control in a request's body, for this run; Unprocessable: no probe could apply
    it."""
    try:
        return Control.from_document(begun_at(document, (run.step or 0) + 1))
    except ConfigurationError as error:
        raise Unprocessable(str(error), field="control") from error


def request_control(
    transaction: Transaction,
    run: Run,
    control: Control,
    *,
    by: Principal | str,
    expected_version: int,
    time_to_live_seconds: float,
    now: float,
    idempotency_key: str | None = None,
    predicted: PredictedEffect | None = None,
) -> tuple[ControlItem, bool]:
    """Record a new version, PENDING until a probe's Watch fetches it; return it, and whether it is
    new: false where the same request made it before.

    Args:
        by: who asks; the name is the version's author.
        expected_version: the newest version that the author had seen.
        time_to_live_seconds: a change that reaches the probe later than this, e.g. after a network
            partition, is not applied.
        predicted: what the control would have done to the last steps.

    An older version that no probe fetched becomes SUPERSEDED at once. A delivered one stays open:
    only the probe knows whether it was applied before the newer one.

    PreconditionFailed: the newest version is not the expected one; Conflict: the run has
    ended; Unprocessable: the run's probe does not have the method, or the idempotency key was used
    for another document."""
    document, repeated = control.to_document(), None
    if idempotency_key is not None:
        repeated = controls.find_by_idempotency_key(
            transaction.connection, run.key, idempotency_key
        )
    if repeated is not None and repeated.document != document:
        raise Unprocessable(
            f"This Idempotency-Key was used for version {repeated.version} with another document. "
            "Use a new key for a new request.",
            version=repeated.version,
        )
    if repeated is not None:
        return repeated, False
    _check(transaction, run, control, expected_version)
    # A run may know versions that a restored, older database does not.
    highest = streams.highest_control_version(
        transaction.connection, run.key, below=_HIGHEST_VERSION
    )
    item = ControlItem(
        run_key=run.key,
        version=max(expected_version, highest) + 1,
        document=document,
        author=by if isinstance(by, str) else by.name,
        requested_at=now,
        requested_step=run.step,
        expires_at=now + time_to_live_seconds,
        state=State.PENDING,
        idempotency_key=idempotency_key,
        predicted=None if predicted is None else asdict(predicted),
    )
    previous = controls.find(transaction.connection, run.key, expected_version)
    if expected_version == 0:
        previous = read_as_begun(transaction.connection, run, 0, previous)
    controls.add(transaction.connection, item)
    change = {"old": previous.document if previous else None, "new": item.document}
    subject = f"runs/{run.id}/control/{item.version}"
    access.record_audit(transaction.connection, by, "control.requested", subject, change, now)
    transaction.announce(ControlChanged(run_id=run.id))
    for older in controls.open_before(transaction.connection, run.key, item.version):
        if older.state is State.PENDING:
            message = f"Version {item.version} was requested before any probe fetched this one."
            move_to(
                transaction,
                run.id,
                older,
                State.SUPERSEDED,
                now,
                by=by,
                code="never_delivered",
                message=message,
            )
    return item, True


def revert_harmful(
    transaction: Transaction, run_id: str, alert: Alert, time_to_live_seconds: float, now: float
) -> ControlItem | None:
    """Take a control back whose `guard` is `revert`, on an `overshoot` alert about it. None where
    another version is newer, or the guard only alerts."""
    run = runs.find(transaction.connection, run_id, silent_after_seconds=math.inf)
    if run is None or run.ended or alert.suggestion is None:
        return None
    newest = controls.newest(transaction.connection, run.key)
    if (
        newest is None
        or newest.version != alert.evidence.get("version")
        or newest.document.get("guard") != "revert"
    ):
        return None
    item, _ = request_control(
        transaction,
        run,
        replace(alert.suggestion, reason=f"Guard: {alert.message}"[:LONGEST_REASON]),
        by="guard",
        expected_version=newest.version,
        time_to_live_seconds=time_to_live_seconds,
        now=now,
    )
    return item


def _check(transaction: Transaction, run: Run, control: Control, expected_version: int) -> None:
    newest = controls.newest(transaction.connection, run.key)
    newest_version = 0
    if newest:
        newest_version = newest.version
    if expected_version != newest_version:
        raise PreconditionFailed(
            f"The newest control is version {newest_version}, If-Match names"
            f" {expected_version}. Read it and decide again.",
            version=newest_version,
        )
    # Read again: the run may have finished since the request looked it up.
    run = runs.find(transaction.connection, run.id, silent_after_seconds=math.inf) or run
    if run.ended:
        raise Conflict(
            f"Run {run.id} has {run.status}: no probe will apply a control.", status=run.status
        )
    if control.capability not in run.capabilities:
        raise Unprocessable(
            f"The probe of run {run.id} can't do {control.capability}; "
            f"it offers {', '.join(run.capabilities) or 'nothing'}.",
            code="capability_missing",
            capability=control.capability,
            capabilities=list(run.capabilities),
        )


def snapshot_to_send(
    transaction: Transaction, run_id: str, run_key: int, now: float
) -> ControlSnapshot | None:
    """The newest requested version that has not ended unapplied, as sent on Hello and Watch; None
    without one. The version is marked DELIVERED *before* it is sent: a version that is still
    PENDING was never seen by a probe."""
    item = controls.desired(transaction.connection, run_key)
    if item is not None and item.state is State.PENDING:
        if item.expires_at is not None and item.expires_at <= now:
            # Too late to fetch; the sweep ends it in a moment.
            return None
        item = move_to(transaction, run_id, item, State.DELIVERED, now)
    if item is None:
        return None
    return ControlSnapshot(
        version=item.version,
        control=Control.from_document(item.document),
        author=item.author,
        requested_at=item.requested_at,
        # The time to live bounds when a change may begin. An active control stays active for the
        # next incarnation.
        expires_at=item.expires_at if item.state is State.DELIVERED else None,
    )


def move_to(
    transaction: Transaction,
    run_id: str,
    item: ControlItem,
    state: State,
    now: float,
    *,
    by: Principal | str = "server",
    code: str = "",
    message: str = "",
    applied_step: int | None = None,
    applied_at: float | None = None,
) -> ControlItem:
    """Put a version into another state and return it: `code` is the reason for programs, `message`
    for people, `by` the author in the audit trail."""
    changed: dict[str, Any] = {
        "state": state,
        "code": code,
        "message": message,
        "applied_step": applied_step,
        "applied_at": applied_at,
        "ended_at": None if state in controls.OPEN_STATES else now,
    }
    controls.change(transaction.connection, item, **changed)
    change = {
        "old": item.state,
        "new": state,
        "code": code,
        "message": message,
        "step": applied_step,
    }
    subject = f"runs/{run_id}/control/{item.version}"
    access.record_audit(
        transaction.connection, by, f"control.{state.lower()}", subject, change, now
    )
    transaction.announce(ControlChanged(run_id=run_id))
    return replace(item, **changed)
