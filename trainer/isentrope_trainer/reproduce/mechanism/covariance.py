"""Fig. 8: the covariance of log-probs and advantages over the training, and by difficulty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isentrope_trainer.reproduce.drawing import SMOOTHED_STEPS, course, panels, smoothed
from isentrope_trainer.reproduce.evidence import at_least, correlated, higher
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results, Row
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import (
    COVARIANCE_ADVANTAGE_LOGPROB,
    COVARIANCE_GROUP_EASY,
    COVARIANCE_GROUP_HARD,
    COVARIANCE_GROUP_MIDDLE,
    ENTROPY_OBSERVED_CHANGE,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ARM = "GRPO"
DIFFICULTIES = {"easy": COVARIANCE_GROUP_EASY, "middle": COVARIANCE_GROUP_MIDDLE, "hard": COVARIANCE_GROUP_HARD}
SMOOTHED = 4 * SMOOTHED_STEPS + 1


class CovarianceMovesEntropy(Figure):
    name = "mechanism-8"
    paper = MECHANISM
    number = "Fig. 8"
    title = "covariance and the change of the entropy"
    claim = (
        "The covariance of log-prob and advantage runs as the entropy's decrease does and stays above 0, so that the entropy falls "
        "step by step; it is larger where the problems are easier."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {ARM: plan.run()}

    def draw(self, results: Results) -> Picture:
        picture, (left, middle, right) = panels(1, 3)
        runs = results.runs(self.arms(results.plan)[ARM])
        course(left, runs, COVARIANCE_ADVANTAGE_LOGPROB, label="covariance", index=1, smooth=SMOOTHED)
        left.set_ylabel("Cov(log p, A), nats")
        course(middle, runs, ENTROPY_OBSERVED_CHANGE, label="change", index=2, smooth=SMOOTHED)
        middle.set_ylabel("observed change, nats a step")
        for index, (label, metric) in enumerate(DIFFICULTIES.items()):
            course(right, runs, metric, label=label, index=index, smooth=SMOOTHED)
        right.set_ylabel("covariance in groups, nats")
        # Between the easy and the middle ones.
        right.legend(loc="upper right", bbox_to_anchor=(1.0, 0.8), fontsize=6)
        for panel in (left, middle, right):
            panel.axhline(0, color="#777777", linewidth=0.8)
            panel.set_xlabel("step")
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {
                "seed": run.seed,
                "covariance": run.mean(COVARIANCE_ADVANTAGE_LOGPROB),
                "observed_change": run.mean(ENTROPY_OBSERVED_CHANGE),
                "share_above_0": _share_above_0(run.series(COVARIANCE_ADVANTAGE_LOGPROB)),
                **{f"covariance_{label}": run.mean(metric) for label, metric in DIFFICULTIES.items()},
            }
            for run in results.runs(self.arms(results.plan)[ARM])
        ]

    def checks(self, results: Results) -> list[Check]:
        runs = results.runs(self.arms(results.plan)[ARM])
        return [
            correlated(
                "the covariance and the entropy's decrease run alike",
                [
                    (
                        smoothed(run.series(COVARIANCE_ADVANTAGE_LOGPROB), SMOOTHED),
                        smoothed(-run.series(ENTROPY_OBSERVED_CHANGE), SMOOTHED),
                    )
                    for run in runs
                ],
                bound=0.3,
                reason="The covariance leaves the probability out: it is that of a natural gradient (Theorem 2), not of this optimiser.",
            ),
            at_least(
                "the covariance is above 0 in most steps",
                [_share_above_0(run.series(COVARIANCE_ADVANTAGE_LOGPROB)) for run in runs],
                0.5,
                unit="of the steps",
            ),
            higher(
                "easy problems have more of it than hard ones",
                [run.mean(DIFFICULTIES["easy"]) for run in runs],
                [run.mean(DIFFICULTIES["hard"]) for run in runs],
                unit="nats",
                reason="A hard group's few right answers are improbable ones, and an easy group's few wrong ones are, too.",
            ),
        ]


def _share_above_0(series: np.ndarray) -> float:
    return float(np.mean(series[~np.isnan(series)] > 0))


FIGURES = (CovarianceMovesEntropy(),)
