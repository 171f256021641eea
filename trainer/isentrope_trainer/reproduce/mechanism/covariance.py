"""Table 1 and Fig. 8: the covariance of log-probs and advantages: over the tokens, over the training, and by difficulty."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isentrope_trainer.reproduce.drawing import SMOOTHED_STEPS, Picture, against, course, panels, smoothed
from isentrope_trainer.reproduce.evidence import at_least, correlated, higher
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import (
    COVARIANCE_ADVANTAGE_LOGPROB,
    COVARIANCE_GROUP_EASY,
    COVARIANCE_GROUP_HARD,
    COVARIANCE_GROUP_MIDDLE,
    COVARIANCE_TOP,
    ENTROPY_OBSERVED_CHANGE,
)

ARM = "GRPO"
DIFFICULTIES = {"easy": COVARIANCE_GROUP_EASY, "middle": COVARIANCE_GROUP_MIDDLE, "hard": COVARIANCE_GROUP_HARD}
SMOOTHED = 4 * SMOOTHED_STEPS + 1
SHARES = {float(f"{100 * share:g}"): metric for metric, share in COVARIANCE_TOP.items()}
"""Percent of the tokens -> the mean of their covariances."""


class _OfPlainRuns(Figure):
    paper = MECHANISM
    label = ""

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {ARM: plan.run()}


class TopShares(_OfPlainRuns):
    name = "mechanism-table-1"
    number = "Table 1"
    title = "covariance of the top tokens"
    claim = "A few tokens have covariances far above the mean: the top 0.2 % hundreds of times as much as all tokens."

    def draw(self, results: Results) -> Picture:
        picture, (panel,) = panels(1, 1)
        runs = self.finished(results)[ARM]
        shown = [share for share, metric in SHARES.items() if metric in runs[0].names]
        against(panel, shown, [[run.mean(SHARES[share]) for run in runs] for share in shown], label="", index=1)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("top tokens, %")
        panel.set_ylabel("mean covariance, nats")
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {f"top_{share:g}_percent": run.mean(metric) for share, metric in SHARES.items() if metric in run.names}

    def checks(self, results: Results) -> list[Check]:
        return [
            at_least(
                f"the top {share} % have more than {times} times the mean of all",
                [run.mean(SHARES[share]) / abs(run.mean(SHARES[100])) for run in self.finished(results)[ARM]],
                times,
                unit="times",
                reason="Answers are short and the vocabulary small: a token's log-prob can't be as far from the mean as in a large model.",
            )
            for share, times in ((2, 10), (0.2, 100))
        ]


class CovarianceMovesEntropy(_OfPlainRuns):
    name = "mechanism-8"
    number = "Fig. 8"
    title = "covariance and the change of the entropy"
    claim = (
        "The covariance of log-prob and advantage runs as the entropy's decrease does and stays above 0, so that the entropy falls "
        "step by step; it is larger where the problems are easier."
    )

    def draw(self, results: Results) -> Picture:
        picture, (left, middle, right) = panels(1, 3)
        runs = self.finished(results)[ARM]
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

    def columns(self, run: Run) -> dict[str, object]:
        return {
            "covariance": run.mean(COVARIANCE_ADVANTAGE_LOGPROB),
            "observed_change": run.mean(ENTROPY_OBSERVED_CHANGE),
            "share_above_0": _share_above_0(run),
            **{f"covariance_{label}": run.mean(metric) for label, metric in DIFFICULTIES.items()},
        }

    def checks(self, results: Results) -> list[Check]:
        runs = self.finished(results)[ARM]
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
                [_share_above_0(run) for run in runs],
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


def _share_above_0(run: Run) -> float:
    series = run.series(COVARIANCE_ADVANTAGE_LOGPROB)
    return float(np.mean(series[~np.isnan(series)] > 0))


FIGURES = (TopShares(), CovarianceMovesEntropy())
