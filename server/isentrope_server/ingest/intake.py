"""Push: records become rows, outcomes become control states, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.exc import DataError

from isentrope_server.control.outcomes import close_open_controls, take_words
from isentrope_server.errors import UnknownStream
from isentrope_server.ingest.arrivals import Sorted
from isentrope_server.ingest.series_limit import SeriesLimit
from isentrope_server.store import layouts, quarantine, records, runs, streams
from isentrope_server.store.database import in_a_line
from isentrope_server.store.events import RunChanged, StepStored
from isentrope_server.store.layouts import Layout
from isentrope_server.store.quarantine import Refused
from isentrope_server.store.records import Arrival
from isentrope_server.store.round_trips import Change, make_together
from isentrope_server.store.streams import Standing, Stream
from isentrope_server.store.writer import Transaction
from isentrope_wire.messages import Quarantined, Record, RunFinished, StepReport

_NO_LAYOUT = Layout(())
_TAKEN_ONE_BY_ONE = 20
"""Each costs as much as a push, and other runs wait meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The answer to a Push; true once the transaction is committed."""

    acked_through: int
    quarantined: tuple[Quarantined, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who pushes: one rank of one incarnation of a run."""

    run_id: str
    incarnation: str
    rank: int


def take_in(transaction: Transaction, sender: Sender, sorted_out: Sorted, series: SeriesLimit, now: float) -> Receipt:
    """Store what is new, pass over what is known, keep aside what can't be used.

    Raises:
        UnknownStream: the sender never said Hello to this database.
    """
    connection = transaction.connection
    layout = next((arrival.packed.layout for arrival in sorted_out.arrivals if arrival.packed is not None), _NO_LAYOUT)
    standing = streams.standing(connection, sender.run_id, sender.incarnation, sender.rank, layouts.digest(layout))
    if standing is None:
        raise UnknownStream(
            f"Run {sender.run_id}, incarnation {sender.incarnation}, rank {sender.rank} is not known here; say Hello first."
        )
    stream = standing.stream
    fresh, contradicting = _compare_with_stored(transaction, standing, sorted_out.arrivals)
    fresh = series.within(connection, sender.run_id, stream, fresh)
    refused = [*sorted_out.refused, *contradicting]
    quarantine.keep(connection, stream.key, refused, now)
    for item in refused:
        if item.told is not None:
            stream = take_words(transaction, sender.run_id, stream, item.told, now)
    known_layouts = {} if standing.layout_key is None else {layout: standing.layout_key}
    stream, changes = _store(transaction, sender, standing, stream, known_layouts, fresh, now)
    # Those refused too: not all of them are kept, and what was refused once needn't be sent again.
    come = sorted({*(arrival.seq for arrival in fresh), *(quarantine.storable(r.record.seq) for r in refused)})
    acked_through = streams.contiguous_through(connection, stream, come, held_through=standing.held_through)
    reported = [arrival.message.step for arrival in fresh if isinstance(arrival.message, StepReport)]
    if reported and (stream.first_step is None or min(reported) < stream.first_step):
        runs.raise_timeline_version(connection, stream.run_key)
    changes.append(streams.advanced(stream, acked_through=acked_through, steps=reported, now=now))
    make_together(connection, changes)
    return Receipt(
        acked_through=acked_through,
        quarantined=tuple(Quarantined(seq=r.record.seq, code=r.code, message=r.message) for r in refused),
    )


def take_in_one_by_one(
    transaction: Transaction, sender: Sender, sorted_out: Sorted, series: SeriesLimit, now: float
) -> Receipt:
    """As `take_in`, for a push that holds something the database doesn't take: only that is kept aside.

    Raises:
        UnknownStream: the sender never said Hello to this database.
    """
    # Their words too may be what the database doesn't take.
    wordless = [replace(refused, told=None) for refused in sorted_out.refused]
    receipts = [take_in(transaction, sender, Sorted(refused=wordless), series, now)]
    for arrival in sorted_out.arrivals:
        told = len(transaction.events)
        try:
            with transaction.connection.begin_nested():
                receipts.append(take_in(transaction, sender, Sorted(arrivals=[arrival]), series, now))
        except DataError as error:
            del transaction.events[told:]
            refused = Refused(record=_record(arrival), code="unstorable", message=in_a_line(error))
            receipts.append(take_in(transaction, sender, Sorted(refused=[refused]), series, now))
    return joined(receipts)


def in_pieces(sorted_out: Sorted) -> Iterator[Sorted]:
    """A push in parts small enough to be taken in one by one, in the same order; the first has all that was refused."""
    refused = sorted_out.refused
    for start in range(0, max(1, len(sorted_out.arrivals)), _TAKEN_ONE_BY_ONE):
        yield Sorted(arrivals=sorted_out.arrivals[start : start + _TAKEN_ONE_BY_ONE], refused=refused)
        refused = []


def joined(receipts: Sequence[Receipt]) -> Receipt:
    """One answer to a push that was taken in piece by piece."""
    return Receipt(
        acked_through=receipts[-1].acked_through,
        quarantined=tuple(item for receipt in receipts for item in receipt.quarantined),
    )


def _compare_with_stored(
    transaction: Transaction, standing: Standing, arrivals: Sequence[Arrival]
) -> tuple[list[Arrival], list[Refused]]:
    """New arrivals, and those whose key is taken by another payload; repeats are neither."""
    known = records.stored_hashes(
        transaction.connection,
        standing.stream.key,
        [arrival.seq for arrival in arrivals],
        acked_through=standing.stream.acked_through,
        held_through=standing.held_through,
    )
    fresh: list[Arrival] = []
    refused: list[Refused] = []
    for arrival in arrivals:
        if arrival.seq not in known:
            known[arrival.seq] = arrival.payload_hash
            fresh.append(arrival)
        elif known[arrival.seq] != arrival.payload_hash:
            refused.append(_contradiction(arrival))
    return fresh, refused


def _contradiction(arrival: Arrival) -> Refused:
    return Refused(
        record=_record(arrival),
        code="key_conflict",
        message=f"seq {arrival.seq} is already stored with another payload; the first one counts.",
    )


def _record(arrival: Arrival) -> Record:
    return Record(seq=arrival.seq, payload=arrival.payload, payload_hash=arrival.payload_hash)


def _store(
    transaction: Transaction,
    sender: Sender,
    standing: Standing,
    stream: Stream,
    known_layouts: Mapping[Layout, int],
    fresh: Sequence[Arrival],
    now: float,
) -> tuple[Stream, list[Change]]:
    """Returns: the stream, as it stands then, and the changes that are still to be made."""
    connection = transaction.connection
    positions, changes = records.append(
        connection,
        fresh,
        run_key=stream.run_key,
        stream_key=stream.key,
        after_position=standing.last_position,
        known_layouts=known_layouts,
        now=now,
    )
    newest: tuple[int, int] | None = None
    for position, arrival in zip(positions, fresh, strict=True):
        message = arrival.message
        if isinstance(message, StepReport):
            stream = take_words(transaction, sender.run_id, stream, message, now)
            transaction.announce(_step_event(sender, position, message))
            newest = (message.step, message.control_version) if standing.speaks else None
        elif isinstance(message, RunFinished):
            stream = take_words(transaction, sender.run_id, stream, message, now)
            if standing.speaks:
                runs.finish(connection, stream.run_key, message)
                close_open_controls(transaction, sender.run_id, stream.run_key, now)
                transaction.announce(RunChanged(run_id=sender.run_id))
    last_position = standing.last_position + len(fresh)
    changes.append(runs.advanced(stream.run_key, last_position=last_position, now=now, newest=newest))
    return stream, changes


def _step_event(sender: Sender, position: int, report: StepReport) -> StepStored:
    return StepStored(
        run_id=sender.run_id,
        position=position,
        step=report.step,
        recorded_at=report.recorded_at,
        control_version=report.control_version,
        rank=sender.rank,
        scalars=report.scalars,
    )
