"""Protobuf messages with any values their fields can hold, the most troublesome ones first."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from isentrope_wire.v1 import telemetry_pb2 as pb

_TEXTS = st.one_of(
    st.sampled_from(
        ["", "r", "a/b", "../..", "\0", "e\u0301", "<script>", "{}", "[1]", '{"a":' * 2000, "clip_v", "APPLIED", "NaN"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
_DOUBLES = st.one_of(
    st.sampled_from([0.0, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 2.0**53 + 2]),
    st.floats(),
)
_NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_DOUBLE: _DOUBLES,
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.TYPE_UINT64: st.one_of(
        st.sampled_from([0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]), st.integers(0, 50)
    ),
    FieldDescriptor.TYPE_UINT32: st.one_of(st.sampled_from([0, 1, 2**31, 2**32 - 1]), st.integers(0, 50)),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: _TEXTS,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=64),
}
_FEW = 3


@st.composite
def hostile(draw: st.DrawFn, kind: type[Message]) -> Message:
    """Any message of this kind; some fields are left out."""
    message = kind()
    _fill(draw, message, kind.DESCRIPTOR)
    return message


@st.composite
def hostile_payloads(draw: st.DrawFn) -> bytes:
    """What a record may carry: a payload of any values, or bytes that are none."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    return draw(hostile(pb.Payload)).SerializeToString()


def _fill(draw: st.DrawFn, message: Any, descriptor: Descriptor) -> None:
    chosen = {oneof.name: draw(st.sampled_from([field.name for field in oneof.fields])) for oneof in descriptor.oneofs}
    for field in descriptor.fields:
        oneof = field.containing_oneof
        left_out = chosen[oneof.name] != field.name if oneof is not None else draw(st.integers(0, 3)) == 0
        if not left_out:
            _fill_field(draw, message, field)


def _fill_field(draw: st.DrawFn, message: Any, field: FieldDescriptor) -> None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        entries = draw(
            st.dictionaries(_value(inner.fields_by_name["key"]), _value(inner.fields_by_name["value"]), max_size=_FEW)
        )
        getattr(message, field.name).update(entries)
    elif field.label == FieldDescriptor.LABEL_REPEATED:
        _repeat(draw, getattr(message, field.name), field)
    elif inner is not None:
        getattr(message, field.name).SetInParent()
        _fill(draw, getattr(message, field.name), inner)
    else:
        setattr(message, field.name, draw(_value(field)))


def _repeat(draw: st.DrawFn, items: Any, field: FieldDescriptor) -> None:
    count = draw(st.integers(0, _FEW))
    if field.message_type is None:
        items.extend(draw(st.lists(_value(field), max_size=_FEW)))
        return
    for _ in range(count):
        _fill(draw, items.add(), field.message_type)


def _value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    return _NUMBERS[field.type]
