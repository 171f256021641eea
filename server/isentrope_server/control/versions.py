"""Versions of a run's control as users read them, with the verdict on what each did.

Version 0 is not requested by anybody: each incarnation of a run announces the control it starts
with, and these may differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from sqlalchemy import Connection

from isentrope_server.store import controls, streams
from isentrope_server.store.controls import ControlItem
from isentrope_server.store.reports import alerts, series, steps
from isentrope_server.store.reports.series import Series, StepRange
from isentrope_server.store.runs import Run
from isentrope_wire import metrics
from isentrope_wire.control_answers import (
    HOLD_ENDED,
    ControlVersion,
    Outcome,
    RunControl,
    State,
    Verdict,
)
from isentrope_wire.diagnosis import health
from isentrope_wire.diagnosis.course import own_share
from isentrope_wire.diagnosis.effect import EFFECT_STEPS, PROMISED_STEPS
from isentrope_wire.diagnosis.guard import WINDOW
from isentrope_wire.diagnosis.verdict import add_reward, judged_after, median_at, verdict_on
from isentrope_wire.numbers import document_of, read

_JUDGED = (
    *(
        metrics.ENTROPY_MEAN,
        metrics.CLIP_FRACTION,
        metrics.HOLD_TARGET,
        metrics.CHANGE_BY_INTERVENTION,
    ),
    *(metrics.ENTROPY_GAIN, metrics.ENTROPY_UNSEEN_CHANGE, metrics.ENTROPY_OBSERVED_CHANGE),
)
_OF_HOLDS = ("hold_ended", "hold_waits")
_HOLD_ALERTS = 100
"""Newest alerts about holds that are looked through."""
_HOLD_STEPS = 200
"""Newest steps that a hold is judged by."""


def judged(
    connection: Connection, run: Run, versions: Sequence[ControlVersion]
) -> list[ControlVersion]:
    """Add verdicts to the versions that were pushed and applied."""
    found = _verdicts(connection, run, versions)
    return [replace(version, verdict=found.get(version.version)) for version in versions]


def _verdicts(
    connection: Connection, run: Run, versions: Sequence[ControlVersion]
) -> dict[int, Verdict]:
    pushed = [
        (version, version.applied_step)
        for version in versions
        if version.version > 0 and version.applied_step is not None
    ]
    if not pushed or run.step is None:
        return {}
    applied = controls.applied_steps(connection, run.key)
    given: dict[int, Verdict] = {}
    first = (run.basis or {}).get("early_entropies", [])
    early = None
    if len(first) == metrics.EARLY_STEPS:
        early = median(first)
    for version, step in pushed:
        replaced_at = min(
            (at for other, at in applied if other > version.version and at >= step), default=None
        )
        end = run.step
        if replaced_at is not None:
            end = replaced_at - 1
        last = end
        if end - step + 1 >= PROMISED_STEPS:
            last = step + judged_after(end - step + 1) - 1
        # A hold is judged by where it is now.
        span = StepRange(first=step - EFFECT_STEPS, last=end if version.hold else last)
        if version.hold is not None and end - step > _HOLD_STEPS:
            span = StepRange(first=end - _HOLD_STEPS, last=end)
        found = series.read(connection, run.key, _JUDGED, span)
        entropies, clipped, targets, interventions, gains, unseen, own = (
            finite(found[name]) for name in _JUDGED
        )
        moved = [
            (math.log(median_at(entropies, at)), own[at] / entropies[at])
            for at in own
            if at < step + PROMISED_STEPS
            and entropies.get(at, 0.0) > 0
            and median_at(entropies, at) > 0
        ]
        # Of the first twenty steps alone: a verdict that was given must not follow a later share.
        share = 1.0
        if moved and not unseen:
            share = own_share(moved)
        verdict = verdict_on(
            version,
            entropies,
            clipped,
            {at: share * value * gains[at] for at, value in interventions.items() if at in gains},
            targets=targets if version.hold else None,
            early=early,
            end=end,
            is_over=replaced_at is not None or run.status.is_over,
        )
        if verdict is not None and version.hold is not None:
            verdict = _about_a_hold(connection, run, verdict, (step, end))
        if verdict is not None:
            rewards = _rewards_around(connection, run, step, end)
            given[version.version] = add_reward(verdict, rewards, step, end)
    return given


def _rewards_around(connection: Connection, run: Run, applied: int, end: int) -> dict[int, float]:
    """Step -> mean reward, of the steps before a control and the newest under it."""
    spans = (
        StepRange(first=applied - WINDOW, last=applied - 1),
        StepRange(first=max(applied, end - WINDOW + 1), last=end),
    )
    rewards: dict[int, float] = {}
    for span in spans:
        found = series.read(connection, run.key, [metrics.REWARD_MEAN], span)
        rewards |= finite(found[metrics.REWARD_MEAN])
    return rewards


def _about_a_hold(
    connection: Connection, run: Run, verdict: Verdict, under: tuple[int, int]
) -> Verdict:
    """A hold that ended, or waits, says when and why, as its alert does; `under` has the first and
    the last step under it, for another hold may have followed."""
    first, last = under
    newest = alerts.newest_alerts(connection, run.key, kinds=_OF_HOLDS, limit=_HOLD_ALERTS)
    alert = next((alert for _, alert in newest if first <= alert.step <= last), None)
    if alert is None:
        return verdict
    if alert.kind == "hold_waits":
        waits = verdict.outcome == Outcome.WAITING
        if waits:
            return replace(verdict, message=alert.message)
        return verdict
    message = f"{HOLD_ENDED} {alert.step:,}: {alert.message}"
    return replace(verdict, outcome=Outcome.FAILED, message=message)


def finite(one: Series) -> dict[int, float]:
    """Step -> value, of the values that are finite."""
    return health.finite(zip(one.steps.tolist(), one.values.tolist(), strict=True))


def run_control(connection: Connection, run: Run) -> RunControl:
    """The newest version and the active one."""
    newest = controls.newest(connection, run.key)
    assert newest is not None, "the first version is written with the run"
    active = active_control(connection, run, newest)
    if active is not None and active.version == newest.version == 0:
        # Version 0 is never requested; each incarnation announces its own.
        newest = active
    first, *rest = judged(
        connection, run, [control_version(item) for item in (newest, active) if item is not None]
    )
    outcomes = controls.outcomes(connection, run.key, newest.version)
    more = {"active": rest[0] if rest else None, "outcomes": outcomes}
    return read(RunControl, {**document_of(first), **document_of(more)})


def active_control(
    connection: Connection, run: Run, newest: ControlItem | None = None
) -> ControlItem | None:
    """The version that the run's newest report was made under. None: the run reports a version that
    this server never made, or another document under its number. `newest` is the newest version,
    where it was read already: it is mostly the active one."""
    version = run.control_version
    known = (
        newest
        if newest is not None and newest.version == version
        else controls.find(connection, run.key, version)
    )
    item = read_as_begun(connection, run, version, known)
    # A version that no probe has seen, or that it refused, is not the one it reports under this
    # number.
    if item is None or item.state in (State.PENDING, State.REJECTED):
        return None
    return item


def read_as_begun(
    connection: Connection, run: Run, version: int, recorded: ControlItem | None
) -> ControlItem | None:
    """A version as the newest incarnation that started with it describes it; `recorded`, this
    server's own, where none did. An incarnation that resumes from a checkpoint continues with the
    checkpoint's control, even if it announced another. Its reports contain method and scope: where
    descriptions differ, the newest one that agrees with the reports is used."""
    started = [
        initial
        for initial in streams.initial_controls(connection, run.key)
        if initial.version == version
    ]
    if not started:
        return recorded
    described = started + ([] if recorded is None else [recorded])
    chosen = described[0]
    if any(item.document != chosen.document for item in described):
        if run.step is None:
            report = None
        else:
            report = steps.find(connection, run.key, run.step)
        labels = {}
        if report is not None:
            labels = report.labels
        chosen = next((item for item in described if _agrees(item.document, labels)), chosen)
    if recorded is not None and recorded.document == chosen.document:
        return recorded
    return chosen


def _agrees(document: Mapping[str, object], labels: Mapping[str, str]) -> bool:
    return all(
        labels.get(f"control/{name}", document[name]) == document[name]
        for name in ("method", "scope")
    )


def control_version(item: ControlItem) -> ControlVersion:
    """One version as users read it, without a verdict."""
    stored = document_of(item)
    return read(ControlVersion, {**stored.pop("document"), **stored, "verdict": None})
