"""How early alerts are raised, and how often without cause, on synthetic runs whose entropy follows a known course.

A run has the scalars that a probe would report, with noise; SEEDS runs of each course. "Raised in time": of the runs whose true
entropy comes to a quarter of where it began, or to twice as much, those in which the alert was raised before; of runs in which
something breaks at step BROKEN_AT, those in which it was raised at all. An alert about the entropy is false when the true share is
further from its level than TOLERANCE and the end that it predicts does not come; another alert when it comes before the break.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from isentrope.statistics.alerts import AlertWatch
from isentrope.statistics.calibration import Calibration, Momentum
from isentrope.statistics.step import calibration_scalars
from isentrope_wire.diagnosis.course import ACT_LEFT, CEILING, FLOOR, WATCH_LEFT
from isentrope_wire.metrics import (
    ADVANTAGE_ZERO_GROUP_FRACTION,
    ENTROPY_MEAN,
    ENTROPY_PREDICTION_R2,
    HOLD_TARGET,
    SCORE_SELF_CHECK_Z,
)
from isentrope_wire.reports import Alert, AlertLevel

Course = Callable[[int], float]
"""The policy's entropy at a step, in nats."""

SEEDS, BROKEN_AT, TOLERANCE = 20, 200, 0.05
MOMENTUM, GAIN, SCATTER = 0.9, 0.4, 0.02
"""SCATTER: of a step's mean entropy about the policy's, as a share of it, for prompts change from batch to batch."""


def collapsing(time_constant: float) -> Course:
    return lambda step: 2.0 * math.exp(-step / time_constant)


def falling_in_a_line(steps: float) -> Course:
    return lambda step: max(2.0 * (1 - step / steps), 0.0)


def settling(share: float, time_constant: float) -> Course:
    return lambda step: 2.0 * (share + (1 - share) * math.exp(-step / time_constant))


def exploding(time_constant: float) -> Course:
    return lambda step: min(2.0 * math.exp(step / time_constant), 9.0)


def waving(period: float) -> Course:
    return lambda step: 2.0 + 0.3 * math.sin(2 * math.pi * step / period)


def flat(step: int) -> float:
    return 2.0


def reports_of(
    course: Course, steps: int, seed: int, *, noise: float = 0.3, scatter: float = SCATTER
) -> Iterator[dict[str, float]]:
    """Scalars of each step, as the probe makes them.

    Args:
        noise: of the observed change, as a share of its usual size.
        scatter: of a step's mean entropy, as a share of it.
    """
    rng, calibration, average = random.Random(seed), Calibration(), 0.0
    changes = [course(step + 1) - course(step) for step in range(steps)]
    size = math.sqrt(sum(change**2 for change in changes) / steps) + 0.002
    for step, change in enumerate(changes):
        # The optimiser moves along the average; the steps' own changes scatter about what makes the course.
        given = change + rng.gauss(0, size)
        average = MOMENTUM * average + (1 - MOMENTUM) * given
        observed = average / (1 - MOMENTUM ** (step + 1)) + rng.gauss(0, noise * size)
        prediction = calibration.step(given / GAIN, observed, Momentum(MOMENTUM))
        yield {
            ENTROPY_MEAN: course(step) * max(1 + rng.gauss(0, scatter), 0.0),
            SCORE_SELF_CHECK_Z: rng.gauss(0, 1.5),
            ADVANTAGE_ZERO_GROUP_FRACTION: min(max(0.3 + rng.gauss(0, 0.1), 0.0), 1.0),
            **calibration_scalars(prediction),
        }


@dataclass(frozen=True, slots=True)
class Runs:
    """One course with every seed, and what breaks in it from BROKEN_AT on."""

    group: str
    course: Course
    steps: int
    scatter: float = SCATTER
    target: float | None = None
    """The entropy to hold, in nats."""
    breaks: str = ""
    """The kind of alert that is then due."""
    changes: Mapping[str, float] | None = None
    """Added to these scalars."""
    labels: Mapping[str, str] | None = None

    def reports(self, seed: int) -> Iterator[tuple[dict[str, float], Mapping[str, str]]]:
        """Scalars and labels of each step."""
        for step, row in enumerate(reports_of(self.course, self.steps, seed, scatter=self.scatter)):
            if self.target is not None:
                row[HOLD_TARGET] = self.target
            broken = step >= BROKEN_AT and bool(self.breaks)
            for name, change in (self.changes or {}).items() if broken else ():
                row[name] = row.get(name, 0.0) + change
            yield row, (self.labels or {}) if broken else {}

    def left(self, kind: str, step: int) -> float:
        """What is left of the entropy to keep; of an explosion, the inverse of how many times it there is."""
        levels = [self.course(0), self.course(0) if self.target is None else self.target]
        return self.course(step) / min(levels) if kind == "collapse" else max(levels) / self.course(step)

    def end(self, kind: str) -> int | None:
        """The first step at which the true entropy is at the floor or ceiling; of other kinds, at which something broke."""
        if kind not in ENDS:
            return BROKEN_AT if kind == self.breaks else None
        return next((step for step in range(self.steps) if self.left(kind, step) <= ENDS[kind]), None)

    def is_false(self, alert: Alert, step: int) -> bool:
        end = self.end(alert.kind)
        if alert.kind not in ENDS:
            return end is None or step < end
        level = WATCH_LEFT if alert.level is AlertLevel.WATCH else ACT_LEFT
        if self.left(alert.kind, step) <= level + TOLERANCE:
            return False
        steps_left = alert.evidence.get("steps_left")
        # Up to twice the time that was given: a prediction that is late by half is a poor one, but not without cause.
        return steps_left is None or (end is None and step + 2 * steps_left < self.steps)


ENDS = {"collapse": FLOOR, "explosion": 1 / CEILING}

RUNS = (
    Runs("collapsing", collapsing(60), 130),
    Runs("collapsing", collapsing(150), 320),
    Runs("collapsing", falling_in_a_line(200), 190),
    Runs("collapsing", falling_in_a_line(600), 570),
    Runs("collapsing", collapsing(60), 130, scatter=0.1),
    Runs("exploding", exploding(80), 90),
    Runs("exploding", exploding(200), 200),
    *(Runs("settling", settling(share, constant), 500) for share, constant in ((0.7, 300), (0.5, 100), (0.35, 100))),
    *(Runs("healthy", flat, 500, scatter=scatter) for scatter in (SCATTER, 0.1, 0.2)),
    Runs("healthy", settling(0.85, 100), 500),
    Runs("healthy", waving(200), 500),
    *(Runs("held", settling(share, 20), 500, scatter=0.05, target=2 * share) for share in (0.75, 0.5, 0.25, 1.5)),
    Runs("broken", flat, 400, breaks="self_check", changes={SCORE_SELF_CHECK_Z: 4.0}),
    Runs("broken", flat, 400, breaks="zero_advantage", changes={ADVANTAGE_ZERO_GROUP_FRACTION: 0.5}),
    Runs("broken", flat, 400, breaks="prediction", changes={ENTROPY_PREDICTION_R2: -2.0}),
    Runs("broken", flat, 400, breaks="dead_knob", labels={"control/dead": "beta is 0: no penalty."}),
)

Raised = tuple[Runs, list[tuple[int, Alert]]]
"""The alerts of one run, by step."""


def raised(runs: Runs, seed: int) -> Raised:
    """Feed one run to the alerts."""
    watch = AlertWatch()
    rows = enumerate(runs.reports(seed))
    return runs, [(step, alert) for step, (scalars, labels) in rows for alert in watch.step(scalars, labels)]


def line(group: str, kind: str, level: AlertLevel, found: list[Raised]) -> str:
    """A row of the table: an alert of one level or above, over all runs of a group."""
    at_level = (level, AlertLevel.ACT)
    alerts = [(runs, [(s, a) for s, a in of_run if a.kind == kind and a.level in at_level]) for runs, of_run in found]
    due = [(runs.end(kind), of_run) for runs, of_run in alerts if runs.end(kind) is not None]
    # Of what broke, the first alert behind it: one before it is false.
    firsts = [
        (end, next((s for s, _ in of_run if kind in ENDS or s >= end), None)) for end, of_run in due if end is not None
    ]
    leads = [end - step for end, step in firsts if step is not None]
    in_time = sum(lead > 0 or kind not in ENDS for lead in leads)
    lost = [abs(1 - runs.left(kind, of_run[0][0])) for runs, of_run in alerts if of_run and kind == "collapse"]
    false = sum(runs.is_false(a, s) for runs, of_run in alerts for s, a in of_run if a.level is level)
    cells = [
        group,
        f"`{kind}`",
        str(level),
        f"{in_time} of {len(due)}",
        f"{median(lost):.0%}, {max(lost):.0%}" if lost else "",
        f"{median(leads):+.0f}" if leads else "",
        str(false),
        f"{1000 * false / sum(runs.steps for runs, _ in found):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def measure() -> list[str]:
    """The lines of a Markdown table."""
    found = [raised(runs, seed) for runs in RUNS for seed in range(SEEDS)]
    lines = [
        "| runs | alert | level | raised in time | lost: median, most | lead, steps (median) | false | per 1 000 steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group in dict.fromkeys(runs.group for runs in RUNS):
        of_group = [one for one in found if one[0].group == group]
        kinds = {(alert.kind, alert.level) for _, of_run in of_group for _, alert in of_run}
        lines += [line(group, kind, level, of_group) for kind, level in sorted(kinds)]
    return lines
