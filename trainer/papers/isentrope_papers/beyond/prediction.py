"""How well a step's entropy change is predicted: by the theory and by the entropy's gradient, by
algorithm, on- and off-policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from isentrope_papers.drawing import Picture, averaged, look, panels
from isentrope_papers.evidence import check_at_least, check_at_most, higher, pearson
from isentrope_papers.figure import Check, Figure, Results
from isentrope_papers.fresh import FRESH_CHANGE, FRESH_ERROR
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import ALGORITHMS
from isentrope_wire import metrics

LEARNING = 0.2
"""Share of a run's steps in which the prediction is still calibrated; they are not judged."""
LOWEST_COVERAGE, HIGHEST_COVERAGE = 0.87, 0.93
"""Accepted coverage of the 90 % interval."""
LOWEST_SUM, HIGHEST_SUM = 0.9, 1.1
"""Accepted ratio of what came to what was predicted."""
FRESH_COMPLETIONS = 512
"""That judge each update."""
ALGORITHMS_JUDGED = ("grpo", "rloo", "reinforce_plus_plus", "ppo")
"""On-policy Dr. GRPO and DAPO make nearly the run of GRPO."""
ON_POLICY_STEPS, OFF_POLICY_STEPS = 44, 48
"""Judging an update by fresh completions costs as much as making it."""
FIRST_SEED = 210
"""On earlier ones constants were chosen."""


class Quality(NamedTuple):
    """Quality of a run's predictions, each made before its change was observed."""

    fresh: float
    """Correlation of the coupled prediction with the change of fresh completions, which nothing
    else saw (`isentrope_papers.fresh`)."""
    fresh_coverage: float
    """Share of the fresh changes that the 90 % interval held, or missed by no more than their own
    noise explains."""
    fresh_ratio: float
    """Sum of the fresh changes by that of the coupled predictions."""
    coupled: float
    """Correlation of the coupled prediction with the change of unseen tokens."""
    theory: float
    """Correlation of the theory's prediction with the change of fresh completions."""


def judged(run: Run, metric: str) -> np.ndarray:
    """The steps that are judged."""
    return select_judged(run.series(metric))


def select_judged(values: np.ndarray) -> np.ndarray:
    return values[int(LEARNING * len(values)) :]


def theory(run: Run) -> np.ndarray:
    """What the theory says of each step's change, but for a gain: the unit prediction as the
    optimiser adds it up, times H."""
    return select_judged(
        averaged(run.series(metrics.ENTROPY_UNIT_PREDICTED_CHANGE))
        * run.series(metrics.ENTROPY_MEAN)
    )


def quality(run: Run) -> Quality:
    """Quality of the predictions over the judged steps."""
    predicted = judged(run, metrics.ENTROPY_PREDICTED_CHANGE)
    low, high = (
        judged(run, metrics.ENTROPY_PREDICTED_CHANGE_LOW),
        judged(run, metrics.ENTROPY_PREDICTED_CHANGE_HIGH),
    )
    fresh, noise = judged(run, FRESH_CHANGE), judged(run, FRESH_ERROR)
    reach = np.hypot((high - low) / 2, NORMAL_QUANTILE * noise)
    bounded = ~np.isnan(low * high)
    known = ~np.isnan(predicted)
    return Quality(
        fresh=pearson(predicted, fresh),
        fresh_coverage=float(np.mean((np.abs(fresh - predicted) <= reach)[bounded])),
        fresh_ratio=float(np.sum(fresh[known]) / np.sum(predicted[known])),
        coupled=pearson(predicted, judged(run, metrics.ENTROPY_UNSEEN_CHANGE)),
        theory=pearson(theory(run), fresh),
    )


NORMAL_QUANTILE = 1.645
"""Of a two-sided 90 %."""


class Prediction(Figure):
    name = "beyond-prediction"
    number = "Prediction"
    title = "predicted change of a step, and what it did to fresh completions, by algorithm"
    claim = (
        "The entropy's gradient times the optimiser's step predicts the change of the entropy on"
        " fresh completions, whose prompts and tokens neither the updates nor the prediction saw,"
        " for every algorithm, on- and off-policy, and its 90 % interval holds as often as it"
        " promises."
    )
    chosen_late = (
        "That runs are fewer and shorter than other figures', for the machine's time, before any"
        " was seen. Each setting has seeds of its own."
    )

    label = "setting"
    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        on_policy, off_policy = dict[str, Any](), dict(plan.several_updates)
        fresh = 32
        if not plan.quick:
            on_policy["steps"], off_policy["steps"] = ON_POLICY_STEPS, OFF_POLICY_STEPS
            fresh = FRESH_COMPLETIONS
        arms: dict[str, RunSettings] = {}
        for name in ALGORITHMS_JUDGED:
            for way, changed in (("on", on_policy), ("off", off_policy)):
                # Seeds of its own: the settings are samples that nothing pairs.
                run = plan.run(
                    algorithm=name,
                    first_seed=FIRST_SEED + 10 * len(arms),
                    **{**changed, "evaluation": None},
                )
                arms[f"{ALGORITHMS[name].label}, {way}-policy"] = replace(run, fresh=fresh)
        return arms

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 4, height=3.4)
        qualities = {label: [*map(quality, runs)] for label, runs in self.finished(results).items()}
        titles = (
            ("theory", "(a) theory, r", 0.0),
            ("fresh", "(b) coupled, r", 0.8),
            ("fresh_ratio", "(c) came by predicted", 1.0),
            ("fresh_coverage", "(d) interval held", 0.9),
        )
        for panel, (what, title, line) in zip(axes, titles, strict=True):
            panel.axvline(line, color="#888888", linewidth=0.8, linestyle="--")
            for place, (label, of_seeds) in enumerate(qualities.items()):
                style = look(2 if label.endswith("off-policy") else 1)
                values = [getattr(run, what) for run in of_seeds]
                panel.plot(values, [place] * len(values), "|", color=style.color, markersize=8)
                panel.plot(
                    [np.mean(values)], [place], style.marker, color=style.color, markersize=4
                )
            panel.set_yticks(range(len(qualities)), list(qualities) if what == "theory" else [])
            panel.invert_yaxis()
            panel.set_title(title)
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return quality(run)._asdict()

    def checks(self, results: Results) -> list[Check]:
        qualities = [quality(run) for runs in self.finished(results).values() for run in runs]
        coupled = [run.fresh for run in qualities]
        coverages = [run.fresh_coverage for run in qualities]
        ratios = [run.fresh_ratio for run in qualities]
        return [
            higher(
                "the coupled prediction goes with the fresh change more closely than the theory's",
                coupled,
                [run.theory for run in qualities],
            ),
            check_at_least("r with the fresh change is at least 0.8", coupled, 0.8),
            check_at_least("what came is at least 0.9 of what was predicted", ratios, LOWEST_SUM),
            check_at_most("and at most 1.1", ratios, HIGHEST_SUM),
            check_at_least("the interval holds in at least 87 %", coverages, LOWEST_COVERAGE),
            check_at_most("and in at most 93 %", coverages, HIGHEST_COVERAGE),
        ]
