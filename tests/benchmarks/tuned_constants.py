"""What half of each chosen constant, and half as much again, does to forecasts and alarms:
`python -m tests.benchmarks.tuned_constants [LOG ...]`; some minutes of one core.

The runs are the two recorded ones of the repository, the logs that are named, and drawn courses
that fall, rise, turn or stay. Each is read step by step, as a server reads it. Compared are the
forecasts of 20 steps (their error by that of "nothing changes", and how often the 90 % band holds),
the steps of the first alarms, and the levels of health lines. It writes `tuned_constants.csv`; the
recorded one has the logs of three runs of a language model, too."""

from __future__ import annotations

import csv
import math
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from isentrope.cli.log_files import read_log
from isentrope_trainer.recording import SHIPPED, read_recording
from isentrope_wire import metrics
from isentrope_wire.diagnosis.course import Course, tuning
from isentrope_wire.diagnosis.health import Measured, diagnose
from tests.countdown import countdown_run

TABLE = Path(__file__).with_suffix(".csv")
HORIZON = 20
HEALTH_EVERY = 25
"""Steps from one health line that is compared to the next."""
DRAWN_PACES = (-0.03, -0.01, -0.004, 0.0, 0.012)
"""Of log H a step, in the drawn courses; all but 0 fade by 1 % a step."""
DRAWN_SEEDS, DRAWN_STEPS, DRAWN_NOISE = 3, 150, 0.02
TURNS_AT = 80
"""Step from which on each third drawn course goes the other way, at a third of the pace."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a course is told of one step."""

    number: int
    entropy: float
    observed: float | None
    target: float | None
    version: int
    by_control: float | None
    explained: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of all runs under some constants."""

    forecasts: int
    error: float
    """Of forecasts 20 steps ahead, by that of "nothing changes"."""
    covered: float
    """Share of them whose band holds."""
    watched: tuple[int | None, ...]
    """Step of the first alert of each run; None: there is none."""
    acted: tuple[int | None, ...]
    """Step of the first that asks to act."""
    levels: tuple[str, ...]
    """The level of each health line that is compared."""


def read_step(number: int, scalars: Mapping[str, float], version: int) -> Step | None:
    """A step of a report or a log; None where its entropy was not measured."""
    entropy = scalars.get(metrics.ENTROPY_MEAN, math.nan)
    if not math.isfinite(entropy):
        return None
    gain = scalars.get(metrics.ENTROPY_GAIN)
    by_control = scalars.get(metrics.CHANGE_BY_INTERVENTION)
    return Step(
        number=number,
        entropy=entropy,
        observed=metrics.measured_change(scalars),
        target=scalars.get(metrics.HOLD_TARGET),
        version=version,
        by_control=None if gain is None or by_control is None else gain * by_control,
        explained=scalars.get(metrics.ENTROPY_PREDICTION_R2),
    )


def read_runs(logs: Sequence[str]) -> list[list[Step]]:
    """The recorded runs, and those of the logs."""
    runs = []
    for recording in (countdown_run(), read_recording(SHIPPED)):
        reports = recording.reports
        runs.append(
            [read_step(report.step, report.scalars, report.control_version) for report in reports]
        )
    for log in logs:
        rows = read_log(Path(log))
        runs.append(
            [read_step(step, row, int(row.get("control_version", 0))) for step, row in rows]
        )
    return [[step for step in run if step is not None] for run in runs]


def draw_courses() -> list[list[Step]]:
    """Courses from 1 nat on; their updates are observed with noise."""
    courses = []
    for pace in DRAWN_PACES:
        for seed in range(DRAWN_SEEDS):
            draw, z, steps = random.Random(seed), 0.0, list[Step]()
            for number in range(1, DRAWN_STEPS + 1):
                change = pace * 0.99**number
                if seed == DRAWN_SEEDS - 1 and number > TURNS_AT:
                    change /= -3
                z += change + draw.gauss(0, DRAWN_NOISE / 4)
                entropy = math.exp(z + draw.gauss(0, DRAWN_NOISE))
                observed = entropy * (change / 0.75 + draw.gauss(0, DRAWN_NOISE / 4))
                steps.append(Step(number, entropy, observed, None, 0, None, None))
            courses.append(steps)
    return courses


def follow(runs: Sequence[Sequence[Step]]) -> Outcome:
    """Read each run step by step under the constants as they are."""
    error = unchanged = 0.0
    forecasts = covered = 0
    watched, acted, levels = [], [], list[str]()
    for run in runs:
        course, version = Course(), 0
        first: dict[int, int] = {}
        for place, step in enumerate(run):
            raised = course.add(
                step.number,
                step.entropy,
                observed=step.observed,
                target=step.target,
                is_new_control=step.version != version and course.steps > 0,
                by_control=step.by_control,
                explained=step.explained,
            )
            version = step.version
            for urgency in raised.values():
                first.setdefault(urgency, step.number)
            if place % HEALTH_EVERY == 0:
                levels.append(read_level(run[: place + 1]))
            ahead = run[place + 1 : place + 1 + HORIZON]
            forecast = course.forecast()
            is_alone = len(ahead) == HORIZON and ahead[-1].number == step.number + HORIZON
            if forecast is None or not is_alone or not is_left_alone([step, *ahead]):
                continue
            came = ahead[-1].entropy
            forecasts += 1
            error += abs(forecast.entropy[HORIZON - 1] - came)
            unchanged += abs(course.entropy - came)
            covered += forecast.low[HORIZON - 1] <= came <= forecast.high[HORIZON - 1]
        acted.append(first.get(2))
        watched.append(min(first.values(), default=None))
    return Outcome(
        forecasts,
        error / unchanged,
        covered / forecasts,
        tuple(watched),
        tuple(acted),
        tuple(levels),
    )


def read_level(run: Sequence[Step]) -> str:
    """The level of a run's health line after its last step."""
    measured = Measured(
        step=run[-1].number,
        first_step=run[0].number,
        entropies={step.number: step.entropy for step in run},
        observed={step.number: step.observed for step in run if step.observed is not None},
        targets={step.number: step.target for step in run if step.target is not None},
    )
    return str(diagnose(measured).level)


def is_left_alone(steps: Sequence[Step]) -> bool:
    """Whether nothing was held, and the control stayed, over these steps."""
    return len({step.version for step in steps}) == 1 and all(step.target is None for step in steps)


CHANGED = {
    name: value
    for name, value in vars(tuning).items()
    if name.isupper() and name not in tuning.FIXED and isinstance(value, int | float | tuple)
}


def change(name: str, factor: float) -> Any:
    """A constant by a factor; a share that is left by what is lost of it."""
    value = CHANGED[name]
    if isinstance(value, tuple):
        return tuple(part * factor for part in value)
    if name.endswith("_LEFT"):
        return 1 - factor * (1 - value)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def write_value(value: Any) -> str:
    """A constant as the table has it."""
    if isinstance(value, tuple):
        return " ".join(map(write_value, value))
    return f"{value:.4g}"


@contextmanager
def changed_constant(name: str, value: Any) -> Any:
    """Inside, a constant has another value."""
    before = getattr(tuning, name)
    setattr(tuning, name, value)
    try:
        yield
    finally:
        setattr(tuning, name, before)


def tell(outcome: Outcome, usual: Outcome) -> str:
    """What differs, in words; empty where nothing does."""
    words, forecasts = [], f"{outcome.error:.2f}, {outcome.covered:.0%}"
    if forecasts != f"{usual.error:.2f}, {usual.covered:.0%}":
        words.append(forecasts)
    words += [
        *tell_alarms("watch", usual.watched, outcome.watched),
        *tell_alarms("act", usual.acted, outcome.acted),
    ]
    differ = sum(a != b for a, b in zip(usual.levels, outcome.levels, strict=True))
    if differ:
        words.append(f"{differ} of {len(usual.levels)} levels")
    return "; ".join(words)


def tell_alarms(what: str, usual: Sequence[int | None], now: Sequence[int | None]) -> list[str]:
    """How many runs have the alarm, and how much later it comes in those that have it both ways."""
    if usual == now:
        return []
    counts = [sum(step is not None for step in steps) for steps in (usual, now)]
    later = [b - a for a, b in zip(usual, now, strict=True) if a is not None and b is not None]
    mean = fmean(later) if later else 0.0
    moved = f" {mean:+.0f} steps" if abs(mean) >= 0.5 else ""
    ratio = f" in {counts[1]} of {len(now)} (was {counts[0]})" if counts[0] != counts[1] else ""
    return [f"{what}{moved}{ratio}"]


def compare(groups: Mapping[str, list[list[Step]]], usual: Mapping[str, Outcome]) -> str:
    """What differs in each group of runs under the constants as they are."""
    words = []
    for name, runs in groups.items():
        differs = tell(follow(runs), usual[name])
        if differs:
            words.append(f"{name}: {differs}")
    return "; ".join(words) or "nothing"


def main(logs: Sequence[str]) -> None:
    """Write the table."""
    groups = {"recorded": read_runs(logs), "drawn": draw_courses()}
    usual = {name: follow(runs) for name, runs in groups.items()}
    as_it_is = "; ".join(
        f"{name}: {outcome.forecasts} forecasts of {len(groups[name])} runs {outcome.error:.2f},"
        f" {outcome.covered:.0%}"
        for name, outcome in usual.items()
    )
    with TABLE.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["constant", "value", "chosen on", "half", "half as much again"])
        rows.writerow(["all as they are", "", "", as_it_is, as_it_is])
        for name, value in CHANGED.items():
            effects = []
            for factor in (0.5, 1.5):
                with changed_constant(name, change(name, factor)):
                    effects.append(compare(groups, usual))
            chosen_on = tuning.CHOSEN_ON.get(name, "not recorded")
            rows.writerow([name, write_value(value), chosen_on, *effects])


if __name__ == "__main__":
    main(sys.argv[1:])
