"""Push: records become rows and outcomes become control states, in one transaction.

`sort_out` checks and decodes records without the database; `take_in` stores what is new and
quarantines what can't be used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sqlalchemy import Connection, Update
from sqlalchemy.exc import DataError

from isentrope_server.control.outcomes import close_open_controls, record_outcomes
from isentrope_server.control.requests import revert_harmful
from isentrope_server.errors import UnknownStream
from isentrope_server.ingest.limits import OUTCOMES, SeriesLimit, excess
from isentrope_server.ingest.opening import what_was_other
from isentrope_server.store import access, rows, runs, streams
from isentrope_server.store.database import make_together, write_in_a_line
from isentrope_server.store.reports import alerts, records
from isentrope_server.store.reports.records import Arrival, Refused
from isentrope_server.store.rows import Layout
from isentrope_server.store.streams import PushState, Stream
from isentrope_server.store.tables import LARGEST_INTEGER, strip_nul
from isentrope_server.store.writer import Transaction
from isentrope_wire.codec import decode_payload, payload_hash
from isentrope_wire.errors import CodecError
from isentrope_wire.reports import (
    ERROR_CHARACTERS,
    NAME_CHARACTERS,
    Alert,
    AlertLevel,
    Gap,
    Payload,
    Quarantined,
    Record,
    RunFinished,
    StepReport,
    cut,
)


@dataclass(frozen=True, slots=True)
class Sorted:
    """One push, checked and decoded."""

    arrivals: list[Arrival] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


def sort_out(records: Iterable[Record]) -> Sorted:
    """Check and decode records; the result is by rising `seq`. A record that can't be used is
    refused with a reason, never dropped."""
    result = Sorted()
    for record in sorted(records, key=lambda record: record.seq):
        try:
            result.arrivals.append(_read(record))
        except _Unusable as error:
            outcomes_of = _keep_outcomes(error.payload)
            result.refused.append(
                Refused(record=record, code=error.code, message=str(error), outcomes_of=outcomes_of)
            )
    return result


class _Unusable(CodecError):
    def __init__(self, code: str, message: str, payload: Payload | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.payload = payload
        """The decoded payload, where it could be decoded."""


def _read(record: Record) -> Arrival:
    if not 1 <= record.seq <= LARGEST_INTEGER:
        raise _Unusable("bad_seq", f"A record's seq counts from 1, got {record.seq}.")
    if payload_hash(record.payload) != record.payload_hash:
        raise _Unusable(
            "hash_mismatch",
            f"The payload of seq {record.seq} does not have the hash that came with it.",
        )
    try:
        message = decode_payload(record.payload)
    except CodecError as error:
        raise _Unusable("undecodable", str(error)) from error
    if isinstance(message, StepReport | RunFinished):
        outcomes = message.outcomes
    else:
        outcomes = ()
    counted = [number for outcome in outcomes for number in (outcome.version, outcome.step or 0)]
    times = [outcome.at for outcome in outcomes]
    names: list[str] = []
    if isinstance(message, StepReport):
        counted += [
            message.step,
            message.control_version,
            *(histogram.not_finite for histogram in message.histograms),
        ]
        times.append(message.recorded_at)
        names = [*message.scalars, *(histogram.name for histogram in message.histograms)]
    if isinstance(message, RunFinished):
        times.append(message.finished_at)
    if max(counted, default=0) > LARGEST_INTEGER:
        raise _Unusable(
            "out_of_range",
            f"Steps, versions and counts are less than 2^63; seq {record.seq} holds more.",
            message,
        )
    if max(map(len, names), default=0) > NAME_CHARACTERS:
        raise _Unusable(
            "name_too_long",
            f"Names have at most {NAME_CHARACTERS} characters; one in seq {record.seq} has more.",
            message,
        )
    too_much = ""
    if isinstance(message, StepReport):
        too_much = excess(message)
    if too_much:
        raise _Unusable("too_much", f"The report of seq {record.seq} holds {too_much}.", message)
    if not all(map(math.isfinite, times)):
        raise _Unusable(
            "bad_time",
            f"Times are seconds since the Unix epoch; one in seq {record.seq} is not finite.",
            message,
        )
    # A gap beyond its own seq would acknowledge, and so delete, records that are still to come.
    if isinstance(message, Gap) and not 1 <= message.first_seq <= message.last_seq <= record.seq:
        raise _Unusable(
            "bad_gap",
            "A gap goes from a seq to a later one, at most its own, got"
            f" {message.first_seq}..{message.last_seq} in seq {record.seq}.",
        )
    if isinstance(message, StepReport) and "\0" in "".join(names):
        # No text column stores NUL.
        message = replace(
            message,
            scalars={strip_nul(name): value for name, value in message.scalars.items()},
            histograms=tuple(
                replace(histogram, name=strip_nul(histogram.name))
                for histogram in message.histograms
            ),
        )
    if isinstance(message, RunFinished):
        message = replace(message, error=cut(message.error, ERROR_CHARACTERS))
    return Arrival(
        seq=record.seq, payload=record.payload, payload_hash=record.payload_hash, message=message
    )


def _keep_outcomes(message: Payload | None) -> StepReport | RunFinished | None:
    """A refused message whose control outcomes can be stored: how a control ended must not be
    lost."""
    if not isinstance(message, StepReport | RunFinished) or len(message.outcomes) > OUTCOMES.most:
        return None
    numbers = [
        number for outcome in message.outcomes for number in (outcome.version, outcome.step or 0)
    ]
    if isinstance(message, StepReport):
        numbers += [message.control_version, message.step]
    storable = max(numbers, default=0) <= LARGEST_INTEGER and all(
        map(math.isfinite, (o.at for o in message.outcomes))
    )
    if storable:
        return message
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The answer to a Push; true once the transaction is committed."""

    acked_through: int
    quarantined: tuple[Quarantined, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """One rank of one incarnation of a run, which pushes."""

    run_id: str
    incarnation: str
    rank: int
    clock_ahead: float = 0.0
    """Seconds by which its clock is ahead of the server's."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Incarnation -> address, of the connected processes that report the run."""


_CLOCKS_AGREE_SECONDS = 60.0
"""Longest time that a push takes to arrive."""


def clock_ahead(sent_at: float, now: float) -> float:
    """Seconds by which the clock of a sender is ahead; 0 where it told no time, or the two agree as
    far as can be told."""
    ahead = sent_at - now
    if sent_at == 0 or not math.isfinite(ahead) or abs(ahead) < _CLOCKS_AGREE_SECONDS:
        return 0.0
    return ahead


_Message = TypeVar("_Message", bound=StepReport | RunFinished)


def set_to_server_clock(message: _Message, ahead: float) -> _Message:
    """A message with its times by the server's clock, for what is compared with the server's
    own."""
    if not ahead:
        return message
    outcomes = tuple(replace(outcome, at=outcome.at - ahead) for outcome in message.outcomes)
    if isinstance(message, RunFinished):
        return replace(message, finished_at=message.finished_at - ahead, outcomes=outcomes)
    return replace(message, recorded_at=message.recorded_at - ahead, outcomes=outcomes)


def take_in(
    transaction: Transaction, sender: Sender, sorted_out: Sorted, series: SeriesLimit, now: float
) -> Receipt:
    """Store new records, skip repeats, quarantine what can't be used. UnknownStream: no Hello of
    this stream is in the database."""
    connection = transaction.connection
    layout = next(
        (arrival.layout for arrival in sorted_out.arrivals if arrival.packed is not None),
        rows.NO_LAYOUT,
    )
    state = streams.push_state(
        connection, sender.run_id, sender.incarnation, sender.rank, rows.digest(layout)
    )
    if state is None:
        raise UnknownStream(
            f"Run {sender.run_id}, incarnation {sender.incarnation}, rank {sender.rank} is not"
            " known here; send Hello first."
        )
    stream = state.stream
    fresh, contradicting = _compare_with_stored(transaction, state, sorted_out.arrivals)
    fresh = series.drop_excess(connection, sender.run_id, stream, fresh)
    refused = [*sorted_out.refused, *contradicting]
    records.keep_refused(connection, stream.key, refused, now)
    for item in refused:
        if item.outcomes_of is not None:
            by_server = set_to_server_clock(item.outcomes_of, sender.clock_ahead)
            stream = record_outcomes(transaction, sender.run_id, stream, by_server, now)
    if state.layout_key is None:
        known_layouts = {}
    else:
        known_layouts = {layout: state.layout_key}
    stream, run_advanced = _store(transaction, sender, state, stream, known_layouts, fresh, now)
    # Refused records are acknowledged, too: they need not be sent again.
    arrived = sorted(
        {*(arrival.seq for arrival in fresh), *(records.storable(r.record.seq) for r in refused)}
    )
    acked_through = streams.contiguous_through(
        connection, stream, arrived, held_through=state.held_through
    )
    reported = [
        arrival.message.step for arrival in fresh if isinstance(arrival.message, StepReport)
    ]
    if reported and stream.first_step is None and state.is_current:
        _alert_of_taken_id(
            connection, sender, state, position=state.last_position + 1, step=min(reported), now=now
        )
    if reported and (stream.first_step is None or min(reported) < stream.first_step):
        runs.raise_timeline_version(connection, stream.run_key)
    stream_advanced = streams.advanced(stream, acked_through=acked_through, steps=reported, now=now)
    make_together(connection, [run_advanced, stream_advanced])
    if refused:
        _alert_of_refused(
            connection, stream, refused, position=state.last_position + len(fresh), now=now
        )
    if state.overtaken_by and reported:
        newest_report = max(
            a.message.recorded_at - sender.clock_ahead
            for a in fresh
            if isinstance(a.message, StepReport)
        )
        _alert_of_two_trainers(
            connection, state, newest_report, max(reported), now, hosts=sender.hosts
        )
    return Receipt(
        acked_through=acked_through,
        quarantined=tuple(
            Quarantined(seq=r.record.seq, code=r.code, message=r.message) for r in refused
        ),
    )


def _alert_of_taken_id(
    connection: Connection,
    sender: Sender,
    state: PushState,
    *,
    position: int,
    step: int,
    now: float,
) -> None:
    """Where a training begins anew under the id of another one, which continues no checkpoint: its
    first `step` hides all that the earlier ones reported."""
    begun = [
        earlier
        for earlier in streams.incarnations(connection, state.stream.run_key)
        if earlier.name != sender.incarnation and earlier.first_step is not None
    ]
    if not begun or step > min(earlier.first_step or 0 for earlier in begun):
        return
    change = access.taken_by(connection, sender.run_id, sender.incarnation)
    if not change:
        return
    last = max(earlier.last_step or 0 for earlier in begun)
    alert = Alert(
        kind="id_taken",
        level=AlertLevel.WATCH,
        message=(
            f"This run's id was used before, up to step {last}, and a training began anew "
            f"under it: {what_was_other(change)}. Its steps are shown in the place of the earlier "
            "ones, which are kept and exported. Give each training a run id of its own."
        ),
        evidence={f"step of {begun[-1].name[:8]}": float(last)},
    )
    alerts.append_servers_alert(
        connection, alert, state.stream, position=position, step=step, now=now
    )


def _alert_of_refused(
    connection: Connection, stream: Stream, refused: Sequence[Refused], *, position: int, now: float
) -> None:
    """One for each reason, the first time."""
    for code in dict.fromkeys(item.code for item in refused):
        found = [item for item in refused if item.code == code]
        of_step = next(
            (m.step for item in found if isinstance(m := item.outcomes_of, StepReport)),
            stream.last_step,
        )
        alert = Alert(
            kind="refused",
            level=AlertLevel.WATCH,
            message=(
                f"The server could not use {len(found)} of the records sent, the first is"
                f" {found[0].record.seq}: {found[0].message} Config lists each; what they report is"
                " missing."
            ),
            evidence={code: float(len(found))},
        )
        alerts.append_servers_alert(
            connection, alert, stream, position=position, step=of_step or 0, now=now
        )


REVERT_WITHIN_SECONDS = 24 * 3600.0
"""A guard's revert does not expire while steps are long."""
_BOTH_LIVE_SECONDS = 30.0
"""A process that reports this long after another one of its run began was not replaced by it."""


def _alert_of_two_trainers(
    connection: Connection,
    state: PushState,
    recorded_at: float,
    step: int,
    now: float,
    *,
    hosts: Mapping[str, str],
) -> None:
    """Where an incarnation goes on reporting beside a newer one, as after a queue's double
    start. `recorded_at`: by the server's clock, when the older one closed its newest step."""
    newer, older = (
        streams.streams_of_incarnation(connection, state.stream.run_key, state.overtaken_by)[0],
        state.stream,
    )
    # By the server's clock, too: `started_at` is by the trainer's.
    if recorded_at < newer.opened_at + _BOTH_LIVE_SECONDS:
        return

    def named(one: Stream) -> str:
        begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(one.started_at))
        host = ""
        if one.incarnation in hosts:
            host = f"on {hosts[one.incarnation]}, "
        return f"{one.incarnation[:8]} ({host}begun {begun})"

    alert = Alert(
        kind="two_trainers",
        level=AlertLevel.WATCH,
        message=(
            f"Two training processes report this run at once: {named(newer)} is shown;"
            f" {named(older)} goes on and is at step {step}. Stop one of them, or give each a run"
            " id of its own."
        ),
        evidence={f"step of {older.incarnation[:8]}": float(step)},
    )
    step = newer.last_step or 0
    alerts.append_servers_alert(
        connection, alert, newer, position=state.last_position, step=step, now=now
    )


def one_by_one(sorted_out: Sorted) -> Iterator[Sorted]:
    """Split a push with a record that the database refuses into single ones, in the same order; the
    refused ones first."""
    # Their outcomes may be what the database refuses.
    yield Sorted(refused=[replace(refused, outcomes_of=None) for refused in sorted_out.refused])
    for arrival in sorted_out.arrivals:
        yield Sorted(arrivals=[arrival])


def unstorable(alone: Sorted, error: DataError) -> Sorted:
    """A single record that the database refuses, to be quarantined."""
    return Sorted(
        refused=[
            Refused(record=_record(arrival), code="unstorable", message=write_in_a_line(error))
            for arrival in alone.arrivals
        ]
    )


def _compare_with_stored(
    transaction: Transaction, state: PushState, arrivals: Sequence[Arrival]
) -> tuple[list[Arrival], list[Refused]]:
    """Return new arrivals, and those whose seq is stored with another payload; repeats are
    neither."""
    known = records.stored_hashes(
        transaction.connection,
        state.stream.key,
        [arrival.seq for arrival in arrivals],
        held_through=state.held_through,
    )
    fresh: list[Arrival] = []
    refused: list[Refused] = []
    for arrival in arrivals:
        if arrival.seq not in known:
            known[arrival.seq] = arrival.payload_hash
            fresh.append(arrival)
        elif known[arrival.seq] != arrival.payload_hash:
            message = (
                f"seq {arrival.seq} is already stored with another payload; the first payload is"
                " kept."
            )
            refused.append(Refused(record=_record(arrival), code="key_conflict", message=message))
    return fresh, refused


def _record(arrival: Arrival) -> Record:
    return Record(seq=arrival.seq, payload=arrival.payload, payload_hash=arrival.payload_hash)


def _store(
    transaction: Transaction,
    sender: Sender,
    state: PushState,
    stream: Stream,
    known_layouts: Mapping[Layout, int],
    fresh: Sequence[Arrival],
    now: float,
) -> tuple[Stream, Update]:
    """Store new records; returns the stream with its new control version, and the change of the run
    still to be made."""
    connection = transaction.connection
    records.append(
        connection,
        fresh,
        run_key=stream.run_key,
        stream_key=stream.key,
        after_position=state.last_position,
        known_layouts=known_layouts,
        now=now,
        clock_ahead=sender.clock_ahead,
    )
    newest: tuple[int, int] | None = None
    for arrival in fresh:
        message = arrival.message
        if isinstance(message, StepReport):
            by_server = set_to_server_clock(message, sender.clock_ahead)
            stream = record_outcomes(transaction, sender.run_id, stream, by_server, now)
            newest = None
            if state.is_current:
                newest = (message.step, message.control_version)
            for alert in message.alerts:
                if alert.kind == "overshoot" and state.is_current:
                    revert_harmful(transaction, sender.run_id, alert, REVERT_WITHIN_SECONDS, now)
        elif isinstance(message, RunFinished):
            message = set_to_server_clock(message, sender.clock_ahead)
            stream = record_outcomes(transaction, sender.run_id, stream, message, now)
            if state.is_current:
                runs.finish(connection, stream.run_key, message)
                close_open_controls(transaction, sender.run_id, stream.run_key, now)
    last_position = state.last_position + len(fresh)
    return stream, runs.advanced(
        stream.run_key, last_position=last_position, now=now, newest=newest
    )
