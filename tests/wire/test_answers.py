"""Dataclasses become JSON and come back as they were."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from isentrope_wire import answers, control_answers, reports
from isentrope_wire.answers import Page, RunDetail, SeriesAnswer, StepReport
from isentrope_wire.control import Control, Hold, HoldSide
from isentrope_wire.control_answers import ControlVersion, State
from isentrope_wire.diagnosis.health import Diagnosis
from isentrope_wire.hold_action import Action
from isentrope_wire.hold_decision import HoldState
from isentrope_wire.numbers import Answer, document_of, read, read_exactly
from isentrope_wire.what_if import BinSums, WhatIfSums

BY_HAND: dict[Any, Any] = {
    float: math.inf,
    int: 3,
    str: "null",
    bool: True,
    NoneType: None,
    Any: {"deep": [1, {"x": "NaN"}, None]},
    WhatIfSums: WhatIfSums(
        tokens=2,
        change_sum=-math.inf,
        by_method={"clip_v": BinSums((1, 5), (1, 1), (0.5, math.inf))},
    ),
    Control: Control(method="clip_v", mu_low=1.0),
}


def example(hint: Any) -> Any:
    """A value of the type, with every optional field given and numbers that JSON lacks."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in BY_HAND:
        return BY_HAND[hint]
    if origin in (Union, UnionType):
        return example(str if str in arguments else arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin in (list, tuple):
        return origin([example(arguments[0])])
    if origin in (dict, Mapping):
        return {"name": example(arguments[1])}
    if is_dataclass(origin or hint):
        hints = get_type_hints(origin or hint)
        return hint(**{one.name: example(hints[one.name]) for one in fields(origin or hint)})
    assert issubclass(hint, StrEnum), hint
    return list(hint)[-1]


RECORDS = [
    kind
    for module in (answers, control_answers, reports)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, Answer)
    and is_dataclass(kind)
    and kind not in (Page, Control, BinSums)
]


@pytest.mark.parametrize(
    "kind", [*dict.fromkeys(RECORDS), Diagnosis, Action, HoldState], ids=lambda kind: kind.__name__
)
def test_every_record_survives_json(kind: type[Any]) -> None:
    record = example(kind)
    text = json.dumps(document_of(record), allow_nan=False)
    assert read(kind, json.loads(text)) == record
    assert read_exactly(kind, json.loads(text)) == record


@dataclass
class Learnt:
    """As a part of a checkpoint."""

    _mean: float = math.nan
    newest: deque[Hold] = field(default_factory=lambda: deque(maxlen=2))
    method: str = "none"


def test_what_is_learnt_survives_json_with_how_much_it_keeps() -> None:
    curve = Hold(target_curve=((1, "75%"), (9, 0.5)), side=HoldSide.RAISE)
    learnt = Learnt(0.1 + 0.2, deque([curve], maxlen=2), Control(method="clip_v", mu_low=1).method)
    again = read_exactly(Learnt, json.loads(json.dumps(document_of(learnt))))
    assert (again, again.newest.maxlen) == (learnt, 2)
    assert math.isnan(read_exactly(Learnt, document_of(Learnt()))._mean)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"_mean": None}, "float.*null.*_mean"),
        ({"_mean": "0.5"}, "all the fields of `Learnt`"),
        ({"more": 1}, "all the fields of `Learnt`"),
        ({"newest": [1]}, "newest"),
        ({"newest": {"at_most": 2, "values": [{"target_share": 75}]}}, "target_share.*75"),
    ],
)
def test_other_state_is_refused_with_the_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_exactly(Learnt, document_of(Learnt()) | change)


def test_non_finite_numbers_come_from_text() -> None:
    columns = {
        "step": [1, 2, 3],
        "value": [1, "NaN", "-Infinity"],
        "min": None,
        "max": [2, 3, "Infinity"],
    }
    answer = read(
        SeriesAnswer,
        {"series": {"x": columns}, "cursor": "c", "reset": False, "a field of tomorrow": 1},
    )
    read_back = answer.series["x"]
    assert read_back.value[0] == 1.0
    assert math.isnan(read_back.value[1])
    assert (read_back.value[2], read_back.min, read_back.max) == (
        -math.inf,
        None,
        [2.0, 3.0, math.inf],
    )


def test_page_holds_its_type() -> None:
    document = document_of(example(ControlVersion)) | {
        "method": "clip_v",
        "scope": "all",
        "parameters": {},
        "hold": None,
    }
    page = read(
        Page[ControlVersion],
        {"items": [document | {"applied_at": 5, "requested_at": 2.5}], "next_cursor": "more"},
    )
    (version,) = page.items
    assert (version.state, version.latency_seconds, page.next_cursor) == (
        list(State)[-1],
        2.5,
        "more",
    )


@pytest.mark.parametrize("kind", [RunDetail, StepReport])
def test_other_document_is_refused(kind: type[object]) -> None:
    with pytest.raises(ValueError, match=r"^(Expected|Object missing)"):
        read(kind, {"error": {}})
