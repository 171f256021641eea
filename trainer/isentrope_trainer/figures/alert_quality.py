"""How early alerts are raised, and how often without cause: on synthetic runs, and on recorded ones.

    python -m isentrope_trainer.figures.alert_quality --seeds 20 --recorded DIR --out DIR

Prints one table for each of the two, in Markdown, and with --out writes `alert_quality.json`. DIR of --recorded is where
another experiment kept its runs (`recorded_runs.py`). Ends with status 1 when alerts of the synthetic runs are raised too
late or too often without cause (`good_enough`).

A synthetic run has the scalars that a probe would report of a loop whose entropy moves along a known course, so that
every alert can be compared with the truth; in a recorded run a mean over NEIGHBOURS steps around a step is the truth.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median

import click

from isentrope.statistics.alerts import AlertWatch
from isentrope.statistics.calibration import Calibration, Momentum
from isentrope.statistics.step import calibration_scalars
from isentrope_trainer.figures.recorded_runs import read_run
from isentrope_wire.diagnosis.course import ACT_LEFT, CEILING, FLOOR, WATCH_LEFT
from isentrope_wire.metrics import (
    ADVANTAGE_ZERO_GROUP_FRACTION,
    EARLY_STEPS,
    ENTROPY_MEAN,
    ENTROPY_PREDICTION_R2,
    HOLD_TARGET,
    SCORE_SELF_CHECK_Z,
)
from isentrope_wire.reports import Alert, AlertLevel

Course = Callable[[int], float]
"""The policy's entropy at a step, in nats."""

MOMENTUM = 0.9
GAIN = 0.4
SCATTER = 0.02
"""Of a step's mean entropy about the policy's, as a share of it: prompts change from batch to batch."""


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


Row = tuple[Mapping[str, float], Mapping[str, str]]
"""Scalars and labels of a step's report."""

ENDS = {"collapse": FLOOR, "explosion": CEILING}
"""Kinds about the entropy's course, and where it ends, as a share of the entropy they are counted from."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run and what is true of it."""

    group: str
    name: str
    rows: tuple[Row, ...]
    entropies: tuple[float, ...]
    """The true ones, in nats, one a step."""
    broken_at: Mapping[str, int] = field(default_factory=dict)
    """By kind of alert, the step (counted from 0) from which on something is wrong."""
    not_judged: frozenset[str] = frozenset()
    """Kinds whose truth is not known."""

    def base(self, kind: str) -> float:
        """The entropy that a collapse or an explosion is counted from: the early one, or beyond it the one to hold."""
        levels = [
            median(self.entropies[:EARLY_STEPS]),
            *(row[HOLD_TARGET] for row, _ in self.rows[:1] if HOLD_TARGET in row),
        ]
        return min(levels) if kind == "collapse" else max(levels)

    def left(self, kind: str, step: int) -> float:
        """What is left of that entropy; of an explosion, the inverse of how many times it there is."""
        now, base = self.entropies[step], self.base(kind)
        return now / base if kind == "collapse" else base / now

    def ends_at(self, kind: str) -> int | None:
        """The first step at which the true entropy is at the floor or ceiling; of other kinds, at which something broke."""
        if kind not in ENDS:
            return self.broken_at.get(kind)
        end = ENDS[kind] if kind == "collapse" else 1 / ENDS[kind]
        return next((step for step in range(len(self.rows)) if self.left(kind, step) <= end), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticCourse:
    """A course of the entropy, and for how many steps it is followed."""

    group: str
    course: Course
    steps: int
    scatter: float = SCATTER
    target: float | None = None
    """The entropy to hold, in nats."""


COURSES: Mapping[str, SyntheticCourse] = {
    "collapse, time constant 60": SyntheticCourse(group="collapsing", course=collapsing(60), steps=130),
    "collapse, time constant 150": SyntheticCourse(group="collapsing", course=collapsing(150), steps=320),
    "collapse in a line, 200 steps": SyntheticCourse(group="collapsing", course=falling_in_a_line(200), steps=190),
    "collapse in a line, 600 steps": SyntheticCourse(group="collapsing", course=falling_in_a_line(600), steps=570),
    "collapse, noise of 10 %": SyntheticCourse(group="collapsing", course=collapsing(60), steps=130, scatter=0.1),
    "explosion, time constant 80": SyntheticCourse(group="exploding", course=exploding(80), steps=90),
    "explosion, time constant 200": SyntheticCourse(group="exploding", course=exploding(200), steps=200),
    "settles at 70 %": SyntheticCourse(group="settling", course=settling(0.7, 300), steps=500),
    "settles at 50 %": SyntheticCourse(group="settling", course=settling(0.5, 100), steps=500),
    "settles at 35 %": SyntheticCourse(group="settling", course=settling(0.35, 100), steps=500),
    "flat": SyntheticCourse(group="healthy", course=flat, steps=500),
    "flat, noise of 10 %": SyntheticCourse(group="healthy", course=flat, steps=500, scatter=0.1),
    "flat, noise of 20 %": SyntheticCourse(group="healthy", course=flat, steps=500, scatter=0.2),
    "settles at 85 %": SyntheticCourse(group="healthy", course=settling(0.85, 100), steps=500),
    "a wave of 15 %": SyntheticCourse(group="healthy", course=waving(200), steps=500),
    "held at 75 %": SyntheticCourse(group="held", course=settling(0.75, 20), steps=500, scatter=0.05, target=1.5),
    "held at 50 %": SyntheticCourse(group="held", course=settling(0.5, 20), steps=500, scatter=0.05, target=1.0),
    "held at 25 %": SyntheticCourse(group="held", course=settling(0.25, 20), steps=500, scatter=0.05, target=0.5),
    "held at 150 %": SyntheticCourse(group="held", course=settling(1.5, 20), steps=500, scatter=0.05, target=3.0),
}

BROKEN_AT = 200
"""The step from which on something is wrong in the runs of `broken`."""


def synthetic(seed: int) -> Iterator[Scenario]:
    """One run of each course, and of each thing that can break, with this seed's noise."""
    for name, one in COURSES.items():
        held: dict[str, float] = {} if one.target is None else {HOLD_TARGET: one.target}
        rows = reports_of(one.course, one.steps, seed, scatter=one.scatter)
        entropies = tuple(one.course(step) for step in range(one.steps))
        yield Scenario(one.group, name, tuple(({**row, **held}, {}) for row in rows), entropies)
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
        return Scenario("broken", name, changed, (flat(0),) * len(rows), {kind: BROKEN_AT})

    yield run("the sampler draws from something else", "self_check", SCORE_SELF_CHECK_Z, 4.0)
    yield run("most groups lose their advantage", "zero_advantage", ADVANTAGE_ZERO_GROUP_FRACTION, 0.5)
    yield run("the prediction comes apart", "prediction", ENTROPY_PREDICTION_R2, -2.0)
    yield run("a knob dies", "dead_knob", "", 0.0, {"control/dead": "beta is 0: no penalty."})


NEIGHBOURS = 9
"""Steps about one whose mean is the true entropy of a recorded run."""


def recorded(folder: Path) -> Iterator[Scenario]:
    """The finished runs in a folder of recorded ones."""
    for path in sorted(folder.glob("*.json")):
        run = read_run(path)
        rows = tuple((step.scalars, step.labels) for step in run.steps)
        if rows and all(ENTROPY_MEAN in scalars for scalars, _ in rows):
            # The tokens are drawn from the policy that is scored, so that a failed self-check would be false; of the
            # others nothing but the alert's own definition is known.
            not_judged = frozenset({"prediction", "dead_knob", "zero_advantage"})
            group, seed = run.recipe["name"], run.recipe["config"]["seed"]
            yield Scenario(
                group, f"{group}, seed {seed}", rows, _smoothed(run.column(ENTROPY_MEAN)), not_judged=not_judged
            )


def _smoothed(values: Sequence[float]) -> tuple[float, ...]:
    reach = NEIGHBOURS // 2
    # As many on either side, so that a slope moves nothing.
    reaches = [min(reach, place, len(values) - 1 - place) for place in range(len(values))]
    return tuple(fmean(values[place - r : place + r + 1]) for place, r in enumerate(reaches))


KINDS = ("collapse", "explosion", "self_check", "prediction", "dead_knob", "zero_advantage")

TOLERANCE = 0.05
"""Of the early entropy: how much more than the level's share may really be left when an alert is raised."""
MOST_FALSE_PER_1000_STEPS = 1.0
FEWEST_IN_TIME = 0.95
"""Share of the collapses and explosions that are raised, as `act` too, before they have ended."""
MOST_LOST = 0.30
"""Share that may be lost at the first alert of a collapse, as a median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A raised alert, and whether it was right."""

    kind: str
    level: AlertLevel
    scenario: str
    step: int
    verdict: str
    """`right`; `false`; `open` where the run ends before what was predicted was due; `not judged`."""
    lost: float | None
    """Of the entropy it is counted from, the true share lost when it was raised; of an explosion, the share gained; None
    for other kinds."""
    lead: int | None
    """Steps from the alert to the end of the collapse or explosion, of other kinds from what broke: below 0, the alert
    came after it. None where that did not happen."""


def judged(scenario: Scenario) -> list[Judged]:
    """Every alert of a run."""
    watch = AlertWatch()
    return [
        _judged(scenario, alert, step)
        for step, (scalars, labels) in enumerate(scenario.rows)
        for alert in watch.step(scalars, labels)
    ]


def _judged(scenario: Scenario, alert: Alert, step: int) -> Judged:
    kind, end = alert.kind, scenario.ends_at(alert.kind)
    if kind in ENDS:
        verdict = _verdict_on_course(scenario, alert, step, end)
    elif kind in scenario.not_judged:
        verdict = "not judged"
    else:
        verdict = "right" if end is not None and step >= end else "false"
    lost = abs(1 - scenario.entropies[step] / scenario.base(kind)) if kind in ENDS else None
    lead = None if end is None else end - step
    return Judged(
        kind=kind, level=alert.level, scenario=scenario.name, step=step, verdict=verdict, lost=lost, lead=lead
    )


def _verdict_on_course(scenario: Scenario, alert: Alert, step: int, end: int | None) -> str:
    limit = WATCH_LEFT if alert.level is AlertLevel.WATCH else ACT_LEFT
    if scenario.left(alert.kind, step) <= limit + TOLERANCE:
        return "right"
    steps_left = alert.evidence.get("steps_left")
    if steps_left is None:
        return "false"
    if end is not None:
        return "right"
    # Twice the time that was given: a prediction that is late by half is a poor one, but not without cause.
    return "open" if step + 2 * steps_left >= len(scenario.rows) else "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One kind of alert at one level, over the runs of one group."""

    group: str
    kind: str
    level: AlertLevel
    runs: int
    steps: int
    ended: int
    """Runs in which the collapse or explosion ended, or something broke."""
    in_time: int
    """Of those the ones in which it was raised: before the end, where it is about the entropy's course."""
    median_lost: float | None
    """Of the first alert of each run at this level or above, and the largest."""
    largest_lost: float | None
    median_lead: float | None
    """Of the same alerts, in the runs in which it happened."""
    right: int
    false: int
    open: int
    not_judged: int

    @property
    def false_per_1000_steps(self) -> float:
        return 1000 * self.false / self.steps


def figures(scenarios: Sequence[Scenario], alerts: Sequence[Sequence[Judged]]) -> list[Figures]:
    """One row for each group, kind and level that was raised, and of those about the entropy's course for all.

    Args:
        alerts: of each scenario.
    """
    groups = list(dict.fromkeys(scenario.group for scenario in scenarios))
    rows = []
    for group in groups:
        runs = [(one, found) for one, found in zip(scenarios, alerts, strict=True) if one.group == group]
        for kind in KINDS:
            for level in AlertLevel:
                row = _figures_of(group, kind, level, runs)
                if row.right + row.false + row.open + row.not_judged or kind in ENDS:
                    rows.append(row)
    return rows


def _figures_of(group: str, kind: str, level: AlertLevel, runs: Sequence[tuple[Scenario, Sequence[Judged]]]) -> Figures:
    levels = (level, AlertLevel.ACT)
    of_kind = [[one for one in found if one.kind == kind and one.level in levels] for _, found in runs]
    ends = [scenario.ends_at(kind) for scenario, _ in runs]
    firsts = [found[0] for found in of_kind if found]
    lost = [one.lost for one in firsts if one.lost is not None]
    # Of what broke, the first alert behind it: one before it is false.
    counted = [next((one for one in found if one.verdict != "false" or kind in ENDS), None) for found in of_kind]
    leads = [one.lead for one in counted if one is not None and one.lead is not None]

    def count(verdict: str) -> int:
        return sum((one.verdict, one.level) == (verdict, level) for found in of_kind for one in found)

    return Figures(
        group=group,
        kind=kind,
        level=level,
        runs=len(runs),
        steps=sum(len(scenario.rows) for scenario, _ in runs),
        ended=sum(end is not None for end in ends),
        in_time=sum(lead > 0 or kind not in ENDS for lead in leads),
        median_lost=median(lost) if lost else None,
        largest_lost=max(lost, default=None),
        median_lead=median(leads) if leads else None,
        right=count("right"),
        false=count("false"),
        open=count("open"),
        not_judged=count("not judged"),
    )


def table(rows: Iterable[Figures]) -> str:
    """In Markdown."""
    head = "runs|alert|level|happened|raised in time|lost or gained by then: median, most|lead, steps (median)"
    names = [*head.split("|"), "right", "false", "per 1 000 steps", "open", "not judged"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for one in rows:
        lead = "–" if one.median_lead is None else f"{one.median_lead:+.0f}"
        lost = "–" if one.median_lost is None else f"{one.median_lost:.0%}, {one.largest_lost:.0%}"
        lines.append(
            f"| {one.group} | `{one.kind}` | {one.level} | {one.ended} of {one.runs} | {one.in_time} | {lost} | {lead} | "
            f"{one.right} | {one.false} | {one.false_per_1000_steps:.2f} | {one.open} | {one.not_judged} |"
        )
    return "\n".join(lines)


def good_enough(rows: Iterable[Figures]) -> bool:
    """Whether each alert is raised in time, and seldom without cause."""
    return all(
        one.in_time >= FEWEST_IN_TIME * one.ended
        and one.false_per_1000_steps <= MOST_FALSE_PER_1000_STEPS
        and (
            (one.group, one.kind, one.level) != ("collapsing", "collapse", AlertLevel.WATCH)
            or (one.median_lost is not None and one.median_lost <= MOST_LOST)
        )
        for one in rows
    )


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Runs of each course.")
@click.option(
    "--recorded",
    "folders",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="A folder of recorded runs; may be repeated.",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for alert_quality.json.")
def main(seeds: int, folders: tuple[Path, ...], out: Path | None) -> None:
    """Feed runs to the alerts, and print how early they are raised, and how often without cause."""
    sources = {"synthetic": [scenario for seed in range(seeds) for scenario in synthetic(seed)]}
    if folders:
        sources["recorded"] = [scenario for folder in folders for scenario in recorded(folder)]
    document, good = {}, True
    for source, scenarios in sources.items():
        alerts = [judged(scenario) for scenario in scenarios]
        rows = figures(scenarios, alerts)
        click.echo(
            f"\n{source.capitalize()} runs: {len(scenarios)}, {sum(len(one.rows) for one in scenarios)} steps.\n"
        )
        click.echo(table(rows))
        for one in (one for found in alerts for one in found if source == "recorded" or one.verdict == "false"):
            lost = "" if one.lost is None else f", {one.lost:.0%} lost or gained"
            click.echo(
                f"- {one.scenario}: {one.kind} ({one.level}) at step {one.step}, {one.verdict}{lost}, lead {one.lead}"
            )
        good &= source == "recorded" or good_enough(rows)
        document[source] = {
            "figures": [asdict(one) | {"false_per_1000_steps": one.false_per_1000_steps} for one in rows],
            "alerts": [asdict(one) for found in alerts for one in found],
        }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "alert_quality.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
