"""How many examples a test tries, and payloads with any values their fields can hold."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from isentrope_wire.codec import SHAPES
from isentrope_wire.reports import Gap, RunFinished, RunStarted, StepReport

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
_INTEGERS = st.one_of(
    st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]), st.integers(0, 50)
)
_WRONG = st.one_of(
    st.none(), st.integers(-(2**63), 2**64 - 1), st.text(max_size=3), st.lists(st.none())
)
_FEW = 3
_KINDS: tuple[type, ...] = (RunStarted, StepReport, RunFinished, Gap)


def encoded(kind: type, document: object) -> bytes:
    """A payload of this kind that holds any document."""
    return bytes([1 + _KINDS.index(kind)]) + msgspec.msgpack.encode(document)


@st.composite
def hostile_payloads(draw: st.DrawFn, *kinds: type) -> bytes:
    """What a record may carry: a payload of any values, fields that are absent or of another type,
    or bytes that are none."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    kind = draw(st.sampled_from(kinds or _KINDS))
    is_broken = draw(st.integers(0, 5)) == 0
    return encoded(kind, draw(_documents(kind, is_broken)))


@cache
def _documents(kind: type, is_broken: bool) -> st.SearchStrategy[Any]:
    return _values(msgspec.inspect.type_info(SHAPES[kind]), is_broken)


def _values(kind: msgspec.inspect.Type, is_broken: bool) -> st.SearchStrategy[Any]:
    """Values of a type. Broken ones may lack fields that are required, or be of another type."""
    values = _values_of(kind, is_broken)
    return st.one_of(*[values] * 20, _WRONG) if is_broken else values


def _values_of(kind: Any, is_broken: bool) -> st.SearchStrategy[Any]:
    match kind:
        case msgspec.inspect.UnionType():
            return st.one_of(*(_values(inner, is_broken) for inner in kind.types))
        case msgspec.inspect.EnumType():
            return st.sampled_from([member.value for member in kind.cls])
        case msgspec.inspect.IntType() if not is_broken:
            least, beyond = kind.ge or 0, kind.lt or 2**64
            return _INTEGERS.filter(lambda number: least <= number < beyond)
        case msgspec.inspect.DictType():
            keys, values = _values(kind.key_type, False), _values(kind.value_type, is_broken)
            return st.dictionaries(keys, values, max_size=_FEW)
        case msgspec.inspect.VarTupleType():
            return st.lists(_values(kind.item_type, is_broken), max_size=_FEW)
        case msgspec.inspect.StructType() | msgspec.inspect.DataclassType():
            return _records(kind, is_broken)
    return _PLAIN[type(kind)]


@st.composite
def _records(draw: st.DrawFn, kind: Any, is_broken: bool) -> Any:
    is_array = isinstance(kind, msgspec.inspect.StructType) and kind.array_like
    record = {}
    for field in kind.fields:
        may_lack = not is_array and (is_broken or not field.required)
        if not may_lack or draw(st.booleans()):
            record[field.name] = draw(_values(field.type, is_broken))
    return list(record.values()) if is_array else record


_PLAIN: dict[type, st.SearchStrategy[Any]] = {
    msgspec.inspect.NoneType: st.none(),
    msgspec.inspect.BoolType: st.booleans(),
    msgspec.inspect.IntType: _INTEGERS,
    msgspec.inspect.FloatType: _DOUBLES,
    msgspec.inspect.StrType: _TEXTS,
    msgspec.inspect.BytesType: st.binary(max_size=12),
}
