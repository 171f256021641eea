"""Reads what a run's diagnosis is made of: its first and last steps, its control and its newest alert.

A page, a terminal and the digests of the list of runs show what `isentrope_wire.diagnosis.health.diagnose` makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice

from sqlalchemy import Connection

from isentrope_server.control.versions import (
    STEPS_READ,
    control_version,
    finite,
    judged,
    newest,
    newest_sums,
    run_control,
)
from isentrope_server.store import controls, streams
from isentrope_server.store.reports import attachments, series
from isentrope_server.store.reports.series import Series, StepRange
from isentrope_server.store.runs import Run
from isentrope_wire.control_answers import Verdict
from isentrope_wire.diagnosis.course import CAUSE_STEPS, DIRECTIONS, change_parts
from isentrope_wire.diagnosis.health import Measured
from isentrope_wire.metrics import EARLY_STEPS, ENTROPY_GAIN, ENTROPY_MEAN, HOLD_TARGET, METRICS

_CHANGES = tuple(change_parts(dict.fromkeys(METRICS, 0.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What the digest of a run keeps of all its steps, so that the next one is computed from the newest steps alone."""

    timeline: int
    """The run's timeline version: when it has risen, all steps are read again."""
    control_version: int
    first_step: int
    last_step: int
    """The last one of the digest's lines."""
    early_entropies: list[float]

    @classmethod
    def of(cls, run: Run) -> Basis | None:
        """That of a run's newest digest; None where there is none, or its timeline changed since."""
        basis = None if run.basis is None else cls(**run.basis)
        return basis if basis is not None and basis.timeline == run.timeline_version else None


def measured(connection: Connection, run: Run) -> Measured:
    """What a run's diagnosis is made of, read on a connection that reads one consistent state."""
    control = run_control(connection, run)
    basis = Basis.of(run)
    first = first_step(connection, run) if basis is None else basis.first_step
    about_the_run = Measured(
        status=run.status,
        error=run.error,
        step=run.step,
        first_step=first,
        newest=control,
        active=control.active,
        verdict=control.verdict
        if control.applied_step is not None or not control.version
        else newest_verdict(connection, run),
    )
    if run.step is None or first is None:
        return about_the_run
    names = [ENTROPY_MEAN, ENTROPY_GAIN, HOLD_TARGET, *_CHANGES]
    last = series.read(connection, run.key, names, StepRange(first=run.step - STEPS_READ, last=run.step))
    if basis is not None and len(basis.early_entropies) == EARLY_STEPS:
        early = basis.early_entropies
    else:
        beginning = StepRange(first=first, last=first + STEPS_READ)
        found = series.read(connection, run.key, [ENTROPY_MEAN], beginning)[ENTROPY_MEAN]
        early = list(islice(finite(found).values(), EARLY_STEPS))
    entropies = last[ENTROPY_MEAN]
    return replace(
        about_the_run,
        early_entropies=early,
        entropies=dict(zip(entropies.steps.tolist(), entropies.values.tolist(), strict=True)),
        parts=_last_parts(last),
        sums=newest_sums(connection, run),
        gain=newest(last[ENTROPY_GAIN]),
        target=finite(last[HOLD_TARGET]).get(run.step),
        alert=next((one for _, one in attachments.newest_alerts(connection, run.key, kinds=DIRECTIONS, limit=1)), None),
    )


def newest_verdict(connection: Connection, run: Run) -> Verdict | None:
    """On the newest applied control."""
    applied = controls.newest_applied(connection, run.key)
    return None if applied is None else judged(connection, run, [control_version(applied)])[0].verdict


def first_step(connection: Connection, run: Run) -> int | None:
    """The lowest step that any attempt of the run reported."""
    firsts = (incarnation.first_step for incarnation in streams.incarnations(connection, run.key))
    return min((first for first in firsts if first is not None), default=None)


def _last_parts(last: Mapping[str, Series]) -> list[dict[str, float]]:
    """The parts of the unit prediction over the last steps that have some."""
    steps: dict[int, dict[str, float]] = {}
    for name in _CHANGES:
        for step, value in finite(last[name]).items():
            steps.setdefault(step, {})[name] = value
    return [steps[step] for step in sorted(steps)[-CAUSE_STEPS:]]
