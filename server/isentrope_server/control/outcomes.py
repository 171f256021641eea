"""What probes say became of a control version.

A version is settled once every rank of the answering incarnation that is known here has spoken, or the grace for slow
ranks is over (`expiry`). The first settlement stands, with one exception: an EXPIRED or a PARTIAL that the server had
concluded from silence yields to the probe's own word.
"""

from __future__ import annotations

from collections.abc import Sequence

from isentrope_server.control.transitions import RANKS_SILENT, UNANSWERED, move
from isentrope_server.store import controls, streams
from isentrope_server.store.controls import ControlItem, RankOutcome, State
from isentrope_server.store.streams import Stream
from isentrope_server.store.writer import Transaction
from isentrope_wire.messages import ControlOutcome, OutcomeState


def take_outcomes(
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


def settle(transaction: Transaction, run_id: str, item: ControlItem, now: float) -> None:
    """End a version by what the ranks that spoke said of it."""
    words = _words_of_first_incarnation(controls.outcomes(transaction.connection, item.run_key, item.version))
    state = _joint_state([word.state for word in words])
    applied = [word for word in words if word.state is OutcomeState.APPLIED]
    telling = next((word for word in words if word.state is not OutcomeState.APPLIED), words[0])
    code, message = telling.code, telling.message
    silent = _silent_ranks(transaction, item.run_key, words)
    if silent and state is State.APPLIED:
        state, code = State.PARTIAL, RANKS_SILENT
        message = f"Of {len(words) + len(silent)} ranks, {len(silent)} said nothing of it, such as rank {silent[0]}."
    move(
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
            move(
                transaction,
                run_id,
                item,
                State.EXPIRED,
                now=now,
                actor="server",
                code="run_ended",
                message="The run ended before a step began under this control.",
            )


_ANY_VERSION = 2**63 - 1


def _settle_if_complete(transaction: Transaction, run_id: str, item: ControlItem, stream: Stream, now: float) -> None:
    guessed = (item.state, item.code) in ((State.EXPIRED, UNANSWERED), (State.PARTIAL, RANKS_SILENT))
    if item.state not in controls.OPEN_STATES and not guessed:
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


def _words_of_first_incarnation(words: Sequence[RankOutcome]) -> list[RankOutcome]:
    return [word for word in words if word.incarnation == words[0].incarnation]


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
            move(
                transaction,
                run_id,
                older,
                State.SUPERSEDED,
                now=now,
                actor="server",
                code="newer_reached_probe",
                message=f"The probe went on to version {newer.version} without applying this one.",
            )
