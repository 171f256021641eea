"""Answers of the REST API made up for tests, with defaults for what a test does not look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from isentrope_wire.answers import (
    Gap,
    HistogramColumns,
    RunDetail,
    SeriesColumns,
    Status,
)
from isentrope_wire.control import Control
from isentrope_wire.control_answers import ControlVersion, RunControl, State


def columns(
    steps: Sequence[int],
    values: Sequence[float],
    low: Sequence[float] | None = None,
    high: Sequence[float] | None = None,
) -> SeriesColumns:
    """A series; with `low` and `high` a reduced one."""
    return SeriesColumns(
        step=list(steps),
        value=list(values),
        min=None if low is None else list(low),
        max=None if high is None else list(high),
    )


def histograms(
    steps: Sequence[int],
    low: Sequence[float],
    high: Sequence[float],
    counts: Sequence[Sequence[int]],
) -> HistogramColumns:
    return HistogramColumns(
        name="score/vocab_centered",
        step=list(steps),
        low=list(low),
        high=list(high),
        counts=[list(row) for row in counts],
        not_finite=[0] * len(steps),
    )


def words(shown: Any) -> str:
    """All words of a component, or of several."""
    if isinstance(shown, list | tuple):
        return " ".join(filter(None, map(words, shown)))
    return (
        words(shown.children) if hasattr(shown, "children") else "" if shown is None else str(shown)
    )


def version(
    number: int, state: str, control: Control, step: int | None = None, **known: Any
) -> ControlVersion:
    """A control version; `step` is where it was applied."""
    document: dict[str, Any] = {**control.to_document(), "reason": ""}
    return ControlVersion(
        **{
            **document,
            "version": number,
            "state": State(state),
            "author": "",
            "requested_at": 10.0,
            "requested_step": None,
            "expires_at": None,
            "applied_step": step,
            "applied_at": None,
            "ended_at": None,
            "predicted": None,
            "verdict": None,
            "code": "",
            "message": "",
            **known,
        }
    )


def run_control(newest: ControlVersion, active: ControlVersion | None) -> RunControl:
    values = {field.name: getattr(newest, field.name) for field in fields(newest)}
    return RunControl(**values, active=active, outcomes=[])


BEGAN = version(0, "APPLIED", Control(), 0)


def run_detail(**known: Any) -> RunDetail:
    return RunDetail(
        **{
            "id": "r1",
            "name": "countdown",
            "project": "demo",
            "status": Status.RUNNING,
            "step": None,
            "planned_steps": None,
            "created_at": 1.0,
            "last_report_at": None,
            "tags": [],
            "config": {},
            "notes": "",
            "finished_at": None,
            "error": "",
            "world_size": 1,
            "probe_version": "0.1.0",
            "capabilities": [],
            "incarnations": 1,
            "control": run_control(BEGAN, BEGAN),
            **known,
        }
    )


def gap(first: int, last: int, reason: str) -> Gap:
    return Gap(incarnation="a", rank=0, first_seq=first, last_seq=last, reason=reason)
