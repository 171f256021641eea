"""Fig. 6 to 8: other models, and the norm of the gradient."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isentrope_trainer.reproduce.drawing import Picture, courses, panels
from isentrope_trainer.reproduce.dynamics.thresholds import clipping
from isentrope_trainer.reproduce.evidence import at_most, higher
from isentrope_trainer.reproduce.figure import DYNAMICS, Check, Figure, Results, paired
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_trainer.settings import SIZES
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN, TRAIN_GRAD_NORM

SHOWN = ("0.2M", "1.1M", "4.4M")


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
            for label, control in (("GRPO", None), ("Clip_V", clipping("clip_v")))
        }

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(3, len(SHOWN), height=1.9)
        shown = ((ENTROPY_MEAN, "entropy, nats"), (REWARD_MEAN, "reward"), (TRAIN_GRAD_NORM, "gradient norm"))
        for column, size in enumerate(SHOWN):
            of_size = {label: found[f"{size} {label}"] for label in ("GRPO", "Clip_V")}
            for row, (metric, unit) in enumerate(shown):
                courses(axes[row * len(SHOWN) + column], of_size, metric, unit)
            axes[column].set_title(f"{size} parameters")
        for panel in axes[: -len(SHOWN)]:
            panel.set_xlabel("")
        for panel in (panel for place, panel in enumerate(axes) if place % len(SHOWN)):
            panel.set_ylabel("")
        axes[0].legend()
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            "entropy_start": run.start(ENTROPY_MEAN),
            "entropy_end": run.end(ENTROPY_MEAN),
            "reward_end": run.end(REWARD_MEAN),
            "gradient_norm_median": float(np.nanmedian(run.series(TRAIN_GRAD_NORM))),
            "gradient_norm_99_over_median": _roughness(run),
        }

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        checks = []
        for size in SHOWN:
            pair = (found[f"{size} Clip_V"], found[f"{size} GRPO"])
            clipped, plain = paired(*pair, _roughness)
            checks += [
                higher(
                    f"{size}: Clip_V ends with more entropy",
                    *paired(*pair, lambda run: run.end(ENTROPY_MEAN)),
                    unit="nats",
                    reason="The difference is large, but so is its scatter over seeds.",
                ),
                at_most(
                    f"{size}: Clip_V's gradient norm has no larger spikes (99 % quantile over median, ratio below 1.25)",
                    [one / other for one, other in zip(clipped, plain, strict=True)],
                    1.25,
                    reason="A norm of few tokens: spikes of single batches decide the quantile.",
                ),
            ]
        return checks


FIGURES = (Models(),)
