"""A person or a controller asks for a new version of a run's control."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from isentrope_server.control.state import as_begun, move_to
from isentrope_server.errors import Conflict, PreconditionFailed, Unprocessable, UnsupportedControl
from isentrope_server.store import access, controls, runs, streams
from isentrope_server.store.controls import ControlItem
from isentrope_server.store.runs import Run
from isentrope_server.store.writer import ControlChanged, Transaction
from isentrope_wire.control import Control
from isentrope_wire.control_answers import State
from isentrope_wire.errors import ControlError

_HIGHEST_VERSION = 10**17
"""No server ever counted so far: a report that names more is mistaken, and If-Match must be able to name what follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRequest:
    """What was asked, by whom, on top of which version."""

    control: Control
    author: str
    token_id: str | None = None
    """Of the token the author came with."""
    expected_version: int
    """The newest version the author had seen."""
    time_to_live_seconds: float
    """The change doesn't fire later than this after the request, e.g. after a partition."""
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    item: ControlItem
    is_new: bool
    """False: this request had come before, and this is what became of it."""


def control_from(document: Mapping[str, object]) -> Control:
    """The control in a request's body.

    Raises:
        Unprocessable: no probe could apply it.
    """
    try:
        return Control.from_document(document)
    except ControlError as error:
        raise Unprocessable(str(error), field="control") from error


def request_control(transaction: Transaction, run: Run, request: ControlRequest, now: float) -> Requested:
    """Record a new version, PENDING until a probe's Watch fetches it.

    A version nobody has fetched is SUPERSEDED at once. One that was delivered stays open: only the probe knows whether
    it got there before the newer one.

    Raises:
        PreconditionFailed: the newest version is not the one the author had seen.
        UnsupportedControl: the run's probe can't do it.
        Conflict: the run has ended.
        Unprocessable: the idempotency key was used for another document.
    """
    repeated = _repeated(transaction, run, request)
    if repeated is not None:
        return Requested(item=repeated, is_new=False)
    _check(transaction, run, request)
    item = ControlItem(
        run_key=run.key,
        version=_next_version(transaction, run, request),
        document=request.control.to_document(),
        author=request.author,
        requested_at=now,
        requested_step=run.step,
        expires_at=now + request.time_to_live_seconds,
        state=State.PENDING,
        idempotency_key=request.idempotency_key,
    )
    previous = controls.find(transaction.connection, run.key, request.expected_version)
    if request.expected_version == 0:
        previous = as_begun(transaction.connection, run, 0, previous)
    controls.add(transaction.connection, item)
    access.record_audit(
        transaction.connection,
        at=now,
        actor=request.author,
        token_id=request.token_id,
        action="control.requested",
        subject=f"runs/{run.id}/control/{item.version}",
        change={"old": previous.document if previous else None, "new": item.document},
    )
    transaction.announce(ControlChanged(run_id=run.id, version=item.version))
    _supersede_unfetched(transaction, run, item, request, now)
    return Requested(item=item, is_new=True)


def _repeated(transaction: Transaction, run: Run, request: ControlRequest) -> ControlItem | None:
    if request.idempotency_key is None:
        return None
    earlier = controls.by_idempotency_key(transaction.connection, run.key, request.idempotency_key)
    if earlier is not None and earlier.document != request.control.to_document():
        raise Unprocessable(
            f"This Idempotency-Key already stands for version {earlier.version}, which asked for something else. "
            "Use a new key for a new request.",
            version=earlier.version,
        )
    return earlier


def _check(transaction: Transaction, run: Run, request: ControlRequest) -> None:
    newest = controls.newest(transaction.connection, run.key)
    newest_version = newest.version if newest else 0
    if request.expected_version != newest_version:
        raise PreconditionFailed(
            f"The newest control is version {newest_version}, If-Match names {request.expected_version}. "
            "Read it, and decide again.",
            version=newest_version,
        )
    # Read again: it may have said goodbye since the request looked it up.
    run = runs.find(transaction.connection, run.id, silent_after_seconds=math.inf) or run
    if run.ended:
        raise Conflict(f"Run {run.id} has {run.status}: no probe will apply a control.", status=run.status)
    if request.control.capability not in run.capabilities:
        raise UnsupportedControl(
            f"The probe of run {run.id} can't do {request.control.capability}; "
            f"it offers {', '.join(run.capabilities) or 'nothing'}.",
            capability=request.control.capability,
            capabilities=list(run.capabilities),
        )


def _next_version(transaction: Transaction, run: Run, request: ControlRequest) -> int:
    """One more than any number in use: after an older database was restored, the run knows some that it doesn't."""
    highest = streams.highest_control_version(transaction.connection, run.key, below=_HIGHEST_VERSION)
    return max(request.expected_version, highest) + 1


def _supersede_unfetched(
    transaction: Transaction, run: Run, newer: ControlItem, request: ControlRequest, now: float
) -> None:
    for older in controls.open_before(transaction.connection, run.key, newer.version):
        if older.state is State.PENDING:
            move_to(
                transaction,
                run.id,
                older,
                State.SUPERSEDED,
                now=now,
                actor=request.author,
                token_id=request.token_id,
                code="never_delivered",
                message=f"Version {newer.version} came before any probe had fetched this one.",
            )
