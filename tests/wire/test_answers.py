"""Answers are read from JSON as they were written."""

from __future__ import annotations

import math

import pytest

from isentrope_wire.answers import Page, RunDetail, SeriesAnswer, Status, StepReport
from isentrope_wire.control import Hold
from isentrope_wire.control_answers import ControlVersion, ParameterDescription, State, WhatIfAnswer
from isentrope_wire.numbers import read

VERSION = {
    "version": 2,
    "state": "APPLIED",
    "method": "clip_v",
    "mu_low": 1,
    "mu_high": None,
    "scope": "negative",
    "parameters": {"max_fraction": 0.1},
    "hold": {"target_entropy": 0.5},
    "reason": "collapse",
    "author": "ada",
    "requested_at": 10.0,
    "requested_step": 4,
    "expires_at": None,
    "applied_step": 5,
    "applied_at": 12.5,
    "ended_at": 12.5,
    "code": "",
    "message": "",
    "predicted": None,
    "verdict": None,
}


def test_non_finite_numbers_come_from_text() -> None:
    columns = {"step": [1, 2, 3], "value": [1, "NaN", "-Infinity"], "min": None, "max": [2, 3, "Infinity"]}
    answer = read(SeriesAnswer, {"series": {"x": columns}, "cursor": "c", "reset": False})
    read_back = answer.series["x"]
    assert read_back.value[0] == 1.0
    assert math.isnan(read_back.value[1])
    assert (read_back.value[2], read_back.min, read_back.max) == (-math.inf, None, [2.0, 3.0, math.inf])


def test_nested_answers_are_dataclasses() -> None:
    run = {
        "id": "r",
        "name": "n",
        "project": "p",
        "status": "silent",
        "step": None,
        "planned_steps": 3,
        "created_at": 1,
        "last_report_at": None,
        "tags": ["a"],
        "config": {"deep": [1, {"x": "NaN"}]},
        "digest": None,
        "notes": "",
        "finished_at": None,
        "error": "",
        "world_size": 2,
        "probe_version": "0.1.0",
        "capabilities": ["method:clip_v", "hold"],
        "incarnations": 1,
        "control": VERSION | {"active": VERSION, "outcomes": [], "a field of tomorrow": 1},
    }
    detail = read(RunDetail, run)
    assert (detail.status, detail.methods, detail.config["deep"]) == (Status.SILENT, ["clip_v"], [1, {"x": "NaN"}])
    assert detail.control.active == read(ControlVersion, VERSION)


def test_page_holds_its_type() -> None:
    page = read(Page[ControlVersion], {"items": [VERSION], "next_cursor": "more"})
    (version,) = page.items
    assert (version.state, version.state.is_final, version.latency_seconds, page.next_cursor) == (
        State.APPLIED,
        True,
        2.5,
        "more",
    )
    assert version.control.held == Hold(target_entropy=0.5)
    assert version.control.parameters == {"max_fraction": 0.1}


def test_default_keeps_its_type() -> None:
    body = {"name": "ratio", "kind": "number", "minimum": 0, "minimum_excluded": True, "maximum": None, "choices": []}
    for default in (1, 0.5, "keep", None):
        described = read(ParameterDescription, body | {"default": default, "range": "", "sense": ""})
        assert (described.default, type(described.default)) == (default, type(default))
    assert described.minimum == 0.0


@pytest.mark.parametrize("kind", [RunDetail, StepReport, WhatIfAnswer])
def test_other_document_is_refused(kind: type[object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read(kind, {"error": {}})
