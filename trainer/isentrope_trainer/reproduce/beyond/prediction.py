"""How well a step's entropy change is predicted, by algorithm, on- and off-policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from isentrope_trainer.reproduce.drawing import Picture, look, panels
from isentrope_trainer.reproduce.evidence import at_least, at_most, correlated, pearson
from isentrope_trainer.reproduce.figure import BEYOND, Check, Figure, Results
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_trainer.settings import ALGORITHMS
from isentrope_wire.metrics import (
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_PREDICTED_CHANGE,
    ENTROPY_PREDICTED_CHANGE_HIGH,
    ENTROPY_PREDICTED_CHANGE_LOW,
)

LEARNING = 0.2
"""Share of a run's steps in which the prediction is still calibrated; they are not judged."""
LOWEST_COVERAGE, HIGHEST_COVERAGE = 0.8, 0.97
"""Of the interval that promises 0.9."""


class Quality(NamedTuple):
    """Of a run's predictions, each made before its step."""

    correlation: float
    sign_agreement: float
    coverage: float


def judged(run: Run, metric: str) -> np.ndarray:
    """The steps that are judged."""
    values = run.series(metric)
    return values[int(LEARNING * len(values)) :]


def quality(run: Run) -> Quality:
    """Correlation and sign of predicted and observed changes, and how often the interval held."""
    predicted, observed = judged(run, ENTROPY_PREDICTED_CHANGE), judged(run, ENTROPY_OBSERVED_CHANGE)
    low, high = judged(run, ENTROPY_PREDICTED_CHANGE_LOW), judged(run, ENTROPY_PREDICTED_CHANGE_HIGH)
    measured, bounded = ~np.isnan(predicted * observed), ~np.isnan(low * high * observed)
    return Quality(
        pearson(predicted, observed),
        float(np.mean((predicted > 0)[measured] == (observed > 0)[measured])),
        float(np.mean(((low <= observed) & (observed <= high))[bounded])),
    )


class Prediction(Figure):
    name = "beyond-prediction"
    paper = BEYOND
    number = "Prediction"
    title = "predicted and observed change of a step, by algorithm"
    claim = (
        "The calibrated prediction of a step's entropy change, made before the step, goes with the change that is then observed "
        "for every algorithm, on- and off-policy, and its 90 % interval holds as often as it promises."
    )
    chosen_late = (
        "PRIME's reward model learns at a tenth of the policy's rate; at the same rate, chosen first, its rewards were exploited and "
        "right answers were gone within 30 steps."
    )

    label = "setting"
    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        on = {f"{one.label}, on-policy": plan.run(algorithm=name) for name, one in ALGORITHMS.items()}
        return on | {
            f"{one.label}, off-policy": plan.run(algorithm=name, **plan.off_policy) for name, one in ALGORITHMS.items()
        }

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 3, height=3.4)
        found = {label: [quality(run) for run in runs] for label, runs in self.finished(results).items()}
        titles = (
            ("correlation", "(a) correlation", 0.0),
            ("sign_agreement", "(b) same sign", 0.5),
            ("coverage", "(c) 90 % interval held", 0.9),
        )
        for panel, (what, title, line) in zip(axes, titles, strict=True):
            panel.axvline(line, color="#888888", linewidth=0.8, linestyle="--")
            for place, (label, of_seeds) in enumerate(found.items()):
                style = look(2 if label.endswith("off-policy") else 1)
                values = [getattr(one, what) for one in of_seeds]
                panel.plot(values, [place] * len(values), "|", color=style.color, markersize=8)
                panel.plot([np.mean(values)], [place], style.marker, color=style.color, markersize=4)
            panel.set_yticks(range(len(found)), list(found) if what == "correlation" else [])
            panel.invert_yaxis()
            panel.set_title(title)
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return quality(run)._asdict()

    def checks(self, results: Results) -> list[Check]:
        checks, found = [], self.finished(results)
        for label, runs in found.items():
            pairs = [(judged(run, ENTROPY_PREDICTED_CHANGE), judged(run, ENTROPY_OBSERVED_CHANGE)) for run in runs]
            checks.append(
                correlated(
                    f"{label}: predicted and observed change go together",
                    pairs,
                    reason="Where the entropy hardly moves, the noise of a batch is most of what is observed.",
                )
            )
        of_arms = [[quality(run) for run in runs] for runs in found.values()]
        count = min(len(of_arm) for of_arm in of_arms)
        by_seed = [Quality(*np.mean([of_arm[place] for of_arm in of_arms], axis=0)) for place in range(count)]
        checks += [
            at_least(
                "the sign is right more often than not, over all settings", [q.sign_agreement for q in by_seed], 0.5
            ),
            at_least(
                "the interval holds in at least 80 %, over all settings", [q.coverage for q in by_seed], LOWEST_COVERAGE
            ),
            at_most("and in at most 97 %", [q.coverage for q in by_seed], HIGHEST_COVERAGE),
        ]
        return checks


FIGURES = (Prediction(),)
