"""Fig. 6 to 8: other models, and the norm of the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isentrope_trainer.models.family import SIZES
from isentrope_trainer.reproduce.drawing import course, panels
from isentrope_trainer.reproduce.evidence import at_most, higher
from isentrope_trainer.reproduce.figure import DYNAMICS, Check, Figure, Results, Row
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN, TRAIN_GRAD_NORM

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SHOWN = ("0.2M", "1.1M", "4.4M")
CLIP_V = {"method": "clip_v", "mu_low": 1.0, "mu_high": 1.0, "scope": "all"}


def _roughness(run: Run) -> float:
    """How wild the gradient's norm is: its 99 % quantile over its median."""
    norms = run.series(TRAIN_GRAD_NORM)
    return float(np.nanquantile(norms, 0.99) / np.nanmedian(norms))


class Models(Figure):
    name = "dynamics-6"
    paper = DYNAMICS
    number = "Fig. 6-8"
    title = "models of three sizes, and the gradient's norm"
    claim = (
        "Clipping by the discriminator keeps more entropy in models of every size, and training stays stable: the gradient's "
        "norm has no larger spikes than without."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {
            f"{size} {label}": plan.run(control, policy=SIZES[size])
            for size in SHOWN
            for label, control in (("GRPO", None), ("Clip_V", CLIP_V))
        }

    def draw(self, results: Results) -> Picture:
        arms = self.arms(results.plan)
        picture, axes = panels(3, len(SHOWN), height=1.9)
        shown = ((ENTROPY_MEAN, "entropy, nats"), (REWARD_MEAN, "reward"), (TRAIN_GRAD_NORM, "gradient norm"))
        for column, size in enumerate(SHOWN):
            for row, (metric, unit) in enumerate(shown):
                panel = axes[row * len(SHOWN) + column]
                for index, label in enumerate(("GRPO", "Clip_V")):
                    course(panel, results.runs(arms[f"{size} {label}"]), metric, label=label, index=index)
                if column == 0:
                    panel.set_ylabel(unit)
                if row == 0:
                    panel.set_title(f"{size} parameters")
                if row == len(shown) - 1:
                    panel.set_xlabel("step")
        axes[0].legend()
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {
                "arm": label,
                "seed": run.seed,
                "entropy_start": run.start(ENTROPY_MEAN),
                "entropy_end": run.end(ENTROPY_MEAN),
                "reward_end": run.end(REWARD_MEAN),
                "gradient_norm_median": float(np.nanmedian(run.series(TRAIN_GRAD_NORM))),
                "gradient_norm_99_over_median": _roughness(run),
            }
            for label, arm in self.arms(results.plan).items()
            for run in results.runs(arm)
        ]

    def checks(self, results: Results) -> list[Check]:
        arms = self.arms(results.plan)
        checks = []
        for size in SHOWN:
            pair = (arms[f"{size} Clip_V"], arms[f"{size} GRPO"])
            checks.append(
                higher(
                    f"{size}: Clip_V ends with more entropy",
                    *results.paired(*pair, lambda run: run.end(ENTROPY_MEAN)),
                    unit="nats",
                    reason="The difference is large, but so is its scatter over seeds.",
                )
            )
            clipped, plain = results.paired(*pair, _roughness)
            checks.append(
                at_most(
                    f"{size}: Clip_V's gradient norm has no larger spikes (99 % quantile over median, ratio below 1.25)",
                    [one / other for one, other in zip(clipped, plain, strict=True)],
                    1.25,
                    reason="A norm of few tokens: spikes of single batches decide the quantile.",
                )
            )
        return checks


FIGURES = (Models(),)
