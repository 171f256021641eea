"""Dataclass <-> protobuf. The only file that knows both sides.

A field is the same on both sides, or its type says how it travels: None as an absent field, a
StrEnum as text, a dataclass as its message. `_FORMS` lists the messages, with what else differs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from itertools import accumulate
from operator import attrgetter, sub
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, Message

from isentrope_wire import reports
from isentrope_wire.control import Control
from isentrope_wire.errors import CodecError
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.what_if import EDGE_SET, BinSums, WhatIfSums

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)

JSON_NESTING = 32
"""How deep objects and lists may be nested in a run's configuration."""

_PARTS = 8191
"""A rollout's numbers are rounded to this fraction of the largest in their list: two bytes hold
each."""
_STATES: tuple[bool | None, ...] = (None, False, True)
"""`Rollout.kept`, as it is numbered on the wire."""
_SMALLEST_FLOAT, _LARGEST_FLOAT = 1e-37, 3e38
"""That a float of the wire holds in full precision."""


def payload_hash(payload: bytes) -> bytes:
    """BLAKE2b-128 of the payload's bytes: it distinguishes a harmless repeat from two payloads
    under one key."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def encode_payload(message: reports.Payload) -> bytes:
    """Serialise one message for the spool and the wire."""
    return pb.Payload(**{_BODIES[type(message)]: to_pb(message)}).SerializeToString(
        deterministic=True
    )


def decode_payload(payload: bytes) -> reports.Payload:
    """Read one message back; CodecError: the bytes are no payload of this protocol version."""
    envelope = _parsed(pb.Payload, payload)
    body = envelope.WhichOneof("body")
    for kind, name in _BODIES.items():
        if name == body:
            return from_pb(kind, getattr(envelope, name))
    raise CodecError(
        "The payload holds no message this version knows; upgrade the server before the probe."
    )


_BODIES: dict[type[reports.Payload], str] = {
    reports.RunStarted: "run_started",
    reports.StepReport: "step_report",
    reports.RunFinished: "run_finished",
    reports.Gap: "gap",
}


def record_of(seq: int, message: reports.Payload) -> reports.Record:
    """The record that carries `message` under `seq`."""
    payload = encode_payload(message)
    return reports.Record(seq=seq, payload=payload, payload_hash=payload_hash(payload))


def to_pb(value: object) -> Any:
    """The protobuf message of one of the dataclasses in `isentrope_wire.reports`."""
    return _FORMS[type(value)].write(value)


def from_pb(kind: type[_T], message: Message) -> _T:
    """Read `to_pb` back; CodecError: a field has a value that the dataclass can't have, such as a
    control that no probe could apply."""
    try:
        found: _T = _FORMS[kind].read(message)
    except CodecError:
        raise
    except ValueError as error:
        raise CodecError(f"{kind.__name__} can't be read: {error}") from error
    return found


def encode_control(snapshot: reports.ControlSnapshot) -> bytes:
    """The snapshot as it lies in the control file and in a checkpoint, and as rank 0 broadcasts
    it."""
    return _bytes(to_pb(snapshot))


def decode_control(content: bytes) -> reports.ControlSnapshot:
    """Read `encode_control` back, see `received_control`; CodecError: the bytes are no snapshot of
    this protocol version."""
    return received_control(_parsed(pb.ControlSnapshot, content))


def received_control(snapshot: pb.ControlSnapshot) -> reports.ControlSnapshot:
    """Read a snapshot on its way to a probe: one it can't read comes as `unreadable`, so that the
    probe can reject it."""
    try:
        return from_pb(reports.ControlSnapshot, snapshot)
    except CodecError as error:
        return reports.ControlSnapshot(
            version=snapshot.version,
            control=Control(),
            author=snapshot.author,
            requested_at=snapshot.requested_at,
            unreadable=str(error.__cause__ or error),
        )


def encode_tokens(tokens: Sequence[reports.DrivingToken]) -> bytes:
    """Top tokens by themselves, for the server's store."""
    return _bytes(pb.DrivingTokens(tokens=map(to_pb, tokens)))


def decode_tokens(packed: bytes) -> tuple[reports.DrivingToken, ...]:
    """Read `encode_tokens` back; CodecError: the bytes are none of this version. Likewise below."""
    return tuple(
        from_pb(reports.DrivingToken, token) for token in _parsed(pb.DrivingTokens, packed).tokens
    )


def encode_rollouts(rollouts: Sequence[reports.Rollout]) -> bytes:
    """Rollouts by themselves, for the server's store."""
    return _bytes(pb.Rollouts(rollouts=map(to_pb, rollouts)))


def decode_rollouts(packed: bytes) -> tuple[reports.Rollout, ...]:
    return tuple(
        from_pb(reports.Rollout, rollout) for rollout in _parsed(pb.Rollouts, packed).rollouts
    )


def encode_what_if(sums: WhatIfSums) -> bytes:
    """What-if sums by themselves, for the server's store."""
    return _bytes(to_pb(sums))


def decode_what_if(packed: bytes) -> WhatIfSums:
    return from_pb(WhatIfSums, _parsed(pb.WhatIfSums, packed))


def _bytes(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _parsed(kind: type[_M], content: bytes) -> _M:
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise CodecError(
            f"Expected a serialised {kind.DESCRIPTOR.full_name}, got {len(content)} other bytes."
        ) from error


class _Field(NamedTuple):
    """How one field of a dataclass travels."""

    name: str
    """Name in the message."""
    write: Callable[[Any], Any] | None = None
    """The message's value, of the dataclass's. None: the same."""
    read: Callable[[Any], Any] | None = None
    """The dataclass's value, of the whole message. None: the message's."""


class _Form:
    """A dataclass and its message."""

    def __init__(self, kind: type, message: type[Message], **special: _Field) -> None:
        """`special` has the fields whose types do not say how they travel."""
        self._kind, self._message = kind, message
        hints = get_type_hints(kind)
        found = {
            field.name: special.get(field.name) or _field(field.name, hints[field.name])
            for field in fields(kind)
        }
        self._written = [(name, field.name, field.write) for name, field in found.items()]
        self._read = [(name, field.read) for name, field in found.items()]

    def write(self, value: object) -> Message:
        return self._message(
            **{
                to: getattr(value, name) if write is None else write(getattr(value, name))
                for name, to, write in self._written
            }
        )

    def read(self, message: Message) -> Any:
        return self._kind(
            **{
                name: getattr(message, name) if read is None else read(message)
                for name, read in self._read
            }
        )


def _field(name: str, hint: Any) -> _Field:
    """How a field of this type travels."""
    origin, arguments = get_origin(hint), get_args(hint)
    value_of = attrgetter(name)
    form = _FORMS.get(arguments[0] if arguments else hint)
    if type(None) in arguments and form is None:
        return _Field(
            name, None, lambda message: value_of(message) if message.HasField(name) else None
        )
    if origin is tuple and form is None:
        # A slice is quicker than the iterator.
        return _Field(name, None, lambda message: tuple(value_of(message)[:]))
    if origin is Mapping:
        return _Field(name, None, lambda message: _dictionary(value_of(message)))
    if form is None:
        is_word = isinstance(hint, type) and issubclass(hint, StrEnum)
        return (
            _Field(name, str, lambda message: _member(hint, value_of(message)))
            if is_word
            else _Field(name)
        )
    write, read = form.write, form.read
    if type(None) in arguments:
        return _Field(
            name,
            lambda value: None if value is None else write(value),
            lambda message: read(value_of(message)) if message.HasField(name) else None,
        )
    if origin is tuple:
        return _Field(
            name,
            lambda values: [*map(write, values)],
            lambda message: tuple(map(read, value_of(message))),
        )
    return _Field(name, write, lambda message: read(value_of(message)))


def _dictionary(values: Mapping[str, Any]) -> dict[str, Any]:
    # Quicker than the shorter `dict(values)`.
    return {name: values[name] for name in values}


def _member(kind: type[StrEnum], text: str) -> StrEnum:
    try:
        return kind(text)
    except ValueError:
        raise CodecError(
            f"{kind.__name__} is one of {', '.join(kind)}; got {text!r:.80}."
        ) from None


def _json(name: str) -> _Field:
    """An object of a user's, as text."""
    return _Field(
        name, _write_json, lambda message: _object_from_json(name, getattr(message, name))
    )


def _control(name: str) -> _Field:
    """A control as its document, as text; None as an absent field."""
    return _Field(
        name,
        lambda control: None if control is None else _write_json(control.to_document()),
        lambda message: (
            Control.from_document(_object_from_json(name, getattr(message, name)))
            if not message.DESCRIPTOR.fields_by_name[name].has_presence or message.HasField(name)
            else None
        ),
    )


def _write_json(value: Mapping[str, object]) -> str:
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"))


def _object_from_json(name: str, text: str) -> dict[str, object]:
    try:
        value = json.loads(text or "{}")
    # A number of thousands of digits, and text that only nests, fail in ways of their own.
    except (ValueError, RecursionError) as error:
        raise CodecError(f"{name} must be a JSON object, got {text[:80]!r}.") from error
    if not isinstance(value, dict):
        raise CodecError(f"{name} must be a JSON object, got {text[:80]!r}.")
    if is_deeper(value, JSON_NESTING):
        raise CodecError(
            f"{name} may nest objects and lists {JSON_NESTING} deep, got more: {text[:80]!r}."
        )
    return value


def is_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists are nested deeper than this: writing them as JSON would exceed the
    recursion limit."""
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(item, levels - 1) for item in items)


def _rounded(name: str) -> _Field:
    """Numbers of a rollout's tokens; None only where the mask leaves the token out."""
    return _Field(
        name,
        _rounded_to_pb,
        lambda message: _rounded_from_pb(getattr(message, name), message.states),
    )


def _rounded_to_pb(numbers: Sequence[float | None]) -> pb.RoundedNumbers:
    """What is not finite becomes 0."""
    known = [number if number is not None and math.isfinite(number) else 0.0 for number in numbers]
    largest = max(map(abs, known), default=0.0)
    if largest > _LARGEST_FLOAT:
        known, largest = (
            [max(-_LARGEST_FLOAT, min(one, _LARGEST_FLOAT)) for one in known],
            _LARGEST_FLOAT,
        )
    scale = _PARTS / largest if largest > _SMALLEST_FLOAT else 0.0
    return pb.RoundedNumbers(largest=largest, parts=[round(scale * number) for number in known])


def _rounded_from_pb(numbers: pb.RoundedNumbers, states: Sequence[int]) -> tuple[float | None, ...]:
    if len(numbers.parts) != len(states):
        raise CodecError(
            f"A rollout has as many numbers as states, got {len(numbers.parts)} and {len(states)}."
        )
    scale = numbers.largest / _PARTS
    return tuple(
        scale * part if state else None for part, state in zip(numbers.parts, states, strict=True)
    )


def _kept_from_pb(rollout: pb.Rollout) -> tuple[bool | None, ...]:
    if len(rollout.texts) != len(rollout.states):
        raise CodecError(
            f"A rollout has as many states as texts, got {len(rollout.states)} and"
            f" {len(rollout.texts)}."
        )
    if max(rollout.states, default=0) >= len(_STATES):
        raise CodecError(
            f"A token of a rollout has a state from 0 to 2, got {max(rollout.states)}."
        )
    return tuple(_STATES[state] for state in rollout.states)


def _nested_field(name: str, kind: type, message: type[Message]) -> _Field:
    """A list that travels in a message of its own, where it is not empty."""
    read = _FORMS[kind].read
    return _Field(
        name,
        lambda values: message(**{name: map(to_pb, values)}) if values else None,
        lambda report: tuple(map(read, getattr(getattr(report, name), name))),
    )


def _bins_of(method: str, bins: BinSums) -> Any:
    message = to_pb(bins)
    message.method = method
    return message


class _WhatIfForm(_Form):
    """What-if sums, which name the bin edges that they were counted over."""

    def write(self, value: object) -> Message:
        message = super().write(value)
        message.edge_set = EDGE_SET  # type: ignore[attr-defined]
        return message

    def read(self, message: Any) -> Any:
        if message.edge_set != EDGE_SET:
            raise CodecError(
                f"What-if sums over the bin edges of set {EDGE_SET} can be read, got set"
                f" {message.edge_set}; upgrade the server before the probe."
            )
        return super().read(message)


_FORMS: dict[type, _Form] = {}


def _travels(
    kind: type, message: type[Message], /, form: type[_Form] = _Form, **special: _Field
) -> None:
    _FORMS[kind] = form(kind, message, **special)


# Each after those that it holds.
_travels(reports.Record, pb.Record)
_travels(reports.Gap, pb.Gap)
_travels(reports.ControlOutcome, pb.ControlOutcome)
_travels(reports.RunFinished, pb.RunFinished)
_travels(reports.ControlSnapshot, pb.ControlSnapshot, control=_control("document_json"))
_travels(reports.RunStarted, pb.RunStarted, config=_json("config_json"))
_travels(reports.ScoreHistogram, pb.ScoreHistogram)
_travels(reports.DrivingToken, pb.DrivingToken)
_travels(
    reports.Rollout,
    pb.Rollout,
    logprobs=_rounded("logprobs"),
    vocab_centered_scores=_rounded("vocab_centered_scores"),
    contributions=_rounded("contributions"),
    influences=_Field(
        "influences",
        lambda numbers: _rounded_to_pb(numbers) if numbers else None,
        lambda rollout: (
            _rounded_from_pb(rollout.influences, rollout.states)
            if rollout.HasField("influences")
            else ()
        ),
    ),
    kept=_Field("states", lambda kept: [*map(_STATES.index, kept)], _kept_from_pb),
)
_travels(
    BinSums,
    pb.BinSums,
    cells=_Field(
        "cell_steps",
        lambda cells: [*map(sub, cells, (-1, *cells))],
        lambda sums: tuple(steps - 1 for steps in accumulate(sums.cell_steps)),
    ),
)
_travels(
    WhatIfSums,
    pb.WhatIfSums,
    form=_WhatIfForm,
    by_method=_Field(
        "by_method",
        lambda by_method: [_bins_of(method, bins) for method, bins in by_method.items()],
        lambda sums: {bins.method: _FORMS[BinSums].read(bins) for bins in sums.by_method},
    ),
)
_travels(reports.AlertCause, pb.AlertCause)
_travels(reports.Alert, pb.Alert, suggestion=_control("suggestion_json"))
_travels(
    reports.StepReport,
    pb.StepReport,
    tokens=_nested_field("tokens", reports.DrivingToken, pb.DrivingTokens),
    rollouts=_nested_field("rollouts", reports.Rollout, pb.Rollouts),
)
