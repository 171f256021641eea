"""Reads what a run's diagnosis is made of: its first and last steps, its control and its newest
alert.

Page, terminal, assistants and the list of runs show what `isentrope_wire.diagnosis.health` makes of
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean

from sqlalchemy import Connection

from isentrope_server.control.versions import (
    control_version,
    finite,
    judged,
    read_as_begun,
    run_control,
)
from isentrope_server.store import controls, streams
from isentrope_server.store.reports import alerts, attachments, series, steps
from isentrope_server.store.reports.series import Series, StepRange
from isentrope_server.store.runs import Run
from isentrope_server.store.tables import LARGEST_INTEGER
from isentrope_wire import metrics, reports
from isentrope_wire.answers import Alert
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.check_states import CheckState, check_states
from isentrope_wire.diagnosis.checks import FINDINGS
from isentrope_wire.diagnosis.course import DIRECTIONS, STEPS_READ
from isentrope_wire.diagnosis.effect import EFFECT_STEPS, LastSteps
from isentrope_wire.diagnosis.health import Measured
from isentrope_wire.diagnosis.pull import CAUSE_STEPS, change_parts
from isentrope_wire.numbers import is_usable

_COURSE = (
    metrics.ENTROPY_MEAN,
    metrics.ENTROPY_OBSERVED_CHANGE,
    metrics.ENTROPY_UNSEEN_CHANGE,
    metrics.CHANGE_BY_INTERVENTION,
    metrics.HOLD_MU,
    metrics.HOLD_BONUS,
    metrics.HOLD_TARGET,
    metrics.REWARD_MEAN,
)
_FINDINGS_READ = 20
_RAISED_READ = 500
_PREDICTION = (
    metrics.ENTROPY_GAIN,
    metrics.ENTROPY_PREDICTION_R2,
    metrics.ENTROPY_GAIN_ERROR,
)
_PREDICTED = (metrics.ENTROPY_PREDICTED_CHANGE, metrics.ENTROPY_UNSEEN_CHANGE_ERROR)
_CHANGES = tuple(change_parts(dict.fromkeys(metrics.METRICS, 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the digest of a run keeps of all its steps, so that the next one is computed from the
    newest steps alone."""

    timeline: int
    """The run's timeline version: when it has risen, all steps are read again."""
    control_version: int
    first_step: int
    last_step: int
    """The last one of the digest's lines."""
    early_entropies: list[float]

    @classmethod
    def read(cls, run: Run) -> Basis | None:
        """Basis of a run's newest digest; None without one, or if its timeline changed."""
        if run.basis is None:
            return None
        basis = cls(**run.basis)
        if basis.timeline != run.timeline_version:
            return None
        return basis


def measured(connection: Connection, run: Run, *, for_control: bool = True) -> Measured:
    """What a run's diagnosis is made of, read on a connection that reads one consistent state.
    `for_control=False` leaves out what only its cause, a suggestion and previews need."""
    basis = Basis.read(run)
    if basis is None:
        first = first_step(connection, run)
    else:
        first = basis.first_step
    applied = controls.newest_applied(connection, run.key)
    active, verdict, before = None, None, None
    if applied is not None:
        active = judged(connection, run, [control_version(applied)])[0]
        verdict, before = active.verdict, _control_before(connection, run, applied.version)
    found = Measured(
        status=run.status,
        error=run.error,
        step=run.step,
        first_step=first,
        planned_steps=run.planned_steps,
        verdict=verdict,
        active=active,
        before=before,
    )
    if run.step is None or first is None:
        if for_control:
            found = replace(found, newest=run_control(connection, run))
        return found
    span = StepRange(first=run.step - STEPS_READ, last=run.step)
    names: list[str] = [*_COURSE]
    if for_control:
        names += [*_PREDICTION, *_CHANGES, *_PREDICTED]
    last = series.read(connection, run.key, [*dict.fromkeys(names)], span)
    interventions = finite(last[metrics.CHANGE_BY_INTERVENTION])
    if interventions and not for_control:
        last |= series.read(connection, run.key, _PREDICTION, span)
    if basis is not None and len(basis.early_entropies) == metrics.EARLY_STEPS:
        early = basis.early_entropies
    else:
        beginning = StepRange(first=first, last=min(first + STEPS_READ, LARGEST_INTEGER))
        columns = series.read(connection, run.key, [metrics.ENTROPY_MEAN], beginning)
        levels = finite(columns[metrics.ENTROPY_MEAN]).values()
        early = list(islice(levels, metrics.EARLY_STEPS))
    entropies, unseen = last[metrics.ENTROPY_MEAN], finite(last[metrics.ENTROPY_UNSEEN_CHANGE])
    gains, explained, gain_errors = (
        finite(last[name]) if name in last else {} for name in _PREDICTION
    )
    targets = finite(last[metrics.HOLD_TARGET])
    newest_findings = alerts.newest_alerts(
        connection, run.key, kinds=FINDINGS, limit=_FINDINGS_READ
    )
    by_control = {}
    if interventions:
        by_control = {step: gain * interventions.get(step, 0.0) for step, gain in gains.items()}
    found = replace(
        found,
        early_entropies=early,
        entropies=dict(zip(entropies.steps.tolist(), entropies.values.tolist(), strict=True)),
        observed=unseen or finite(last[metrics.ENTROPY_OBSERVED_CHANGE]),
        by_control=by_control,
        explained=explained,
        targets={step: target for step, target in targets.items() if target > 0},
        is_acting=run.step in finite(last[metrics.HOLD_MU]) | finite(last[metrics.HOLD_BONUS]),
        rewards=finite(last[metrics.REWARD_MEAN]),
        applied_steps=[step for _, step in controls.applied_steps(connection, run.key)],
        findings=[alert for _, alert in newest_findings],
    )
    newest_report = steps.find(connection, run.key, run.step)
    if newest_report is not None:
        found = replace(
            found,
            largest_entropy=metrics.largest_entropy(newest_report.scalars),
            hold_state=newest_report.labels.get(reports.HOLD_STATE, ""),
            hold_why=newest_report.labels.get(reports.HOLD_WHY, ""),
            said=_said(newest_report.labels),
            holding=_holding(newest_report.labels),
            overshoot=_overshoot(connection, run, newest_report.control_version),
        )
    if not for_control:
        return found
    control = run_control(connection, run)
    parts = _last_parts(last)
    reported = attachments.read_what_if(connection, run.key, last=run.step, steps=EFFECT_STEPS)
    what_if = [(step, sums) for step, sums in reported if sums.is_usable]
    newest_gain = next(reversed(gains.values()), None)
    step_gains = list[float]()
    if newest_gain is not None:
        step_gains = [gains.get(step, newest_gain) for step, _ in what_if]
    added = [part.get(metrics.CHANGE_BY_INTERVENTION, 0.0) for part in parts.values()]
    active_control, scalars, newest_alert = None, None, None
    if control.active is not None and not control.active.hold:
        active_control = control.active.control
    if newest_report is not None:
        scalars = _usable(newest_report.scalars)
    for _, alert in alerts.newest_alerts(connection, run.key, kinds=DIRECTIONS, limit=1):
        newest_alert = alert
    return replace(
        found,
        newest=control,
        active=control.active,
        predicted=finite(last[metrics.ENTROPY_PREDICTED_CHANGE]),
        observed_errors=finite(last[metrics.ENTROPY_UNSEEN_CHANGE_ERROR]),
        parts=parts,
        last=LastSteps(
            sums=[sums for _, sums in what_if],
            intervention=fmean(added or [0.0]),
            active=active_control,
            gain=newest_gain,
            gains=step_gains,
            gain_error=next(reversed(gain_errors.values()), None),
            of_unseen=bool(unseen),
            scalars=scalars,
        ),
        alert=newest_alert,
    )


def _control_before(connection: Connection, run: Run, version: int) -> Control | None:
    """The control that a pushed version replaced."""
    if not version:
        return None
    earlier = controls.newest_applied(connection, run.key, below=version)
    if earlier is None:
        earlier = read_as_begun(connection, run, 0, None)
    if earlier is None:
        return Control()
    return Control.from_document(earlier.document)


def _said(labels: Mapping[str, str]) -> int | None:
    said = labels.get(reports.COURSE_SAID, "")
    if not said.isdecimal():
        return None
    return int(said)


def states_of_checks(connection: Connection, run: Run) -> list[CheckState]:
    """Every check, with what it found: the newest alert of its kind, or the cause that it follows
    from at the newest step."""
    first, last = first_step(connection, run), run.step
    if first is None or last is None:
        return check_states((), {}, 0)
    age = last - first + 1
    newest = alerts.newest_alerts(
        connection, run.key, kinds=(*FINDINGS, *DIRECTIONS), limit=_RAISED_READ
    )
    findings = {alert.kind: alert for _, alert in reversed(newest)}
    following, holding = dict[str, str](), None
    newest_report = steps.find(connection, run.key, last)
    if newest_report is not None:
        following, holding = _following(newest_report.labels), _holding(newest_report.labels)
    return check_states(series.names(connection, run.key), findings, age, following, holding)


def _holding(labels: Mapping[str, str]) -> frozenset[str] | None:
    if reports.CHECKS_HOLDING not in labels:
        return None
    return frozenset(labels[reports.CHECKS_HOLDING].split(",")) & reports.ALERT_KINDS.keys()


def _following(labels: Mapping[str, str]) -> dict[str, str]:
    """Kind -> the kind that it follows from, of a report's label; what is no pair of kinds is left
    out."""
    pairs = [pair.partition("=") for pair in labels.get(reports.CHECKS_FOLLOWING, "").split(",")]
    return {kind: cause for kind, _, cause in pairs if {kind, cause} <= reports.ALERT_KINDS.keys()}


def _overshoot(connection: Connection, run: Run, version: int) -> Alert | None:
    """The alert that the active version does harm."""
    newest = alerts.newest_alerts(connection, run.key, kinds=("overshoot",), limit=1)
    of_version = [alert for _, alert in newest if alert.evidence.get("version") == version]
    if version and of_version:
        return of_version[0]
    return None


def first_step(connection: Connection, run: Run) -> int | None:
    """The lowest step that any attempt of the run reported."""
    firsts = (incarnation.first_step for incarnation in streams.incarnations(connection, run.key))
    return min((first for first in firsts if first is not None), default=None)


def _usable(scalars: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in scalars.items() if is_usable(value)}


def _last_parts(last: Mapping[str, Series]) -> dict[int, dict[str, float]]:
    """The parts of the unit prediction over the last steps that have some."""
    steps: dict[int, dict[str, float]] = {}
    for name in _CHANGES:
        for step, value in finite(last[name]).items():
            steps.setdefault(step, {})[name] = value
    return {step: steps[step] for step in sorted(steps)[-CAUSE_STEPS:]}
