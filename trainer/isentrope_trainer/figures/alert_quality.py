"""How early alerts come, and how often for nothing: on runs made of numbers, and on recorded ones.

    python -m isentrope_trainer.figures.alert_quality --seeds 20 --recorded DIR --out DIR

Prints one table for each of the two, in Markdown, and with --out writes `alert_quality.json`. DIR of --recorded is what
another experiment kept its runs in (`recorded_runs.py`). Ends with status 1 when an alert of the runs made of numbers
came too late or too often for what we hold ourselves to.

What alerts are judged by: runs made of numbers, and recorded ones, each with what really came to pass in it.

Runs made of numbers alone: what a probe would report of a loop whose entropy moves in a known way.
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

from isentrope.statistics.alerts import ARRIVAL_STEPS, CEILING, FLOOR, AlertWatch
from isentrope.statistics.calibration import Calibration, Momentum
from isentrope.statistics.step import calibration_scalars
from isentrope_trainer.figures.recorded_runs import read_run
from isentrope_wire.metrics import (
    ADVANTAGE_ZERO_GROUP_FRACTION,
    EARLY_STEPS,
    ENTROPY_MEAN,
    ENTROPY_PREDICTION_R2,
    SCORE_SELF_CHECK_Z,
)

Course = Callable[[int], float]
"""The policy's entropy at a step, in nats."""

MOMENTUM = 0.9
GAIN = 0.4


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


def reports_of(course: Course, steps: int, seed: int, *, noise: float = 0.3) -> Iterator[dict[str, float]]:
    """Scalars of each step, as the probe makes them.

    Args:
        noise: of the observed change, as a share of its usual size; the mean over a batch scatters on its own by 2 %.
    """
    rng, calibration, average = random.Random(seed), Calibration(), 0.0
    changes = [course(step + 1) - course(step) for step in range(steps)]
    size = math.sqrt(sum(change**2 for change in changes) / steps) + 0.002
    for step, change in enumerate(changes):
        # The optimiser moves along the average; what it is given scatters about what makes the course.
        given = change + rng.gauss(0, size)
        average = MOMENTUM * average + (1 - MOMENTUM) * given
        observed = average / (1 - MOMENTUM ** (step + 1)) + rng.gauss(0, noise * size)
        prediction = calibration.step(given / GAIN, observed, Momentum(MOMENTUM))
        yield {
            ENTROPY_MEAN: course(step) * (1 + rng.gauss(0, 0.02)),
            SCORE_SELF_CHECK_Z: rng.gauss(0, 1.5),
            ADVANTAGE_ZERO_GROUP_FRACTION: min(max(0.3 + rng.gauss(0, 0.1), 0.0), 1.0),
            **calibration_scalars(prediction),
        }


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
    if len(entropies) < ARRIVAL_STEPS:
        return {}
    early = median(entropies[:EARLY_STEPS])
    found: dict[str, int] = {}
    for step in range(ARRIVAL_STEPS, len(entropies)):
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


KINDS = ("collapse", "explosion", "self_check", "prediction", "dead_knob", "zero_advantage")

MOST_FALSE_PER_1000_STEPS = 1.0
FEWEST_FORETOLD = 0.95
"""Share of the collapses and explosions that are said before they have arrived."""


@dataclass(frozen=True, slots=True)
class Said:
    """An alert, and what became of it."""

    kind: str
    scenario: str
    step: int
    verdict: str
    """`right`; `false`; `open` where the recording ends before what was foretold was due; `unjudged`."""
    lead: int | None = None
    """Steps from the alert to what it is about, below 0 when it came after; None where that did not come to pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one kind of alert comes to over many runs."""

    kind: str
    runs: int
    steps: int
    events: int
    """Runs in which what it is about came to pass."""
    told: int
    """Of those the ones it was said in: beforehand, where the kind foretells."""
    median_lead: float | None
    median_lead_share: float | None
    """The same as a share of the step at which it came to pass."""
    false: int
    open: int
    unjudged: int

    @property
    def false_per_1000_steps(self) -> float:
        return 1000 * self.false / self.steps


def judged(scenario: Scenario) -> list[Said]:
    """Every alert of a run."""
    watch, found = AlertWatch(), []
    for step, (scalars, labels) in enumerate(scenario.rows):
        for alert in watch.step(scalars, labels):
            left = alert.evidence.get("steps_left", 0.0)
            found.append(_said(scenario, alert.kind, step, left))
    return found


def _said(scenario: Scenario, kind: str, step: int, steps_left: float) -> Said:
    event = scenario.events.get(kind)
    if event is not None and (kind in LEVELS or step >= event):
        return Said(kind, scenario.name, step, "right", event - step)
    if kind in scenario.unjudged:
        return Said(kind, scenario.name, step, "unjudged")
    # Twice the time that was given: a forecast that is late by half is a poor one, but not for nothing.
    due_later = kind in LEVELS and step + 2 * steps_left >= len(scenario.rows)
    return Said(kind, scenario.name, step, "open" if due_later else "false")


def figures(scenarios: Sequence[Scenario], said: Sequence[Sequence[Said]]) -> list[Figures]:
    """One line for each kind.

    Args:
        said: the alerts of each scenario.
    """
    return [_figures_of(kind, scenarios, [[one for one in run if one.kind == kind] for run in said]) for kind in KINDS]


def _figures_of(kind: str, scenarios: Sequence[Scenario], said: Sequence[Sequence[Said]]) -> Figures:
    leads, shares, events = [], [], 0
    for scenario, alerts in zip(scenarios, said, strict=True):
        event = scenario.events.get(kind)
        events += event is not None
        first = next((one.lead for one in alerts if one.lead is not None), None)
        if event and first is not None and (first > 0 or kind not in LEVELS):
            leads.append(first)
            shares.append(first / event)

    def count(verdict: str) -> int:
        return sum(one.verdict == verdict for alerts in said for one in alerts)

    return Figures(
        kind=kind,
        runs=len(scenarios),
        steps=sum(len(scenario.rows) for scenario in scenarios),
        events=events,
        told=len(leads),
        median_lead=median(leads) if leads else None,
        median_lead_share=median(shares) if shares else None,
        false=count("false"),
        open=count("open"),
        unjudged=count("unjudged"),
    )


def table(lines: Iterable[Figures]) -> str:
    """In Markdown."""
    rows = [
        "| alert | came to pass | said | lead, steps (median) | of the way | false | per 1 000 steps | open | not judged |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in lines:
        lead = "–" if one.median_lead is None else f"{one.median_lead:+.0f}"
        share = "–" if one.median_lead_share is None else f"{one.median_lead_share:+.0%}"
        rows.append(
            f"| `{one.kind}` | {one.events} of {one.runs} runs | {one.told} | {lead} | {share} | {one.false} | "
            f"{one.false_per_1000_steps:.2f} | {one.open} | {one.unjudged} |"
        )
    return "\n".join(rows)


def good_enough(lines: Iterable[Figures]) -> bool:
    """Whether each kind is said when it should be, and not much else."""
    return all(
        one.told >= FEWEST_FORETOLD * one.events and one.false_per_1000_steps <= MOST_FALSE_PER_1000_STEPS
        for one in lines
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
    """Feed runs to the alerts, and print how early and how often for nothing they are said."""
    groups = {"made of numbers": [scenario for seed in range(seeds) for scenario in synthetic(seed)]}
    if folders:
        groups["recorded"] = [scenario for folder in folders for scenario in recorded(folder)]
    document, good = {}, True
    for name, scenarios in groups.items():
        said = [judged(scenario) for scenario in scenarios]
        lines = figures(scenarios, said)
        click.echo(f"\nRuns {name}: {len(scenarios)}, {sum(len(one.rows) for one in scenarios)} steps.\n")
        click.echo(table(lines))
        for one in (one for alerts in said for one in alerts if name == "recorded" or one.verdict == "false"):
            click.echo(f"- {one.scenario}: {one.kind} at step {one.step}, {one.verdict}, lead {one.lead}")
        good &= name == "recorded" or good_enough(lines)
        document[name] = {
            "figures": [asdict(one) | {"false_per_1000_steps": one.false_per_1000_steps} for one in lines],
            "alerts": [asdict(one) for alerts in said for one in alerts],
        }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "alert_quality.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
