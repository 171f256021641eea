"""How control versions end: what ranks report, and what the server concludes when they report
nothing.

A version is settled once every known rank of the answering incarnation has reported an outcome, or
the grace period for slow ranks is over. The first settlement is final, with one exception: a
conclusion of the server is replaced when the ranks report their outcome after all.

A step report names the version it was made under. That proves that its rank applied the version,
even if the outcome itself was lost, with a report that can't be stored or a process that died after
its checkpoint.

A version that no probe fetched expires on time. A delivered one may have an outcome on its way;
after a grace period the server concludes EXPIRED.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from isentrope_server.control.requests import move_to
from isentrope_server.store import controls, runs, streams
from isentrope_server.store.controls import ControlItem
from isentrope_server.store.streams import Stream
from isentrope_server.store.tables import LARGEST_INTEGER
from isentrope_server.store.writer import Transaction
from isentrope_wire.control_answers import State
from isentrope_wire.reports import ControlOutcome, OutcomeState, RunFinished, StepReport

UNANSWERED = "unanswered"
"""Code of an EXPIRED that the server concluded because no outcome came; a later outcome replaces
it."""
RUN_ENDED = "run_ended"
"""Code of an EXPIRED: the run finished without an outcome. Replaced by a late outcome of an older
incarnation."""
RANKS_SILENT = "ranks_silent"
"""Code of a PARTIAL: no rank failed to apply it, but some reported no outcome in time. Replaced by
later outcomes."""


def record_outcomes(
    transaction: Transaction,
    run_id: str,
    stream: Stream,
    message: StepReport | RunFinished,
    now: float,
) -> Stream:
    """Record the outcomes that one rank reports, in the transaction of the message they came with;
    return its stream, with the highest version it has named."""
    highest = max((outcome.version for outcome in message.outcomes), default=0)
    first_outcomes: dict[int, ControlOutcome] = {}
    for outcome in message.outcomes:
        first_outcomes.setdefault(outcome.version, outcome)
    for version, outcome in sorted(first_outcomes.items()):
        item = controls.find(transaction.connection, stream.run_key, version)
        # Versions that this server never made can't be settled here.
        if item is not None and controls.add_outcome(
            transaction.connection, stream.run_key, stream.key, outcome, now
        ):
            _settle_if_complete(transaction, run_id, item, stream, now)
    if isinstance(message, StepReport):
        highest = max(highest, message.control_version)
        # Looked up once for each version: the versions that a rank applies only rise.
        if message.control_version > stream.control_version:
            _record_named(transaction, run_id, stream, message, now)
    if highest > stream.control_version:
        return replace(stream, control_version=highest)
    return stream


def _record_named(
    transaction: Transaction, run_id: str, stream: Stream, report: StepReport, now: float
) -> None:
    """Record that the version a report was made under is applied, at that step at the latest."""
    item = controls.find(transaction.connection, stream.run_key, report.control_version)
    # No probe has seen a PENDING version: the report means another control with the same number.
    if item is None or not (item.state is State.DELIVERED or _is_guessed(item)):
        return
    outcome = ControlOutcome(
        version=item.version,
        state=OutcomeState.APPLIED,
        at=report.recorded_at if math.isfinite(report.recorded_at) else now,
        step=report.step,
        code=controls.NAMED_BY_REPORT,
        message=(
            f"The report of step {report.step} was made under this version; the rank's outcome did"
            " not arrive."
        ),
    )
    added = controls.add_outcome(transaction.connection, stream.run_key, stream.key, outcome, now)
    # While the version is open the rank's outcome may still arrive, with another step or state.
    if added and item.state is not State.DELIVERED:
        _settle_if_complete(transaction, run_id, item, stream, now)


def settle(transaction: Transaction, run_id: str, item: ControlItem, now: float) -> None:
    """End a version with the state that the answering ranks reported."""
    found = controls.outcomes(transaction.connection, item.run_key, item.version)
    # Those of the incarnation that answered first; reports made under the version count after real
    # outcomes.
    first = next(
        (outcome for outcome in found if outcome.code != controls.NAMED_BY_REPORT), found[0]
    )
    outcomes = [outcome for outcome in found if outcome.incarnation == first.incarnation]
    state = _joint_state([outcome.state for outcome in outcomes])
    applied = [outcome for outcome in outcomes if outcome.state is OutcomeState.APPLIED]
    refused = [outcome for outcome in outcomes if outcome.state is not OutcomeState.APPLIED]
    shown = [*refused, *outcomes][0]
    code, message = shown.code, shown.message
    if shown.state is OutcomeState.EXPIRED:
        step = runs.seconds_per_step(transaction.connection, item.run_key)
        message = f"{message}{_step_in_words(step)}"
    answered = {outcome.stream_key for outcome in outcomes}
    peers = streams.streams_of_incarnation(
        transaction.connection, item.run_key, outcomes[0].incarnation
    )
    silent = [peer.rank for peer in peers if peer.key not in answered]
    if silent and state is State.APPLIED:
        state, code = State.PARTIAL, RANKS_SILENT
        message = (
            f"{len(silent)} of {len(outcomes) + len(silent)} ranks did not report an outcome, e.g."
            f" rank {silent[0]}."
        )
    move_to(
        transaction,
        run_id,
        item,
        state,
        now,
        by=", ".join(f"rank {outcome.rank}" for outcome in outcomes),
        code=code,
        message=message,
        applied_step=min(
            (outcome.step for outcome in applied if outcome.step is not None), default=None
        ),
        applied_at=min((outcome.at for outcome in applied), default=None),
    )
    # The probe has moved past the older versions without an outcome.
    for older in controls.open_before(transaction.connection, item.run_key, item.version):
        if not controls.outcomes(transaction.connection, older.run_key, older.version):
            message = f"The probe applied version {item.version} and not this one."
            move_to(
                transaction,
                run_id,
                older,
                State.SUPERSEDED,
                now,
                code="newer_reached_probe",
                message=message,
            )


def close_open_controls(transaction: Transaction, run_id: str, run_key: int, now: float) -> None:
    """End the open versions of a run that has finished: no outcome will follow."""
    for item in controls.open_before(transaction.connection, run_key, LARGEST_INTEGER):
        if controls.outcomes(transaction.connection, run_key, item.version):
            settle(transaction, run_id, item, now)
        else:
            message = "The run ended before a step began under this control."
            move_to(transaction, run_id, item, State.EXPIRED, now, code=RUN_ENDED, message=message)


def _settle_if_complete(
    transaction: Transaction, run_id: str, item: ControlItem, stream: Stream, now: float
) -> None:
    if item.state not in controls.OPEN_STATES and not _is_guessed(item):
        return
    answered = {
        outcome.stream_key
        for outcome in controls.outcomes(transaction.connection, item.run_key, item.version)
    }
    peers = streams.streams_of_incarnation(transaction.connection, item.run_key, stream.incarnation)
    complete = all(peer.key in answered for peer in peers)
    if complete or item.state is State.EXPIRED:
        settle(transaction, run_id, item, now)


def _is_guessed(item: ControlItem) -> bool:
    """Whether the server concluded the state without an outcome of every rank."""
    return (item.state, item.code) in (
        (State.EXPIRED, UNANSWERED),
        (State.EXPIRED, RUN_ENDED),
        (State.PARTIAL, RANKS_SILENT),
        (State.APPLIED, controls.NAMED_BY_REPORT),
    )


def _joint_state(states: Sequence[OutcomeState]) -> State:
    reported = set(states)
    if len(reported) > 1 and OutcomeState.APPLIED in reported:
        return State.PARTIAL
    by_severity = (
        OutcomeState.REJECTED,
        OutcomeState.EXPIRED,
        OutcomeState.SUPERSEDED,
        OutcomeState.APPLIED,
    )
    return State(next(state for state in by_severity if state in reported))


_ANSWER_STEPS = 2.0
"""How many steps after its expiry the server waits at least for a delivered version's outcome."""


def expire_overdue(
    transaction: Transaction, now: float, *, answer_seconds: float, rank_seconds: float
) -> None:
    """End every open version whose time is over: `answer_seconds`, and two of the run's steps,
    after the expiry of a delivered version, `rank_seconds` after the first of several ranks has
    answered."""
    for run_id, item in controls.all_open(transaction.connection):
        outcomes = controls.outcomes(transaction.connection, item.run_key, item.version)
        if outcomes:
            if outcomes[0].received_at + rank_seconds <= now:
                settle(transaction, run_id, item, now)
        elif item.expires_at is not None and item.expires_at <= now:
            step = runs.seconds_per_step(transaction.connection, item.run_key)
            code, message = "never_delivered", "No probe fetched it before it expired."
            if item.state is State.DELIVERED:
                # An outcome comes with the report of the step that began under the change.
                if item.expires_at + max(answer_seconds, _ANSWER_STEPS * (step or 0.0)) > now:
                    continue
                code = UNANSWERED
                message = "It was delivered, but the probe reported no outcome before it expired."
            message = f"{message}{_step_in_words(step)}"
            move_to(transaction, run_id, item, State.EXPIRED, now, code=code, message=message)


def _step_in_words(seconds_per_step: float | None) -> str:
    if not seconds_per_step:
        return ""
    return f" A step of this run takes {seconds_per_step:.3g} s; a change waits for the next one."
