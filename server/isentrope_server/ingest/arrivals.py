"""Wire records -> what can be stored and what must be kept aside. Touches no database."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from isentrope_server.ingest.report_limits import OUTCOMES, excess
from isentrope_server.store.column_types import names_as_stored
from isentrope_server.store.quarantine import Refused
from isentrope_server.store.records import Arrival
from isentrope_server.store.tables import LARGEST_INTEGER
from isentrope_wire.codec import decode_payload, payload_hash
from isentrope_wire.errors import CodecError
from isentrope_wire.messages import Gap, Payload, Record, RunFinished, StepReport
from isentrope_wire.run_limits import ERROR_CHARACTERS, NAME_CHARACTERS, cut


@dataclass(frozen=True, slots=True)
class Sorted:
    """One push, taken apart."""

    arrivals: list[Arrival] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


def sort_out(records: Iterable[Record]) -> Sorted:
    """Check hashes and decode payloads. What can't be used is refused with its reason, never dropped."""
    result = Sorted()
    for record in sorted(records, key=lambda record: record.seq):
        try:
            result.arrivals.append(_read(record))
        except _Unusable as error:
            told = _words(error.payload)
            result.refused.append(Refused(record=record, code=error.code, message=str(error), told=told))
    return result


class _Unusable(CodecError):
    def __init__(self, code: str, message: str, payload: Payload | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.payload = payload
        """What it holds, where it can be read."""


def _read(record: Record) -> Arrival:
    if not 1 <= record.seq <= LARGEST_INTEGER:
        raise _Unusable("bad_seq", f"A record's seq counts from 1, got {record.seq}.")
    if payload_hash(record.payload) != record.payload_hash:
        raise _Unusable("hash_mismatch", f"The payload of seq {record.seq} is not the one its hash was taken of.")
    try:
        message = decode_payload(record.payload)
    except CodecError as error:
        raise _Unusable("undecodable", str(error)) from error
    if max(_counted(message), default=0) > LARGEST_INTEGER:
        raise _Unusable(
            "out_of_range", f"Steps, versions and counts are less than 2^63; seq {record.seq} holds more.", message
        )
    names = _names(message)
    if max(map(len, names), default=0) > NAME_CHARACTERS:
        raise _Unusable(
            "name_too_long",
            f"Names have at most {NAME_CHARACTERS} characters; one in seq {record.seq} has more.",
            message,
        )
    too_much = excess(message) if isinstance(message, StepReport) else ""
    if too_much:
        raise _Unusable("too_much", f"The report of seq {record.seq} holds {too_much}.", message)
    if not all(map(math.isfinite, _times(message))):
        raise _Unusable(
            "bad_time", f"Times are seconds since the Unix epoch; one in seq {record.seq} is not finite.", message
        )
    # A gap beyond its own seq would acknowledge, and so delete, records that are still on their way.
    if isinstance(message, Gap) and not 1 <= message.first_seq <= message.last_seq <= record.seq:
        raise _Unusable(
            "bad_gap",
            f"A gap goes from a seq to a later one, at most its own, got {message.first_seq}..{message.last_seq} "
            f"in seq {record.seq}.",
        )
    if "\0" in "".join(names):
        message = _with_storable_names(message)
    if isinstance(message, RunFinished):
        message = replace(message, error=cut(message.error, ERROR_CHARACTERS))
    return Arrival(seq=record.seq, payload=record.payload, payload_hash=record.payload_hash, message=message)


def _words(message: Payload | None) -> StepReport | RunFinished | None:
    """A message that is refused, if what it says of controls can be stored: how a control ended must not be lost."""
    if not isinstance(message, StepReport | RunFinished) or len(message.outcomes) > OUTCOMES:
        return None
    numbers = [number for outcome in message.outcomes for number in (outcome.version, outcome.step or 0)]
    if isinstance(message, StepReport):
        numbers += [message.control_version, message.step]
    storable = max(numbers, default=0) <= LARGEST_INTEGER and all(map(math.isfinite, (o.at for o in message.outcomes)))
    return message if storable else None


def _with_storable_names(message: Payload) -> Payload:
    """The same message; no name of a number in it has a NUL, which no text column keeps."""
    if not isinstance(message, StepReport):
        return message
    # Of histograms that share a name the last one counts, before anything is renamed.
    last = {histogram.name: histogram for histogram in message.histograms}
    return replace(
        message,
        scalars=dict(zip(names_as_stored(list(message.scalars)), message.scalars.values(), strict=True)),
        histograms=tuple(
            replace(histogram, name=name)
            for name, histogram in zip(names_as_stored(list(last)), last.values(), strict=True)
        ),
    )


def _counted(message: Payload) -> list[int]:
    counted: list[int] = []
    if isinstance(message, StepReport):
        counted += [message.step, message.control_version, *[histogram.not_finite for histogram in message.histograms]]
    if isinstance(message, StepReport | RunFinished):
        for outcome in message.outcomes:
            counted += [outcome.version, outcome.step or 0]
    return counted


def _names(message: Payload) -> list[str]:
    if not isinstance(message, StepReport):
        return []
    return [*message.scalars, *[histogram.name for histogram in message.histograms]]


def _times(message: Payload) -> list[float]:
    times = [outcome.at for outcome in message.outcomes] if isinstance(message, StepReport | RunFinished) else []
    if isinstance(message, StepReport):
        times.append(message.recorded_at)
    if isinstance(message, RunFinished):
        times.append(message.finished_at)
    return times
