"""How often the observed change lay in its 90 % interval, out of sample: on recorded runs and on series made of numbers.

    python -m isentrope_trainer.figures.coverage RUNS [--name vanilla]

RUNS is a folder of recorded runs, as `experiments.hold_target` keeps them; nothing is trained again. `reported` is what
the run said at the time, `replayed` what today's calibration makes of the same steps: every interval is asked for before
its observation is shown. The width is the mean one, in standard deviations of the observed changes.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

import click

from isentrope.statistics.calibration import Calibration, Momentum
from isentrope_trainer.figures.prediction_series import FIRST_JUDGED, PredictionSeries, read_series

LOWEST, HIGHEST = 0.80, 0.97
"""The share of observed changes that must lie in their interval."""
SEEDS, STEPS, MOMENTUM = 5, 300, 0.9
"""Of the series made of numbers."""

Interval = tuple[float, float] | None
Noise = Callable[[random.Random, int], float]


@dataclass(frozen=True, slots=True)
class Coverage:
    """From step FIRST_JUDGED on."""

    share: float
    width: float
    """Mean width in standard deviations of the observed changes."""

    @property
    def as_promised(self) -> bool:
        return LOWEST <= self.share <= HIGHEST


def coverage(intervals: Sequence[Interval], observed: Sequence[float]) -> Coverage:
    """Of the steps that have an interval."""
    judged = [
        (interval, change)
        for interval, change in zip(intervals[FIRST_JUDGED:], observed[FIRST_JUDGED:], strict=True)
        if interval is not None
    ]
    spread = pstdev(observed[FIRST_JUDGED:])
    return Coverage(
        share=fmean(low <= change <= high for (low, high), change in judged),
        width=fmean(high - low for (low, high), _ in judged) / spread,
    )


def replayed(series: PredictionSeries) -> list[Interval]:
    """The intervals that the calibration gives, each before it has seen the step's observed change."""
    calibration, intervals = Calibration(), list[Interval]()
    columns = zip(series.unit_predictions, series.observed_changes, series.entropies, strict=True)
    for unit, observed, entropy in columns:
        found = calibration.step(unit, observed, Momentum(series.momentum), series.learning_rate * entropy)
        intervals.append(None if found.low is None or found.high is None else (found.low, found.high))
    return intervals


def _heavy_tailed(rng: random.Random, _: int) -> float:
    return rng.gauss(0, 1) / math.sqrt(fmean(rng.gauss(0, 1) ** 2 for _ in range(3)))


NOISES: Mapping[str, Noise] = {
    "normal": lambda rng, _: rng.gauss(0, 1),
    "heavy tails (Student, 3)": _heavy_tailed,
    "shrinks e-fold in 80 steps": lambda rng, step: rng.gauss(0, 1) * math.exp(-step / 80),
    "shrinks e-fold in 25 steps": lambda rng, step: rng.gauss(0, 1) * math.exp(-step / 25),
    "grows e-fold in 80 steps": lambda rng, step: rng.gauss(0, 1) * math.exp(step / 80),
    "jumps fourfold and back": lambda rng, step: rng.gauss(0, 4 if step // 100 % 2 else 1),
}


def synthetic(noise: Noise, seed: int) -> Coverage:
    """Of a series whose observed change is a constant gain times the average, and noise."""
    rng, calibration, average, weight = random.Random(seed), Calibration(), 0.0, 0.0
    intervals, observed = list[Interval](), list[float]()
    for step in range(STEPS):
        unit = rng.gauss(-0.5, 1)
        average, weight = MOMENTUM * average + (1 - MOMENTUM) * unit, MOMENTUM * weight + (1 - MOMENTUM)
        observed.append(0.5 * average / weight + 0.2 * noise(rng, step))
        found = calibration.step(unit, observed[-1], Momentum(MOMENTUM))
        intervals.append(None if found.low is None or found.high is None else (found.low, found.high))
    return coverage(intervals, observed)


@click.command()
@click.argument("runs", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", default="vanilla", show_default=True, help="Of the runs, as their files' names begin.")
def main(runs: Path, name: str) -> None:
    """Print how often the interval covered what came; exit status 1 when that is not as promised in every run."""
    click.echo("| series | reported | replayed | width replayed |\n|---|---|---|---|")
    promised = []
    for series in read_series(runs, name):
        before = coverage(series.intervals, series.observed_changes)
        now = coverage(replayed(series), series.observed_changes)
        promised.append(now.as_promised)
        click.echo(f"| {series.name} | {before.share:.1%} | {now.share:.1%} | {now.width:.2f} |")
    for label, noise in NOISES.items():
        found = [synthetic(noise, seed) for seed in range(SEEDS)]
        promised += [one.as_promised for one in found]
        lowest, highest = min(one.share for one in found), max(one.share for one in found)
        click.echo(f"| {label} | | {lowest:.1%} to {highest:.1%} | {fmean(one.width for one in found):.2f} |")
    sys.exit(0 if all(promised) else 1)


if __name__ == "__main__":
    main()
