"""Versions of a run's control as users read them, with what each was predicted to do and the verdict on what it did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Connection

from isentrope_server.control.state import current_control
from isentrope_server.store import controls
from isentrope_server.store.controls import ControlItem
from isentrope_server.store.reports import attachments, series
from isentrope_server.store.reports.series import Series, StepRange
from isentrope_server.store.runs import Run
from isentrope_wire.control import Control
from isentrope_wire.control_answers import ControlVersion, PredictedEffect, RankOutcome, RunControl, Verdict
from isentrope_wire.diagnosis.course import WINDOW
from isentrope_wire.diagnosis.verdict import PREDICTION_STEPS, VERDICT_STEPS, predicted_effect, verdict_on
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_GAIN, ENTROPY_MEAN, HOLD_TARGET
from isentrope_wire.numbers import plain_json
from isentrope_wire.what_if import WhatIfSums

STEPS_READ = 3 * WINDOW
"""At an end of a run: not every step need have measured everything."""


def predict(connection: Connection, run: Run, control: Control) -> PredictedEffect | None:
    """What a control would have done to the run's last steps; None where its method has no what-if, or no step has sums."""
    if run.step is None:
        return None
    gains = series.read(connection, run.key, [ENTROPY_GAIN], StepRange(first=run.step - STEPS_READ, last=run.step))[
        ENTROPY_GAIN
    ]
    return predicted_effect(control, newest_sums(connection, run), newest(gains))


def newest_sums(connection: Connection, run: Run) -> list[WhatIfSums]:
    """The what-if sums that an effect is predicted from, by rising step."""
    return [stored.sums for stored in attachments.newest_what_if_sums(connection, run.key, PREDICTION_STEPS)]


def judged(connection: Connection, run: Run, versions: Sequence[ControlVersion]) -> list[ControlVersion]:
    """The same versions with their verdicts, where they were pushed and applied."""
    found = _verdicts(connection, run, versions)
    return [replace(version, verdict=found.get(version.version)) for version in versions]


def _verdicts(connection: Connection, run: Run, versions: Sequence[ControlVersion]) -> dict[int, Verdict]:
    pushed = [(one, one.applied_step) for one in versions if one.version > 0 and one.applied_step is not None]
    if not pushed:
        return {}
    span = StepRange(
        first=min(step for _, step in pushed) - WINDOW, last=max(step for _, step in pushed) + VERDICT_STEPS
    )
    found = series.read(connection, run.key, [ENTROPY_MEAN, CLIP_FRACTION, HOLD_TARGET], span)
    entropies, clipped, targets = (finite(found[name]) for name in (ENTROPY_MEAN, CLIP_FRACTION, HOLD_TARGET))
    applied = controls.applied_steps(connection, run.key)
    given: dict[int, Verdict] = {}
    for version, step in pushed:
        replaced_at = min((at for other, at in applied if other > version.version and at >= step), default=None)
        last = step + VERDICT_STEPS if replaced_at is None else min(step + VERDICT_STEPS, replaced_at - 1)
        verdict = verdict_on(
            version,
            _between(entropies, step - WINDOW, step + VERDICT_STEPS),
            _between(clipped, step - WINDOW, step + VERDICT_STEPS),
            target=next(reversed(_between(targets, step, last).values()), None) if version.hold else None,
            replaced_at=replaced_at,
        )
        if verdict is not None:
            given[version.version] = verdict
    return given


def _between(values: Mapping[int, float], first: int, last: int) -> dict[int, float]:
    return {step: values[step] for step in range(first, last + 1) if step in values}


def finite(one: Series) -> dict[int, float]:
    """Step -> value, of the values that are finite."""
    return {
        step: value for step, value in zip(one.steps.tolist(), one.values.tolist(), strict=True) if math.isfinite(value)
    }


def newest(one: Series) -> float | None:
    """The newest finite value; None without one."""
    return next(reversed(finite(one).values()), None)


def run_control(connection: Connection, run: Run) -> RunControl:
    """The newest version and the active one."""
    found = current_control(connection, run)
    active = [] if found.active is None else [control_version(found.active)]
    newest, *active = judged(connection, run, [control_version(found.newest), *active])
    outcomes = [
        RankOutcome(
            incarnation=outcome.incarnation,
            rank=outcome.rank,
            state=outcome.state,
            step=outcome.step,
            at=outcome.at,
            code=outcome.code,
            message=outcome.message,
        )
        for outcome in found.outcomes
    ]
    fields_of_newest = {field.name: getattr(newest, field.name) for field in fields(ControlVersion)}
    return RunControl(**fields_of_newest, active=active[0] if active else None, outcomes=outcomes)


def control_version(item: ControlItem) -> ControlVersion:
    """One version as users read it, without a verdict."""
    document: dict[str, Any] = {name: plain_json(value) for name, value in item.document.items()}
    return ControlVersion(
        **document,
        version=item.version,
        state=item.state,
        author=item.author,
        requested_at=item.requested_at,
        requested_step=item.requested_step,
        expires_at=item.expires_at,
        applied_step=item.applied_step,
        applied_at=item.applied_at,
        ended_at=item.ended_at,
        code=item.code,
        message=item.message,
        predicted=None if item.predicted is None else PredictedEffect(**item.predicted),
        verdict=None,
    )
