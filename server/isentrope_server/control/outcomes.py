"""What probes say became of a control version.

A version is settled once every rank of the answering incarnation that is known here has spoken, or the grace for slow
ranks is over (`expiry`). The first settlement stands, with one exception: what the server had concluded without the
probe's own word yields to that.

A report that was made under a version proves that its rank has applied it, though its word was lost: with a report that
can't be stored, or with a process that died after its checkpoint. So what a report names counts as said, once the grace
for slow ranks is over.

Versions nobody answered in time.

A version no probe ever fetched expires on the second. A delivered one is the probe's to answer, and an answer may be
on its way up; after a grace the server concludes EXPIRED, and takes the conclusion back if the probe says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from isentrope_server.control.state import RANKS_SILENT, RUN_ENDED, UNANSWERED, move_to
from isentrope_server.store import controls, streams
from isentrope_server.store.controls import ControlItem, RankOutcome
from isentrope_server.store.streams import Stream
from isentrope_server.store.writer import Transaction
from isentrope_wire.control_answers import State
from isentrope_wire.reports import ControlOutcome, OutcomeState, RunFinished, StepReport


def take_words(
    transaction: Transaction, run_id: str, stream: Stream, message: StepReport | RunFinished, now: float
) -> Stream:
    """Record what one rank says of controls, in the transaction of the message it came with.

    Returns: the stream, with the highest version that it has named then.
    """
    highest = max((outcome.version for outcome in message.outcomes), default=0)
    if message.outcomes:
        _take_outcomes(transaction, run_id, stream, message.outcomes, now)
    if isinstance(message, StepReport):
        highest = max(highest, message.control_version)
        # Looked up once: of what a rank applies the versions rise.
        if message.control_version > stream.control_version:
            _take_naming(transaction, run_id, stream, message, now)
    return replace(stream, control_version=highest) if highest > stream.control_version else stream


def _take_outcomes(
    transaction: Transaction,
    run_id: str,
    stream: Stream,
    outcomes: Sequence[ControlOutcome],
    now: float,
) -> None:
    """Record one rank's words, in the transaction of the report they came with."""
    first_words: dict[int, ControlOutcome] = {}
    for outcome in outcomes:
        first_words.setdefault(outcome.version, outcome)
    # A version this server never gave out is not its to settle.
    for version in sorted(controls.known_among(transaction.connection, stream.run_key, list(first_words))):
        item = controls.find(transaction.connection, stream.run_key, version)
        if item is not None and controls.add_outcome(
            transaction.connection, stream.run_key, stream.key, first_words[version], now
        ):
            _settle_if_complete(transaction, run_id, item, stream, now)


def _take_naming(transaction: Transaction, run_id: str, stream: Stream, report: StepReport, now: float) -> None:
    """The version in force at a report was applied, at that step at the latest."""
    item = controls.find(transaction.connection, stream.run_key, report.control_version)
    # One that is PENDING no probe has seen: there the number stands for what this server doesn't know.
    if item is None or not (item.state is State.DELIVERED or _is_guessed(item)):
        return
    word = ControlOutcome(
        version=item.version,
        state=OutcomeState.APPLIED,
        at=report.recorded_at if math.isfinite(report.recorded_at) else now,
        step=report.step,
        code=controls.NAMED_BY_REPORT,
        message=f"The report of step {report.step} was made under it; the rank's own word of it did not come.",
    )
    added = controls.add_outcome(transaction.connection, stream.run_key, stream.key, word, now)
    # While it is open the rank's own word may still come, with another step or another answer.
    if added and item.state is not State.DELIVERED:
        _settle_if_complete(transaction, run_id, item, stream, now)


def settle(transaction: Transaction, run_id: str, item: ControlItem, now: float) -> None:
    """End a version by what the ranks that spoke said of it."""
    words = _words_that_count(controls.outcomes(transaction.connection, item.run_key, item.version))
    state = _joint_state([word.state for word in words])
    applied = [word for word in words if word.state is OutcomeState.APPLIED]
    telling = next((word for word in words if word.state is not OutcomeState.APPLIED), words[0])
    code, message = telling.code, telling.message
    silent = _silent_ranks(transaction, item.run_key, words)
    if silent and state is State.APPLIED:
        state, code = State.PARTIAL, RANKS_SILENT
        message = f"Of {len(words) + len(silent)} ranks, {len(silent)} said nothing of it, such as rank {silent[0]}."
    move_to(
        transaction,
        run_id,
        item,
        state,
        now=now,
        actor=", ".join(f"rank {word.rank}" for word in words),
        code=code,
        message=message,
        applied_step=min((word.step for word in applied if word.step is not None), default=None),
        applied_at=min((word.at for word in applied), default=None),
    )
    _supersede_passed_over(transaction, run_id, item, now)


def close_open_controls(transaction: Transaction, run_id: str, run_key: int, now: float) -> None:
    """The run said goodbye: what it hasn't answered by then it never will."""
    for item in controls.open_before(transaction.connection, run_key, _ANY_VERSION):
        if controls.outcomes(transaction.connection, run_key, item.version):
            settle(transaction, run_id, item, now)
        else:
            move_to(
                transaction,
                run_id,
                item,
                State.EXPIRED,
                now=now,
                actor="server",
                code=RUN_ENDED,
                message="The run ended before a step began under this control.",
            )


_ANY_VERSION = 2**63 - 1


def _settle_if_complete(transaction: Transaction, run_id: str, item: ControlItem, stream: Stream, now: float) -> None:
    if item.state not in controls.OPEN_STATES and not _is_guessed(item):
        return
    spoken = {word.stream_key for word in controls.outcomes(transaction.connection, item.run_key, item.version)}
    peers = streams.of_incarnation(transaction.connection, item.run_key, stream.incarnation)
    complete = all(peer.key in spoken for peer in peers)
    if complete or item.state is State.EXPIRED:
        settle(transaction, run_id, item, now)


def _silent_ranks(transaction: Transaction, run_key: int, words: Sequence[RankOutcome]) -> list[int]:
    """Ranks of the answering incarnation that are known here and have said nothing."""
    spoken = {word.stream_key for word in words}
    peers = streams.of_incarnation(transaction.connection, run_key, words[0].incarnation)
    return [peer.rank for peer in peers if peer.key not in spoken]


def _is_guessed(item: ControlItem) -> bool:
    """Whether the server concluded how it ended without all words of the probe."""
    return (item.state, item.code) in (
        (State.EXPIRED, UNANSWERED),
        (State.EXPIRED, RUN_ENDED),
        (State.PARTIAL, RANKS_SILENT),
        (State.APPLIED, controls.NAMED_BY_REPORT),
    )


def _words_that_count(words: Sequence[RankOutcome]) -> list[RankOutcome]:
    """Those of the incarnation that spoke first; one that has only reported under the version spoke after all others."""
    spoken = [word for word in words if word.code != controls.NAMED_BY_REPORT] or words
    return [word for word in words if word.incarnation == spoken[0].incarnation]


def _joint_state(states: Sequence[OutcomeState]) -> State:
    """APPLIED only where all ranks did; PARTIAL where some did; else the gravest word."""
    said = set(states)
    if len(said) > 1 and OutcomeState.APPLIED in said:
        return State.PARTIAL
    gravity = (OutcomeState.REJECTED, OutcomeState.EXPIRED, OutcomeState.SUPERSEDED, OutcomeState.APPLIED)
    return State(next(state for state in gravity if state in said))


def _supersede_passed_over(transaction: Transaction, run_id: str, newer: ControlItem, now: float) -> None:
    """A probe that has spoken of a version has passed over the older ones it said nothing of."""
    for older in controls.open_before(transaction.connection, newer.run_key, newer.version):
        if not controls.outcomes(transaction.connection, older.run_key, older.version):
            move_to(
                transaction,
                run_id,
                older,
                State.SUPERSEDED,
                now=now,
                actor="server",
                code="newer_reached_probe",
                message=f"The probe went on to version {newer.version} without applying this one.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grace:
    """How long the server waits for a probe's word."""

    answer_seconds: float
    """After a delivered version expired."""
    rank_seconds: float
    """After the first of several ranks has answered."""


def expire_overdue(transaction: Transaction, grace: Grace, now: float) -> None:
    """End every open version whose time is over."""
    for run_id, item in controls.all_open(transaction.connection):
        words = controls.outcomes(transaction.connection, item.run_key, item.version)
        if words:
            if words[0].received_at + grace.rank_seconds <= now:
                settle(transaction, run_id, item, now)
        elif _is_over(item, grace, now):
            _expire(transaction, run_id, item, now)


def _is_over(item: ControlItem, grace: Grace, now: float) -> bool:
    if item.expires_at is None:
        return False
    extra = grace.answer_seconds if item.state is State.DELIVERED else 0.0
    return item.expires_at + extra <= now


def _expire(transaction: Transaction, run_id: str, item: ControlItem, now: float) -> None:
    delivered = item.state is State.DELIVERED
    move_to(
        transaction,
        run_id,
        item,
        State.EXPIRED,
        now=now,
        actor="server",
        code=UNANSWERED if delivered else "never_delivered",
        message=(
            "It was delivered, but the probe said nothing of it before it expired."
            if delivered
            else "No probe fetched it before it expired."
        ),
    )
