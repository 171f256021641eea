"""Messages between dataclasses and bytes: nothing changes on the way, and what cannot be
read is refused."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isentrope_wire import codec
from isentrope_wire.control import Control, Hold, HoldSide, Scope
from isentrope_wire.errors import CodecError
from isentrope_wire.reports import PROTOCOL_VERSION, Payload, Rollout, RunFinished, StepReport
from isentrope_wire.v1 import telemetry_pb2 as pb
from isentrope_wire.what_if import CELLS, EDGE_SET, BinSums, WhatIfSums

text = st.text(max_size=8)
controls = st.builds(
    Control,
    method=st.sampled_from(["clip_b", "clip_v"]),
    mu_low=st.floats(0, 100),
    mu_high=st.none() | st.floats(0, 100),
    scope=st.sampled_from(Scope),
    parameters=st.fixed_dictionaries({}, optional={"max_fraction": st.floats(1e-9, 1) | st.none()}),
    hold=st.none()
    | st.builds(Hold, target_share=st.floats(0.1, 1), side=st.sampled_from(HoldSide)).map(
        Hold.to_document
    ),
    reason=text,
)
binned = st.dictionaries(
    st.integers(0, CELLS - 1),
    st.tuples(st.integers(0, 2**40), st.floats(width=32, allow_nan=False)),
    max_size=3,
)
GIVEN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**31 - 1),
    float: st.floats(allow_nan=False, width=32),
    Mapping[str, float | None]: st.dictionaries(
        text, st.floats(allow_nan=False), max_size=2
    ),  # None is of answers alone
    str: text,
    bool: st.booleans(),
    object: st.none() | st.booleans() | st.integers(-(2**40), 2**40) | text,
    Control: controls,
    BinSums: binned.map(
        lambda cells: BinSums(
            tuple(sorted(cells)),
            tuple(cells[c][0] for c in sorted(cells)),
            tuple(cells[c][1] for c in sorted(cells)),
        )
    ),
    tuple[Rollout, ...]: st.just(()),  # their numbers are rounded: see below
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type; of a dataclass with every field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in GIVEN:
        return GIVEN[hint]
    if type(None) in arguments:
        return st.none() | values(arguments[0])
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=1).map(tuple)
    if origin in (Mapping, dict):
        return st.dictionaries(text, values(arguments[1]), max_size=2)
    if issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    hints = get_type_hints(hint)
    return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})


messages = st.one_of(*map(values, get_args(Payload)))


@settings(max_examples=40)
@given(messages)
def test_message_survives_and_has_the_same_bytes_again(message: Payload) -> None:
    copy = codec.decode_payload(codec.encode_payload(message))
    assert copy == message
    assert codec.record_of(7, copy) == codec.record_of(7, message)
    if isinstance(message, StepReport) and message.what_if is not None:
        assert codec.decode_what_if(codec.encode_what_if(message.what_if)) == message.what_if


@pytest.mark.parametrize(
    "bits", [0x7FF8_0000_0000_0000, 0xFFF8_0000_0000_0007, 0xFFF0 << 48, 1 << 63, 1]
)
def test_number_keeps_its_bits(bits: int) -> None:
    """NaN with and without a payload, minus infinity, -0 and the smallest number."""
    packed = struct.pack("<Q", bits)
    (number,) = struct.unpack("<d", packed)
    sent = StepReport(step=1, recorded_at=0.0, scalars={"a": number})
    report = codec.decode_payload(codec.encode_payload(sent))
    assert isinstance(report, StepReport)
    assert list(report.scalars) == ["a"]
    assert struct.pack("<d", report.scalars["a"]) == packed


def test_half_a_character_travels_as_a_question_mark() -> None:
    """As Python has it of a file's name that is no UTF-8; the end of a run must arrive."""
    for error, whole in (("no '/data/\udcff'", "no '/data/?'"), ("字", "字")):
        ended = RunFinished(status="failed", finished_at=1.0, step=7, error=error)
        assert codec.decode_payload(codec.encode_payload(ended)) == replace(ended, error=whole)
    report = StepReport(step=1, recorded_at=0.0, labels={"cause": "a\ud800"})
    assert codec.decode_payload(codec.encode_payload(report)) == replace(
        report, labels={"cause": "a?"}
    )


def test_numbers_of_numpy_travel() -> None:
    report = StepReport(
        step=np.int64(1),  # type: ignore[arg-type]
        recorded_at=np.float32(2.5),  # type: ignore[arg-type]
        scalars={np.str_("a"): np.float64(0.1)},
    )
    read = codec.decode_payload(codec.encode_payload(report))
    assert read == StepReport(step=1, recorded_at=2.5, scalars={"a": 0.1})


def what_if(*bins: Any, edge_set: int = EDGE_SET) -> dict[str, Any]:
    return {"what_if": [edge_set, 1, 0.0, {"clip_b": bins or [[], [], b""]}]}


def alert(**fields: object) -> dict[str, Any]:
    return {
        "alerts": [
            {"kind": "collapse", "level": "act", "message": "m", "suggestion": None, **fields}
        ]
    }


def rollout(texts: list[str], states: bytes, parts: bytes = b"\1\0") -> dict[str, Any]:
    columns = [[1.0, parts]] * 3
    return {
        "rollouts": [
            [
                *(0, 0, 0, False, False, 0.0, None, 0.0, texts, *columns, states),
                *(None, {}, None, None),
            ]
        ]
    }


def payload_of(kind: int = 2, **fields: object) -> bytes:
    """A report's payload; one that is fit to be read has these fields."""
    return bytes([kind]) + msgspec.msgpack.encode({"step": 1, "recorded_at": 1.0} | fields)


STATES = b"\2"
FLOAT = bytes(4)
REPORTS: list[tuple[dict[str, Any], str]] = [
    ({"step": -1}, "step"),
    ({"step": "1"}, "step"),
    ({"scalars": {"a": "b"}}, "scalars"),
    ({"outcomes": [{"version": 1, "state": "MAYBE", "at": 1.0}]}, "MAYBE"),
    (alert(level="panic"), "panic"),
    (alert(suggestion='{"method": "clip_x"}'), "clip_x"),
    (alert(suggestion="{"), "JSON"),
    ({"tokens": [[0, -1]]}, "tokens"),
    (rollout(["a"], b""), "rollout"),
    (rollout([], STATES), "rollout"),
    (rollout(["a"], b"\3"), "rollout"),
    (rollout(["a"], STATES, b"\1\0\1\0"), "numbers"),
    (rollout(["a"], STATES, b"\1"), "multiple"),
    (what_if(edge_set=EDGE_SET + 1), str(EDGE_SET + 1)),
    (what_if([1, 1], [1, 1], FLOAT), r"2\D+2\D+1"),
    (what_if([0], [1], FLOAT), "what_if"),
    (what_if([CELLS + 1], [1], FLOAT), str(CELLS)),
]


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (b"", f"version {PROTOCOL_VERSION}"),
        (b"\n\x03abc", "version that wrote it"),
        (b"\2", "truncated"),
        (b"\2\x81\xa3new" + b"\x91" * 100_000, "recursion"),
        (b"\4\xdf\xff\xff\xff\xff", "truncated"),
        (payload_of(kind=1), "required"),
        *((payload_of(**fields), named) for fields, named in REPORTS),
    ],
)
def test_undecodable_payload_is_refused(payload: bytes, named: str) -> None:
    with pytest.raises(CodecError, match=named):
        codec.decode_payload(payload)


def test_a_field_that_is_not_known_is_ignored() -> None:
    assert codec.decode_payload(payload_of(newer={"a": [1]})) == StepReport(step=1, recorded_at=1.0)


TINY = 1e-300
numbers = st.floats(-1e30, 1e30)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    kept = draw(st.lists(st.sampled_from([None, False, True]), max_size=12))

    def column() -> tuple[float | None, ...]:
        return tuple(None if state is None else draw(numbers) for state in kept)

    return Rollout(
        rank=draw(st.integers(0, 2**31)),
        sequence=draw(st.none() | st.integers(0, 2**31)),
        first_position=draw(st.integers(0, 2**31)),
        cut_before=draw(st.booleans()),
        cut_after=draw(st.booleans()),
        advantage=draw(st.floats(width=32)),
        reward=draw(st.none() | st.floats(allow_nan=False, width=32)),
        absolute_contribution=draw(st.floats(0, width=32)),
        texts=tuple(draw(text) for _ in kept),
        logprobs=column(),
        vocab_centered_scores=column(),
        contributions=column(),
        influences=column() if draw(st.booleans()) else (),
        kept=tuple(kept),
    )


@given(rollouts())
def test_a_rollouts_numbers_are_rounded_to_a_small_part_of_the_largest(rollout: Rollout) -> None:
    (found,) = codec.decode_rollouts(codec.encode_rollouts([rollout]))
    columns = ("logprobs", "vocab_centered_scores", "contributions", "influences")
    for name in columns:
        sent, received = getattr(rollout, name), getattr(found, name)
        largest = max((abs(number) for number in sent if number is not None), default=0.0)
        expected = [n if n is None else pytest.approx(n, abs=largest / 8191 + TINY) for n in sent]
        assert list(received) == expected
    if not math.isnan(rollout.advantage):
        without: dict[str, Any] = dict.fromkeys(columns, ())
        assert replace(found, **without) == replace(rollout, **without)
    again = codec.encode_rollouts([found])
    assert codec.encode_rollouts(codec.decode_rollouts(again)) == again


ROLLOUT = Rollout(
    rank=0,
    sequence=None,
    first_position=0,
    cut_before=False,
    cut_after=False,
    advantage=0.0,
    reward=None,
    absolute_contribution=math.inf,
    texts=("a", "b", "c"),
    logprobs=(-1.0, -math.inf, math.nan),
    vocab_centered_scores=(0.0, 0.0, 0.0),
    contributions=(1e300, 1.0, 0.0),
    kept=(True, True, True),
)


def test_a_number_of_a_rollout_that_is_not_finite_is_0() -> None:
    (found,) = codec.decode_rollouts(codec.encode_rollouts([ROLLOUT]))
    assert (found.logprobs, found.vocab_centered_scores) == ((-1.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    assert list(found.contributions) == [pytest.approx(1e300), 0.0, 0.0]


SUMS = WhatIfSums(
    tokens=3, change_sum=0.5, by_method={"clip_b": BinSums((2, 9), (1, 2), (0.1, 0.4))}
)


def test_another_protocol_has_another_number() -> None:
    """Both sides compare numbers: under one number, messages must mean the same."""
    _, shapes = msgspec.json.schema_components(codec.SHAPES.values())
    described = json.dumps(without_words(shapes), sort_keys=True).encode()
    packed = codec.encode_rollouts([ROLLOUT]) + codec.encode_what_if(SUMS)
    digest = hashlib.sha256(pb.DESCRIPTOR.serialized_pb + described + packed).hexdigest()[:16]
    assert (PROTOCOL_VERSION, digest) == (8, "7cb6c09b64ebee0b"), (
        "a message changed: raise PROTOCOL_VERSION"
    )


def without_words(schema: Any) -> Any:
    """A JSON schema without its descriptions."""
    if isinstance(schema, dict):
        return {
            name: without_words(inner) for name, inner in schema.items() if name != "description"
        }
    return [*map(without_words, schema)] if isinstance(schema, list) else schema


def test_wire_imports_neither_torch_nor_grpc() -> None:
    code = (
        "import sys; import isentrope_wire.codec, isentrope_wire.environment; "
        "print([m for m in ('torch', 'grpc', 'fastapi', 'numpy') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
