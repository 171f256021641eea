"""Digests of runs: what a list shows of each, computed in the background, so that a page of the
list is one query.

Every two seconds the runs are looked up that reported, or changed their status, since their digest
was computed. Of servers that share a database one does it; the same digest computed twice does no
harm. Between runs there are pauses, so that it takes at most a fifth of a processor: with many live
runs digests are some seconds old."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np
from sqlalchemy import Connection

from isentrope_server.backend import Backend, RetryPauses, attempt
from isentrope_server.control.diagnosis import Basis, first_step, measured
from isentrope_server.control.versions import active_control, finite
from isentrope_server.store import runs
from isentrope_server.store.reports import series, steps
from isentrope_server.store.reports.series import Series, StepRange
from isentrope_server.store.runs import Run
from isentrope_server.store.writer import Transaction
from isentrope_wire.answers import DigestControl, RunDigest, Status
from isentrope_wire.control import Control
from isentrope_wire.diagnosis.health import diagnose
from isentrope_wire.metrics import EARLY_STEPS, ENTROPY_MEAN, REWARD_MEAN, newest_level
from isentrope_wire.numbers import part_of
from isentrope_wire.reports import error_in_a_line

LINE_PARTS = 36
"""Numbers in a line: a pixel or two for each."""
_DIGITS = 4
"""Significant ones in a line."""
_NAMES = (ENTROPY_MEAN, REWARD_MEAN)
_RUNS_IN_A_ROUND = 200
_RUNS_AT_ONCE = 20
"""Stored in one transaction."""
_REST = 4.0
"""Pause divided by work."""
_REASON_CHARACTERS = 300
_METRICS = 5_000
"""Newest values kept for lists, the first by name: a run may log a norm for each parameter. Lists
are sorted by these; others are read on demand."""
_NEWEST_STEPS = 60
"""Not every step need have measured everything."""


async def keep_digests_current(backend: Backend) -> None:
    """Renew digests, again and again."""
    pauses = RetryPauses()
    while True:
        await asyncio.sleep(backend.settings.housekeeping_interval_seconds)
        renewed: int | None = _RUNS_IN_A_ROUND
        while renewed == _RUNS_IN_A_ROUND and backend.on_duty:
            renewed = await attempt(renew_digests(backend, pauses), what="Renewing digests of runs")


async def renew_digests(
    backend: Backend, pauses: RetryPauses | None = None, *, rest: float = _REST
) -> int:
    """Compute at most 200 digests that are older than their runs, the oldest first; return how
    many. A run whose digest can't be computed is skipped for a while. The pause after some runs is
    `rest` times what they took."""
    pauses = pauses or RetryPauses()
    silent_after = backend.settings.silent_after_seconds
    due = await backend.read(
        lambda connection: runs.due_digests(
            connection, limit=_RUNS_IN_A_ROUND, silent_after_seconds=silent_after
        )
    )
    due = [run for run in due if not pauses.is_paused(run.key)]
    renewed = 0
    for start in range(0, len(due), _RUNS_AT_ONCE):
        started = time.monotonic()
        found = [
            (
                run,
                await pauses.attempt(
                    run.key, backend.read(partial(digest_of, run=run)), what=f"A digest of {run.id}"
                ),
            )
            for run in due[start : start + _RUNS_AT_ONCE]
        ]
        digests = [(run, *computed) for run, computed in found if computed is not None]
        await backend.write(partial(_store, digests), rows=len(digests), run_id=runs.DIGESTS)
        renewed += len(digests)
        await asyncio.sleep(rest * (time.monotonic() - started))
    return renewed


def _store(
    digests: Sequence[tuple[Run, RunDigest, Basis | None]], transaction: Transaction
) -> None:
    for run, digest, basis in digests:
        kept = None
        if basis is not None:
            kept = asdict(basis)
        runs.store_digest(transaction.connection, run, digest, kept, time.time())


def _serves(basis: Basis, run: Run) -> bool:
    """Whether the lines are at most half a part behind the run."""
    behind = (run.step or 0) - basis.last_step
    is_short = 2 * LINE_PARTS * behind <= basis.last_step - basis.first_step
    return is_short and behind >= 0 and run.status is Status.RUNNING


def _newest(values: series.Series, stored: float | None) -> float | None:
    """Where the metric stands by what was read, else as in the digest before."""
    level = newest_level(values.values.tolist())
    if level is None:
        return stored
    return level


def digest_of(connection: Connection, run: Run) -> tuple[RunDigest, Basis | None]:
    """A run's digest, and what the next one needs, which is None before the run's first step."""
    old = run.digest
    basis = Basis.read(run)
    if old is not None and basis is not None and _serves(basis, run):
        span = StepRange(first=(run.step or 0) - _NEWEST_STEPS)
        values = series.read(connection, run.key, _NAMES, span)
    else:
        old = None
        values = series.read(connection, run.key, _NAMES, StepRange())
        basis = _basis(connection, run, values)
    entropies, rewards = values[ENTROPY_MEAN], values[REWARD_MEAN]
    diagnosis = diagnose(measured(connection, run, for_control=False))
    if old is not None:
        lines = old.entropy_line, old.reward_line
        entropy, reward = _newest(entropies, old.entropy), _newest(rewards, old.reward)
    else:
        first, last = _ends(values)
        lines = line(entropies, first, last), line(rewards, first, last)
        entropy, reward = _newest(entropies, None), _newest(rewards, None)
    if old is not None and basis is not None and basis.control_version == run.control_version:
        control = old.control
    else:
        control = _control(connection, run)
    reason = ""
    if run.status is Status.FAILED:
        reason = error_in_a_line(run.error)[:_REASON_CHARACTERS]
    if basis is not None:
        basis = replace(basis, control_version=run.control_version)
    if entropy is not None and math.isfinite(entropy):
        entropy = diagnosis.entropy  # a median too, of an even number of steps another one
    digest = RunDigest(
        level=diagnosis.level,
        share_lost=diagnosis.share_lost,
        steps_to_three_quarters_lost=diagnosis.steps_to_three_quarters_lost,
        entropy=entropy,
        reward=reward,
        entropy_line=lines[0],
        reward_line=lines[1],
        control=control,
        reason=reason,
        seconds_per_step=steps.seconds_per_step(connection, run.key),
        metrics={item.name: item.value for item in series.latest(connection, run.key)[:_METRICS]},
    )
    return digest, basis


def _basis(connection: Connection, run: Run, found: Mapping[str, Series]) -> Basis | None:
    first = first_step(connection, run)
    if run.step is None or first is None:
        return None
    return Basis(
        timeline=run.timeline_version,
        control_version=run.control_version,
        first_step=first,
        last_step=run.step,
        early_entropies=list(finite(found[ENTROPY_MEAN]).values())[:EARLY_STEPS],
    )


def _ends(found: Mapping[str, Series]) -> tuple[int, int]:
    steps = [
        int(column.steps[end]) for column in found.values() if len(column.steps) for end in (0, -1)
    ]
    return min(steps, default=0), max(steps, default=-1)


def line(one: Series, first: int, last: int) -> list[float | None]:
    """Means of a series over at most LINE_PARTS equal parts of the steps first..last; None where a
    part has no finite value, none at all where the series has none."""
    finite = np.isfinite(one.values)
    if not finite.any():
        return []
    steps = last - first + 1
    parts = min(LINE_PARTS, steps)
    # In floating point: steps go up to 2^63 - 1.
    part = np.minimum((one.steps[finite] - first).astype(float) * parts / steps, parts - 1).astype(
        int
    )
    sums = np.bincount(part, weights=one.values[finite], minlength=parts)
    counts = np.bincount(part, minlength=parts)
    return [
        float(f"{total / count:.{_DIGITS}g}") if count else None
        for total, count in zip(sums.tolist(), counts.tolist(), strict=True)
    ]


def _control(connection: Connection, run: Run) -> DigestControl | None:
    active = active_control(connection, run)
    if active is None:
        return None
    control = Control.from_document(active.document)
    return part_of(
        DigestControl, control, hold_target=None if control.held is None else control.held.target
    )
