"""How many examples a test tries, and protobuf messages with any values their fields can hold."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from isentrope_wire.v1 import telemetry_pb2 as pb

_HARMLESS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def few_and_many(few: int, many: int) -> pytest.MarkDecorator:
    """Runs the test with a few examples, and in the full suite once more with many.

    Args:
        few: Examples in every run: the same ones each time, so that a failure is everybody's.
        many: Examples in the full suite: other ones each time.
    """
    both = settings(deadline=None, database=None, suppress_health_check=_HARMLESS)
    same = settings(
        both,
        max_examples=few,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
    slow = (pytest.mark.slow, pytest.mark.timeout(600))
    others = pytest.param(settings(both, max_examples=many), id="many", marks=slow)
    return pytest.mark.parametrize("examples", [pytest.param(same, id="few"), others])


_TEXTS = st.one_of(
    st.sampled_from(
        [
            "",
            "r",
            "a/b",
            "../..",
            "\0",
            "e\u0301",
            "<script>",
            "{}",
            "[1]",
            '{"a":' * 2000,
            "clip_v",
            "APPLIED",
            "NaN",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
_DOUBLES = st.one_of(
    st.sampled_from(
        [0.0, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 2.0**53 + 2]
    ),
    st.floats(),
)
_NUMBERS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_DOUBLE: _DOUBLES,
    FieldDescriptor.TYPE_FLOAT: st.floats(width=32),
    FieldDescriptor.TYPE_UINT64: st.one_of(
        st.sampled_from([0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]), st.integers(0, 50)
    ),
    FieldDescriptor.TYPE_UINT32: st.one_of(
        st.sampled_from([0, 1, 2**31, 2**32 - 1]), st.integers(0, 50)
    ),
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
    """Any message of this kind; some fields are absent."""
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
    chosen = {
        oneof.name: draw(st.sampled_from([field.name for field in oneof.fields]))
        for oneof in descriptor.oneofs
    }
    for field in descriptor.fields:
        oneof = field.containing_oneof
        absent = (
            chosen[oneof.name] != field.name if oneof is not None else draw(st.integers(0, 3)) == 0
        )
        if not absent:
            _fill_field(draw, message, field)


def _fill_field(draw: st.DrawFn, message: Any, field: FieldDescriptor) -> None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        entries = draw(
            st.dictionaries(
                _value(inner.fields_by_name["key"]),
                _value(inner.fields_by_name["value"]),
                max_size=_FEW,
            )
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
    if field.message_type is None:
        items.extend(draw(st.lists(_value(field), max_size=_FEW)))
        return
    for _ in range(draw(st.integers(0, _FEW))):
        _fill(draw, items.add(), field.message_type)


def _value(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    return _NUMBERS[field.type]
