"""Fig. 11 and Table 2: Clip-Cov and KL-Cov against GRPO, with several updates a batch as their authors have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isentrope_trainer.reproduce.drawing import course, panels
from isentrope_trainer.reproduce.evidence import higher
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results, Row
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_trainer.settings import LossConfig
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    COMPLETION_LENGTH_MEAN,
    ENTROPY_MEAN,
    EVAL_AVG_AT_K,
    EVAL_PASS_AT_K,
    REWARD_MEAN,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

BASELINE, CLIP_HIGHER = "GRPO", "GRPO, clip-higher"
CLIP_COV, KL_COV = "Clip-Cov", "KL-Cov"
OPEN = LossConfig(clip_low=None, clip_high=None)
"""Their authors open PPO's clip where a method of theirs selects the tokens instead."""
# Batches are thousands of times smaller here than theirs: a share of 2e-4 would be less than one token.
CLIP_RATIO, KL_RATIO, KL_COEFFICIENT = 0.005, 0.01, 1.0


def clip_cov(ratio: float = CLIP_RATIO) -> dict[str, object]:
    """A control document."""
    return {"method": "clip_cov", "parameters": {"ratio": ratio}}


def kl_cov(ratio: float = KL_RATIO, coefficient: float = KL_COEFFICIENT) -> dict[str, object]:
    """A control document."""
    return {"method": "kl_cov", "parameters": {"k": ratio, "beta": coefficient}}


class CovarianceControl(Figure):
    name = "mechanism-11"
    paper = MECHANISM
    number = "Fig. 11, Table 2"
    title = "Clip-Cov and KL-Cov"
    claim = "Restricting the few tokens of the highest covariance keeps the entropy up and ends at a higher reward than GRPO and clip-higher."

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {
            BASELINE: plan.run(**plan.off_policy),
            CLIP_HIGHER: plan.run(loss=LossConfig(clip_high=0.28), **plan.off_policy),
            CLIP_COV: plan.run(clip_cov(), loss=OPEN, **plan.off_policy),
            KL_COV: plan.run(kl_cov(), loss=OPEN, **plan.off_policy),
        }

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 3)
        panelled = (
            (ENTROPY_MEAN, "entropy, nats"),
            (COMPLETION_LENGTH_MEAN, "length, tokens"),
            (REWARD_MEAN, "reward"),
        )
        for panel, (metric, unit) in zip(axes, panelled, strict=True):
            for index, (label, arm) in enumerate(self.arms(results.plan).items()):
                course(panel, results.runs(arm), metric, label=label, index=index, smooth=25)
            panel.set_xlabel("step")
            panel.set_ylabel(unit)
        axes[0].legend()
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {
                "arm": label,
                "seed": run.seed,
                "entropy_end": run.end(ENTROPY_MEAN),
                "reward_end": run.end(REWARD_MEAN),
                "avg_at_k": run.end(EVAL_AVG_AT_K, 1),
                "pass_at_k": run.end(EVAL_PASS_AT_K, 1),
                "clipped_fraction": run.mean(CLIP_FRACTION),
            }
            for label, arm in self.arms(results.plan).items()
            for run in results.runs(arm)
        ]

    def checks(self, results: Results) -> list[Check]:
        arms = self.arms(results.plan)

        def ends(left: str, right: str, metric: str, steps: int) -> tuple[list[float], list[float]]:
            pairs = results.pairs(arms[left], arms[right])
            return [run.end(metric, steps) for run, _ in pairs], [run.end(metric, steps) for _, run in pairs]

        short = "In so few steps GRPO does not yet run out of entropy, so that what is kept is not yet worth reward."
        return [
            check
            for method in (CLIP_COV, KL_COV)
            for check in (
                higher(
                    f"{method} ends with more entropy than GRPO", *ends(method, BASELINE, ENTROPY_MEAN, 10), unit="nats"
                ),
                higher(
                    f"{method} ends with a higher Avg@K than GRPO",
                    *ends(method, BASELINE, EVAL_AVG_AT_K, 1),
                    reason=short,
                ),
            )
        ]


FIGURES = (CovarianceControl(),)
