"""App. D: the same theory where several updates are made of one batch, so that ratios leave 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isentrope_trainer.reproduce.drawing import course, panels
from isentrope_trainer.reproduce.dynamics.batch_covariance import averaged, pushed
from isentrope_trainer.reproduce.evidence import at_least, correlated, higher
from isentrope_trainer.reproduce.figure import DYNAMICS, Check, Figure, Results, Row
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import (
    COVARIANCE_ADVANTAGE_SCORE,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    SCORE_SELF_CHECK_Z,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

BASELINE, CLIPPED = "GRPO, off-policy", "Clip_V µ = 1, off-policy"


def _z(run: Run) -> float:
    return float(np.nanmean(np.abs(run.series(SCORE_SELF_CHECK_Z)) < 2.0))


class OffPolicy(Figure):
    name = "dynamics-off-policy"
    paper = DYNAMICS
    number = "App. D"
    title = "several updates of one batch"
    claim = (
        "Off-policy the ratio-weighted score r S_c takes the place of S_c: its batch mean is 0 (Corollary 2.1), its covariance "
        "with the advantage goes with the entropy's change (Corollaries 3.1 and 4.1), and clipping acts as on-policy."
    )
    chosen_late = "The correlation is tested against 0; it was to exceed 0.3 before the first runs were seen."

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        clip = {"method": "clip_v", "mu_low": 1.0, "mu_high": 1.0, "scope": "all"}
        return {BASELINE: plan.run(**plan.off_policy), CLIPPED: plan.run(clip, **plan.off_policy)}

    def draw(self, results: Results) -> Picture:
        arms = self.arms(results.plan)
        picture, axes = panels(1, 3, height=2.4)
        for index, (label, arm) in enumerate(arms.items()):
            course(axes[0], results.runs(arm), ENTROPY_MEAN, label=label.split(",")[0], index=index, smooth=9)
            course(axes[1], results.runs(arm), SCORE_SELF_CHECK_Z, label=label.split(",")[0], index=index, smooth=9)
        axes[0].set(xlabel="update", ylabel="entropy, nats", title="(a) entropy")
        axes[0].legend()
        axes[1].axhline(0, color="#888888", linewidth=0.6)
        axes[1].set(xlabel="update", ylabel="mean r S_c,\nstandard errors", title="(b) mean of r S_c")
        for run in results.runs(arms[BASELINE]):
            axes[2].plot(averaged(pushed(run)), run.series(ENTROPY_OBSERVED_CHANGE), ".", color="#000000", markersize=2)
        axes[2].locator_params(axis="x", nbins=4)
        axes[2].set(xlabel="−Cov_B(A, r S_c), averaged", ylabel="observed ΔH, nats", title="(c) GRPO")
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {
                "arm": label,
                "seed": run.seed,
                "entropy_start": run.start(ENTROPY_MEAN),
                "entropy_end": run.end(ENTROPY_MEAN),
                "share_of_updates_within_2_standard_errors": _z(run),
                "mean_covariance": run.mean(COVARIANCE_ADVANTAGE_SCORE),
            }
            for label, arm in self.arms(results.plan).items()
            for run in results.runs(arm)
        ]

    def checks(self, results: Results) -> list[Check]:
        arms = self.arms(results.plan)
        runs = results.runs(arms[BASELINE])
        return [
            at_least(
                "mean r S_c lies within 2 standard errors of 0 in nine of ten updates",
                [_z(run) for run in runs],
                0.9,
                unit="of the updates",
                reason="Tokens of one batch are not independent: the standard error is too small.",
            ),
            correlated(
                "−Cov_B(A, r S_c), averaged as AdamW does, goes with the observed change",
                [(averaged(pushed(run)), run.series(ENTROPY_OBSERVED_CHANGE)) for run in runs],
                reason="Updates of a few prompts each: the covariance of one of them is noisy.",
            ),
            higher(
                "Clip_V at µ = 1 ends above GRPO",
                *results.paired(arms[CLIPPED], arms[BASELINE], lambda run: run.end(ENTROPY_MEAN)),
                unit="nats",
            ),
        ]


FIGURES = (OffPolicy(),)
