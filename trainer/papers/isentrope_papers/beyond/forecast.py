"""What the page says of the next fifty steps, against what came, over all runs of the other
figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from isentrope_papers.beyond.alarms import Alarms
from isentrope_papers.drawing import Picture, panels, points
from isentrope_papers.figure import Check, Figure, Results
from isentrope_papers.runs import Run, Series
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import ALGORITHMS
from isentrope_wire import metrics
from isentrope_wire.diagnosis.course import WATCH_LEFT
from isentrope_wire.diagnosis.effect import LastSteps
from isentrope_wire.diagnosis.health import Measured, diagnose, finite
from isentrope_wire.what_if import WhatIfSums

HORIZONS = (10, 20, 50)
LEAST, MOST = 0.85, 0.95
"""Accepted coverage of the 90 % band."""
EVERY, LINE_STEPS, MEAN_STEPS = 5, 20, 5
"""Steps between two forecasts, that the straight line is fitted to, and whose mean is what came."""


class Score(NamedTuple):
    """Score of a run's forecasts at one horizon; errors as shares of its early level."""

    error: float
    nothing_changes: float
    straight_line: float
    covered: float
    """Share of the steps that lay inside the 90 % band."""


def scores(run: Run) -> dict[int, Score]:
    """Scores by horizon, without horizons that no forecast reached."""
    entropies = run.series(metrics.ENTROPY_MEAN)
    early = float(np.nanmedian(entropies[: metrics.EARLY_STEPS]))
    found: dict[int, list[Score]] = {}
    for place in range(EVERY - 1, len(entropies), EVERY):
        said = diagnose(measured_at(run, place))
        for horizon in HORIZONS:
            if (
                said.forecast is None
                or said.entropy is None
                or place + horizon + MEAN_STEPS // 2 >= len(entropies)
            ):
                continue
            at = horizon - 1
            came = float(np.nanmean(entropies[place + horizon - MEAN_STEPS // 2 :][:MEAN_STEPS]))
            low, high = said.forecast.low[at], said.forecast.high[at]
            found.setdefault(horizon, []).append(
                Score(
                    abs(said.forecast.entropy[at] - came) / early,
                    abs(said.entropy - came) / early,
                    abs(straight(entropies[: place + 1], horizon) - came) / early,
                    float(low <= entropies[place + horizon] <= high),
                )
            )
    return {horizon: Score(*np.mean(each, axis=0)) for horizon, each in found.items()}


def measured_at(run: Run, place: int, what_if: Sequence[WhatIfSums] = ()) -> Measured:
    """What a diagnosis is made of after one of a run's steps."""

    def finite_values(values: Series) -> dict[int, float]:
        return finite(zip(run.steps[: place + 1].tolist(), values.tolist(), strict=False))

    def series(name: str) -> Series:
        if name in run.names:
            return run.series(name)
        return np.full(len(run.steps), np.nan)

    is_unseen = metrics.ENTROPY_UNSEEN_CHANGE in run.names
    by_control = series(metrics.ENTROPY_GAIN) * series(metrics.CHANGE_BY_INTERVENTION)
    newest = {name: float(run.series(name)[place]) for name in run.names}
    scalars = {name: value for name, value in newest.items() if np.isfinite(value)}
    last = LastSteps(
        sums=what_if, gain=scalars.get(metrics.ENTROPY_GAIN), of_unseen=is_unseen, scalars=scalars
    )
    return Measured(
        step=int(run.steps[place]),
        first_step=int(run.steps[0]),
        entropies=finite_values(run.series(metrics.ENTROPY_MEAN)),
        observed=finite_values(
            series(metrics.ENTROPY_UNSEEN_CHANGE if is_unseen else metrics.ENTROPY_OBSERVED_CHANGE)
        ),
        by_control=finite_values(by_control),
        explained=finite_values(
            np.where(np.isfinite(by_control), series(metrics.ENTROPY_PREDICTION_R2), np.nan)
        ),
        targets=finite_values(series(metrics.HOLD_TARGET)),
        is_acting=metrics.HOLD_MU in scalars,
        last=last,
    )


def straight(past: Series, horizon: int) -> float:
    """The least-squares line through the last steps, not below 0."""
    newest = past[-LINE_STEPS:][np.isfinite(past[-LINE_STEPS:])]
    slope, end = np.polyfit(np.arange(len(newest)) - len(newest) + 1, newest, 1)
    return max(0.0, float(end + slope * horizon))


def falls(run: Run) -> bool:
    """Whether a quarter of the early entropy is gone at the end."""
    return run.end(metrics.ENTROPY_MEAN) < WATCH_LEFT * run.start(
        metrics.ENTROPY_MEAN, metrics.EARLY_STEPS
    )


class Forecasts(Figure):
    name = "beyond-forecast"
    number = "Forecasts"
    title = "the next fifty steps, forecast and come"
    claim = (
        'In runs that fall the forecast\'s error is at most half of that of "nothing changes", in'
        " others it is not larger, and the 90 % band holds as often as it promises."
    )
    chosen_late = (
        "The fading and the errors that count before a run has own ones were fixed on runs of seed"
        " 0, these among them."
    )

    label = "run"
    partial = True
    horizons: tuple[int, ...] = HORIZONS

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        arms = {
            **Alarms().arms(plan),
            **{
                f"Prediction: {algorithm.label}, {way}-policy": plan.run(algorithm=name, **changed)
                for way, changed in (("on", {}), ("off", plan.several_updates))
                for name, algorithm in ALGORITHMS.items()
            },
        }
        return dict({arm.key: (label, arm) for label, arm in reversed(arms.items())}.values())

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, len(self.horizons), height=2.8)
        for panel, horizon in zip(axes, self.horizons, strict=True):
            end = 0.05
            for index, label in ((2, "falls"), (1, "does not")):
                of_kind = [
                    score
                    for run, score in self._scores_at(results, horizon)
                    if falls(run) == (label == "falls")
                ]
                unchanged = [score.nothing_changes for score in of_kind]
                errors = [score.error for score in of_kind]
                points(panel, unchanged, errors, index=index, label=label)
                end = max([end, *unchanged, *errors])
            panel.plot([0, end], [0, end], color="#888888", linewidth=0.8)
            panel.plot([0, end], [0, end / 2], color="#888888", linewidth=0.8, linestyle="--")
            panel.set(
                xlabel="error of “nothing changes”, of the early level",
                title=f"{horizon} steps ahead",
            )
        axes[0].set_ylabel("error of the forecast")
        axes[0].legend()
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        columns: dict[str, object] = {"falls": falls(run)}
        for horizon, score in scores(run).items():
            columns |= {f"{name}_{horizon}": value for name, value in score._asdict().items()}
        return columns

    def checks(self, results: Results) -> list[Check]:
        checks = []
        for horizon in self.horizons:
            of_runs = self._scores_at(results, horizon)
            for kind, words, most in (
                (True, "in runs that fall", 0.5),
                (False, "in the others", 1.0),
            ):
                of_kind = [score for run, score in of_runs if falls(run) == kind]
                if not of_kind or (kind and horizon == HORIZONS[0]):
                    continue  # a mean of five steps scatters more than ten steps move it
                error, nothing, line, _ = np.mean(of_kind, axis=0)
                checks.append(
                    Check(
                        statement=(
                            f"{horizon} steps ahead, {words}: at most {most:g} of the error of"
                            " nothing changes"
                        ),
                        holds=bool(error <= most * nothing),
                        number=(
                            f"{error / nothing:.2f}: {error:.3f} of the early level, nothing"
                            f" changes {nothing:.3f}, the straight line {line:.3f}"
                        ),
                        test=f"means over {len(of_kind)} runs",
                        reason=(
                            "A mean of five steps scatters nearly as much as twenty steps move it,"
                            " and what rises turns soon."
                        ),
                    )
                )
            covered = [score.covered for _, score in of_runs]
            checks.append(
                Check(
                    statement=f"{horizon} steps ahead the 90 % band holds in 85 to 95 %",
                    holds=bool(covered) and bool(LEAST <= np.mean(covered) <= MOST),
                    number=f"{np.mean(covered):.3f}",
                    test=f"mean over {len(covered)} runs",
                    reason=(
                        "Before a run has errors of its own those of other runs count, and most"
                        " runs are calmer."
                    ),
                )
            )
        return checks

    def _scores_at(self, results: Results, horizon: int) -> list[tuple[Run, Score]]:
        runs = [run for runs in self.finished(results).values() for run in runs]
        by_run = [(run, scores(run)) for run in runs]
        return [(run, by_horizon[horizon]) for run, by_horizon in by_run if horizon in by_horizon]
