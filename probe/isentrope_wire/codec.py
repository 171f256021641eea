"""Messages as bytes and back: one byte for the kind, then MessagePack. The only file that knows the
bytes.

`_shape` makes what travels for a dataclass. Of what a report has many of, tokens, rollouts and
what-if sums, values alone travel, in the order of the fields, and columns of numbers are packed.
A reader ignores fields that it does not know.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from itertools import accumulate
from operator import sub
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from isentrope_wire import reports
from isentrope_wire.control import Control
from isentrope_wire.errors import CodecError
from isentrope_wire.numbers import Count, part_of
from isentrope_wire.what_if import EDGE_SET, BinSums, WhatIfSums

_T = TypeVar("_T")

JSON_NESTING = 32
"""How deep objects and lists may be nested in a run's configuration."""

_PARTS = 8191
"""A rollout's numbers are rounded to this fraction of the largest in their list: two bytes hold
each."""
_SMALLEST = 1e-300
"""Numbers of a rollout are 0 where the largest of them lies below it."""
_STATES: tuple[bool | None, ...] = (None, False, True)
"""`Rollout.kept`, as it is numbered in the bytes."""


def payload_hash(payload: bytes) -> bytes:
    """BLAKE2b-128 of the payload's bytes: it distinguishes a harmless repeat from two payloads
    under one key."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def encode_payload(message: reports.Payload) -> bytes:
    """One message, for the spool and the wire."""
    kind = type(message)
    fields = _WRITERS[kind](message)
    try:
        content = _ENCODER.encode(fields)
    except UnicodeEncodeError:  # of a file's name in an error, say
        plain = msgspec.to_builtins(fields, builtin_types=(bytes,), enc_hook=_write_plain)
        content = _ENCODER.encode(_replace_half_characters(plain))
    return bytes([_KINDS.index(kind) + 1]) + content


def _replace_half_characters(value: Any) -> Any:
    """The same plain value; `?` stands for half a character, of which there is no UTF-8."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        names = map(_replace_half_characters, value)
        return dict(zip(names, map(_replace_half_characters, value.values()), strict=True))
    if isinstance(value, list | tuple):
        return [*map(_replace_half_characters, value)]
    return value


def decode_payload(payload: bytes) -> reports.Payload:
    """Read one message back; CodecError: the bytes are no payload of this protocol version, or a
    field has a value that the dataclass can't have."""
    number = 0
    if payload:
        number = payload[0]
    if not 1 <= number <= len(_KINDS):
        raise CodecError(
            f"The payload is none of protocol version {reports.PROTOCOL_VERSION}; bring probe and"
            " server to one version, and deliver an older spool with the version that wrote it."
        )
    kind = _KINDS[number - 1]
    return _decode(_DECODERS[kind], payload[1:], _READERS[kind])


def record_of(seq: int, message: reports.Payload) -> reports.Record:
    """The record that carries `message` under `seq`."""
    payload = encode_payload(message)
    return reports.Record(seq=seq, payload=payload, payload_hash=payload_hash(payload))


def encode_control(snapshot: reports.ControlSnapshot) -> bytes:
    """The snapshot as the server sends it, as it lies in the control file and in a checkpoint, and
    as rank 0 broadcasts it."""
    return _ENCODER.encode(_write_snapshot(snapshot))


def decode_control(content: bytes) -> reports.ControlSnapshot:
    """Read `encode_control` back. A control that this version can't read comes as `unreadable`, so
    that the probe can reject it. CodecError: the bytes are no snapshot."""
    return _decode(_DECODERS[reports.ControlSnapshot], content, _receive_snapshot)


def encode_tokens(tokens: Sequence[reports.DrivingToken]) -> bytes:
    """Top tokens by themselves, for the server's store."""
    return _ENCODER.encode(_write_tokens(tokens))


def decode_tokens(packed: bytes) -> tuple[reports.DrivingToken, ...]:
    """Read `encode_tokens` back; CodecError: the bytes are none of this version."""
    return _decode(_TOKENS_DECODER, packed, _read_tokens)


def encode_rollouts(rollouts: Sequence[reports.Rollout]) -> bytes:
    """Rollouts by themselves, for the server's store."""
    return _ENCODER.encode([*map(_write_rollout, rollouts)])


def decode_rollouts(packed: bytes) -> tuple[reports.Rollout, ...]:
    """Read `encode_rollouts` back; CodecError: the bytes are none of this version."""
    return _decode(_ROLLOUTS_DECODER, packed, _read_rollouts)


def encode_what_if(sums: WhatIfSums) -> bytes:
    """What-if sums by themselves, for the server's store."""
    return _ENCODER.encode(_write_what_if(sums))


def decode_what_if(packed: bytes) -> WhatIfSums:
    """Read `encode_what_if` back; CodecError: the bytes are none of this version."""
    return _decode(_WHAT_IF_DECODER, packed, _read_what_if)


def write_json(value: Mapping[str, object]) -> str:
    """An object of a user's, as it travels."""
    return json.dumps(dict(value), sort_keys=True, separators=(",", ":"))


def is_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists are nested deeper than this: writing them as JSON would exceed the
    recursion limit."""
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(item, levels - 1) for item in items)


def _decode(decoder: msgspec.msgpack.Decoder[Any], content: bytes, read: Callable[[Any], _T]) -> _T:
    """What `read` makes of the decoded shape."""
    try:
        return read(decoder.decode(content))
    except CodecError:
        raise
    # A field that this version does not know may nest without an end.
    except (ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"The bytes can't be read: {error}") from error


def _write_plain(value: Any) -> object:
    """A text of a class of its own, or a number of numpy, as MessagePack has it."""
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "__index__"):
        return value.__index__()
    return float(value)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_write_plain)


def _shape(kind: type, *, is_array: bool = False, **special: Any) -> Any:
    """The record that travels for a dataclass: its fields, those in `special` of another type. What
    has its default is left out. As an array it has no names, and every field."""
    types = get_type_hints(kind, include_extras=True) | special
    described = [(field.name, types[field.name], _default(field)) for field in fields(kind)]
    return msgspec.defstruct(
        kind.__name__, described, array_like=is_array, kw_only=True, omit_defaults=True
    )


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return msgspec.field(default=field.default)
    if field.default_factory is not MISSING:
        return msgspec.field(default_factory=field.default_factory)
    return msgspec.field()


def _several(shape: Any) -> Any:
    """The type of a list of these shapes."""
    return tuple[shape, ...]


def _fill(shape: Any, value: object, **special: object) -> Any:
    """A record of this shape with the fields of a dataclass, and `special` in their place where
    given."""
    names = (name for name in shape.__struct_fields__ if name not in special)
    return shape(**{name: getattr(value, name) for name in names}, **special)


_Snapshot = _shape(reports.ControlSnapshot, control=str)
_Started = _shape(reports.RunStarted, config=str, initial_control=_Snapshot | None)
_Alert = _shape(reports.Alert, suggestion=str | None)


def _write_control(control: Control | None) -> str | None:
    if control is None:
        return None
    return write_json(control.to_document())


def _read_control(text: str | None) -> Control | None:
    if text is None:
        return None
    return Control.from_document(_read_json("A control", text))


def _write_snapshot(snapshot: reports.ControlSnapshot) -> Any:
    return _fill(_Snapshot, snapshot, control=_write_control(snapshot.control))


def _read_snapshot(shape: Any) -> reports.ControlSnapshot:
    return part_of(reports.ControlSnapshot, shape, control=_read_control(shape.control))


def _receive_snapshot(shape: Any) -> reports.ControlSnapshot:
    try:
        return _read_snapshot(shape)
    except ValueError as error:
        return part_of(reports.ControlSnapshot, shape, control=Control(), unreadable=str(error))


def _write_started(run: reports.RunStarted) -> Any:
    first = run.initial_control
    return _fill(
        _Started,
        run,
        config=write_json(run.config),
        initial_control=None if first is None else _write_snapshot(first),
    )


def _read_started(shape: Any) -> reports.RunStarted:
    first = shape.initial_control
    return part_of(
        reports.RunStarted,
        shape,
        config=_read_json("config", shape.config),
        initial_control=None if first is None else _read_snapshot(first),
    )


def _read_json(name: str, text: str) -> dict[str, object]:
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


_TOKENS = _several(_shape(reports.DrivingToken, is_array=True))


def _write_tokens(tokens: Sequence[reports.DrivingToken]) -> Any:
    return msgspec.convert(tokens, _TOKENS, from_attributes=True)


def _read_tokens(shapes: Sequence[Any]) -> tuple[reports.DrivingToken, ...]:
    return msgspec.convert(shapes, tuple[reports.DrivingToken, ...], from_attributes=True)


class _Rounded(msgspec.Struct, array_like=True):
    """Numbers of a rollout's tokens: largest * part / 8191. None, and what is not finite, is 0."""

    largest: float
    parts: bytes
    """Two bytes each."""

    @classmethod
    def write(cls, numbers: Sequence[float | None]) -> _Rounded:
        finite = [
            0.0 if number is None or not math.isfinite(number) else number for number in numbers
        ]
        largest = max(map(abs, finite), default=0.0)
        scale = 0.0
        if largest > _SMALLEST:
            scale = _PARTS / largest
        return cls(largest, _column("h", [round(scale * number) for number in finite]).tobytes())

    def read(self, states: bytes) -> tuple[float | None, ...]:
        """With None where the mask leaves the token out."""
        parts = _column("h", self.parts)
        if len(parts) != len(states):
            raise CodecError(
                f"A rollout has as many numbers as states, got {len(parts)} and {len(states)}."
            )
        scale = self.largest / _PARTS
        numbers = [scale * part for part in parts]
        if 0 not in states:
            return tuple(numbers)
        return tuple(
            number if state else None for number, state in zip(numbers, states, strict=True)
        )


_ROUNDED = ("logprobs", "vocab_centered_scores", "contributions", "influences")
_Rollout = _shape(
    reports.Rollout, is_array=True, kept=bytes, **dict.fromkeys(_ROUNDED, _Rounded | None)
)


def _write_rollout(rollout: reports.Rollout) -> Any:
    numbers: dict[str, _Rounded | None] = {
        name: _Rounded.write(getattr(rollout, name)) for name in _ROUNDED
    }
    if not rollout.influences:
        numbers["influences"] = None
    return _fill(_Rollout, rollout, kept=bytes(map(_STATES.index, rollout.kept)), **numbers)


def _read_rollouts(shapes: Sequence[Any]) -> tuple[reports.Rollout, ...]:
    return tuple(map(_read_rollout, shapes))


def _read_rollout(shape: Any) -> reports.Rollout:
    states = shape.kept
    if len(shape.texts) != len(states):
        raise CodecError(
            f"A rollout has as many states as texts, got {len(states)} and {len(shape.texts)}."
        )
    if max(states, default=0) >= len(_STATES):
        raise CodecError(f"A token of a rollout has a state from 0 to 2, got {max(states)}.")
    columns = {name: getattr(shape, name) for name in _ROUNDED}
    return part_of(
        reports.Rollout,
        shape,
        kept=tuple([_STATES[state] for state in states]),
        **{name: column.read(states) if column else () for name, column in columns.items()},
    )


class _Bins(msgspec.Struct, array_like=True):
    """`BinSums`: from one cell to the next, beginning at cell -1, and sums as float32."""

    cell_steps: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]
    counts: tuple[Count, ...]
    change_sums: bytes

    @classmethod
    def write(cls, bins: BinSums) -> _Bins:
        steps = tuple(map(sub, bins.cells, (-1, *bins.cells)))
        return cls(steps, bins.counts, _column("f", bins.change_sums).tobytes())

    def read(self) -> BinSums:
        cells = tuple(accumulate(self.cell_steps, initial=-1))[1:]
        return BinSums(cells, self.counts, tuple(_column("f", self.change_sums)))


class _WhatIf(msgspec.Struct, array_like=True):
    edge_set: int
    """Which list of bin edges the sums were counted over."""
    tokens: Count
    change_sum: float
    by_method: dict[str, _Bins]


def _write_what_if(sums: WhatIfSums) -> _WhatIf:
    by_method = {method: _Bins.write(bins) for method, bins in sums.by_method.items()}
    return _WhatIf(EDGE_SET, sums.tokens, sums.change_sum, by_method)


def _read_what_if(shape: _WhatIf) -> WhatIfSums:
    if shape.edge_set != EDGE_SET:
        raise CodecError(
            f"What-if sums over the bin edges of set {EDGE_SET} can be read, got set"
            f" {shape.edge_set}; upgrade the server before the probe."
        )
    by_method = {method: bins.read() for method, bins in shape.by_method.items()}
    return WhatIfSums(tokens=shape.tokens, change_sum=shape.change_sum, by_method=by_method)


def _column(code: str, numbers: Sequence[float] | bytes) -> array[Any]:
    """Numbers as they are packed, or read from it: the lowest byte first; `code` as `array` has it.
    ValueError: the bytes are no whole number of them."""
    column = array(code, numbers)
    if sys.byteorder == "big":
        column.byteswap()
    return column


_Report = _shape(
    reports.StepReport,
    what_if=_WhatIf | None,
    tokens=_TOKENS,
    rollouts=_several(_Rollout),
    alerts=_several(_Alert),
)


def _write_report(report: reports.StepReport) -> Any:
    return _fill(
        _Report,
        report,
        what_if=None if report.what_if is None else _write_what_if(report.what_if),
        tokens=_write_tokens(report.tokens),
        rollouts=tuple(map(_write_rollout, report.rollouts)),
        alerts=tuple(
            _fill(_Alert, alert, suggestion=_write_control(alert.suggestion))
            for alert in report.alerts
        ),
    )


def _read_report(shape: Any) -> reports.StepReport:
    return part_of(
        reports.StepReport,
        shape,
        what_if=None if shape.what_if is None else _read_what_if(shape.what_if),
        tokens=_read_tokens(shape.tokens),
        rollouts=_read_rollouts(shape.rollouts),
        alerts=tuple(
            part_of(reports.Alert, alert, suggestion=_read_control(alert.suggestion))
            for alert in shape.alerts
        ),
    )


def _keep(message: Any) -> Any:
    """A message that travels as it is."""
    return message


_KINDS: tuple[type[reports.Payload], ...] = (
    reports.RunStarted,
    reports.StepReport,
    reports.RunFinished,
    reports.Gap,
)
"""By the first byte, from 1."""
_WRITERS: dict[type, Callable[[Any], Any]] = {
    reports.RunStarted: _write_started,
    reports.StepReport: _write_report,
    reports.RunFinished: _keep,
    reports.Gap: _keep,
}
_READERS: dict[type, Callable[[Any], reports.Payload]] = {
    reports.RunStarted: _read_started,
    reports.StepReport: _read_report,
    reports.RunFinished: _keep,
    reports.Gap: _keep,
}
SHAPES: dict[type, Any] = {
    reports.RunStarted: _Started,
    reports.StepReport: _Report,
    reports.RunFinished: reports.RunFinished,
    reports.Gap: reports.Gap,
    reports.ControlSnapshot: _Snapshot,
}
"""What travels for each message."""
_DECODERS = {kind: msgspec.msgpack.Decoder(shape) for kind, shape in SHAPES.items()}
_TOKENS_DECODER = msgspec.msgpack.Decoder(_TOKENS)
_ROLLOUTS_DECODER = msgspec.msgpack.Decoder(_several(_Rollout))
_WHAT_IF_DECODER = msgspec.msgpack.Decoder(_WhatIf)
