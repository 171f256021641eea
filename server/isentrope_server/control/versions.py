"""Versions of a run's control as users read them, with what each was predicted to do and the verdict on what it did.

Version 0 is not requested by anybody: each incarnation of a run announces the control it starts with, and these may differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from isentrope_server.store import controls, streams
from isentrope_server.store.controls import ControlItem
from isentrope_server.store.reports import attachments, series, steps
from isentrope_server.store.reports.series import Series, StepRange
from isentrope_server.store.runs import Run
from isentrope_wire.control import Control
from isentrope_wire.control_answers import ControlVersion, PredictedEffect, RunControl, State, Verdict
from isentrope_wire.diagnosis.course import WINDOW
from isentrope_wire.diagnosis.verdict import PREDICTION_STEPS, VERDICT_STEPS, predicted_effect, verdict_on
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_GAIN, ENTROPY_MEAN, HOLD_TARGET
from isentrope_wire.numbers import document_of, read
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
    newest = controls.newest(connection, run.key)
    assert newest is not None, "the first version is written with the run"
    active = active_control(connection, run, newest)
    if active is not None and active.version == newest.version == 0:
        # Version 0 is never requested; each incarnation announces its own.
        newest = active
    first, *rest = judged(connection, run, [control_version(item) for item in (newest, active) if item is not None])
    outcomes = controls.outcomes(connection, run.key, newest.version)
    more = {"active": rest[0] if rest else None, "outcomes": outcomes}
    return read(RunControl, {**document_of(first), **document_of(more)})


def active_control(connection: Connection, run: Run, newest: ControlItem | None = None) -> ControlItem | None:
    """The version that the run's newest report was made under.

    Args:
        newest: the newest version, where it was read already: it is mostly the active one.

    Returns:
        None: the run reports a version that this server never made, or another document under its number.
    """
    version = run.control_version
    known = newest if newest is not None and newest.version == version else controls.find(connection, run.key, version)
    item = as_begun(connection, run, version, known)
    # A version that no probe has seen, or that it refused, is not the one it reports under this number.
    return None if item is None or item.state in (State.PENDING, State.REJECTED) else item


def as_begun(connection: Connection, run: Run, version: int, recorded: ControlItem | None) -> ControlItem | None:
    """A version as the newest incarnation that started with it describes it.

    An incarnation that resumes from a checkpoint continues with the checkpoint's control, whatever it announced. Its
    reports contain method and scope: where descriptions differ, the newest one that agrees with the reports is used.

    Args:
        recorded: the version in this server's table; returned where no incarnation started with this version.
    """
    started = [initial for initial in streams.initial_controls(connection, run.key) if initial.version == version]
    if not started:
        return recorded
    described = started + ([] if recorded is None else [recorded])
    chosen = described[0]
    if any(item.document != chosen.document for item in described):
        labels = _newest_labels(connection, run)
        chosen = next((item for item in described if _agrees(item.document, labels)), chosen)
    return recorded if recorded is not None and recorded.document == chosen.document else chosen


def _newest_labels(connection: Connection, run: Run) -> Mapping[str, str]:
    report = None if run.step is None else steps.find(connection, run.key, run.step)
    return {} if report is None else report.labels


def _agrees(document: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    return all(labels.get(f"control/{name}", document[name]) == document[name] for name in ("method", "scope"))


def control_version(item: ControlItem) -> ControlVersion:
    """One version as users read it, without a verdict."""
    stored = document_of(item)
    return read(ControlVersion, {**stored.pop("document"), **stored, "verdict": None})
