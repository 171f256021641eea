"""What alerts are judged by: runs made of numbers, and recorded ones, each with what really came to pass in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from isentrope.statistics.alerts import ARRIVAL_STEPS, CEILING, EARLY_STEPS, FLOOR
from isentrope_trainer.experiments.recorded_runs import read_run
from isentrope_trainer.experiments.synthetic_runs import (
    Course,
    collapsing,
    exploding,
    falling_in_a_line,
    flat,
    reports_of,
    settling,
    waving,
)
from isentrope_wire.metrics import (
    ADVANTAGE_ZERO_GROUP_FRACTION,
    ENTROPY_MEAN,
    ENTROPY_PREDICTION_R2,
    SCORE_SELF_CHECK_Z,
)

Row = tuple[Mapping[str, float], Mapping[str, str]]
"""Scalars and labels of a step's report."""

LEVELS = {"collapse": FLOOR, "explosion": CEILING}
"""Kinds of alert that foretell, and where what they foretell begins, as a share of the early entropy."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run and what is true of it."""

    name: str
    rows: tuple[Row, ...]
    events: Mapping[str, int] = field(default_factory=dict)
    """By kind of alert, at which step (counted from 0) what it is about came to pass."""
    unjudged: frozenset[str] = frozenset()
    """Kinds of which nobody knows here whether they are right."""


def arrivals(entropies: list[float]) -> dict[str, int]:
    """At which step the entropy arrived at a quarter of its early level, and at twice that."""
    if len(entropies) < EARLY_STEPS:
        return {}
    early = median(entropies[:EARLY_STEPS])
    found: dict[str, int] = {}
    for step in range(EARLY_STEPS, len(entropies)):
        mean = fmean(entropies[max(0, step + 1 - ARRIVAL_STEPS) : step + 1])
        for kind, share in LEVELS.items():
            if (mean - share * early) * (share - 1) >= 0:
                found.setdefault(kind, step)
    return found


COURSES: Mapping[str, tuple[Course, int]] = {
    "collapse, time constant 60": (collapsing(60), 130),
    "collapse, time constant 150": (collapsing(150), 320),
    "collapse in a line, 200 steps": (falling_in_a_line(200), 190),
    "collapse in a line, 600 steps": (falling_in_a_line(600), 570),
    "explosion, time constant 80": (exploding(80), 90),
    "explosion, time constant 200": (exploding(200), 200),
    "flat": (flat, 500),
    "settles at 70 %": (settling(0.7, 300), 500),
    "settles at 50 %": (settling(0.5, 100), 500),
    "settles at 35 %": (settling(0.35, 100), 500),
    "a wave of 15 %": (waving(200), 500),
}
"""By name, the entropy's course and for how many steps it is followed."""

BROKEN_AT = 200
"""The step from which on something is wrong in the runs of `broken`."""


def synthetic(seed: int) -> Iterator[Scenario]:
    """One run of each course, and of each thing that can break, with this seed's noise."""
    for name, (course, steps) in COURSES.items():
        rows: tuple[Row, ...] = tuple((row, {}) for row in reports_of(course, steps, seed))
        yield Scenario(name, rows, arrivals([course(step) for step in range(steps)]))
    yield from broken(seed)


def broken(seed: int) -> Iterator[Scenario]:
    """Flat runs of twice BROKEN_AT steps; from there on each has something wrong."""
    rows = list(reports_of(flat, 2 * BROKEN_AT, seed))

    def run(name: str, kind: str, scalar: str, change: float, labels: Mapping[str, str] | None = None) -> Scenario:
        changed = tuple(
            (row if step < BROKEN_AT or not scalar else {**row, scalar: row.get(scalar, 0.0) + change},
             {} if step < BROKEN_AT else labels or {})
            for step, row in enumerate(rows)
        )  # fmt: skip
        return Scenario(name, changed, {kind: BROKEN_AT})

    yield run("the sampler draws from something else", "self_check", SCORE_SELF_CHECK_Z, 4.0)
    yield run("most groups lose their advantage", "zero_advantage", ADVANTAGE_ZERO_GROUP_FRACTION, 0.5)
    yield run("the prediction comes apart", "prediction", ENTROPY_PREDICTION_R2, -2.0)
    yield run("a knob dies", "dead_knob", "", 0.0, {"control/dead": "beta is 0: no penalty."})


def recorded(folder: Path) -> Iterator[Scenario]:
    """The finished runs in a folder of recorded ones."""
    for path in sorted(folder.glob("*.json")):
        run = read_run(path)
        rows = tuple((step.scalars, step.labels) for step in run.steps)
        if rows and all(ENTROPY_MEAN in scalars for scalars, _ in rows):
            # The tokens are drawn from the policy that is scored, so that a failed self-check would be wrong; of the
            # others the alert's own definition is all the truth there is.
            unjudged = frozenset({"prediction", "dead_knob", "zero_advantage"})
            name = f"{run.recipe['name']}, seed {run.recipe['config']['seed']}"
            yield Scenario(name, rows, arrivals(run.column(ENTROPY_MEAN)), unjudged)
