"""Fig. 3: the batch means of S* and of S_c over training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isentrope_trainer.reproduce.drawing import course, panels
from isentrope_trainer.reproduce.dynamics.thresholds import clipped
from isentrope_trainer.reproduce.evidence import at_least, higher
from isentrope_trainer.reproduce.figure import DYNAMICS, Check, Figure, Results, Row
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import SCORE_DISCRIMINATOR_MEAN, SCORE_SELF_CHECK_Z, SCORE_VOCAB_CENTERED_MEAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

USUAL_Z = 2.0


def _size(run: Run, metric: str) -> float:
    return float(np.nanmean(np.abs(run.series(metric))))


def _within(run: Run) -> float:
    return float(np.mean(np.abs(run.series(SCORE_SELF_CHECK_Z)) < USUAL_Z))


class Centring(Figure):
    name = "dynamics-3"
    paper = DYNAMICS
    number = "Fig. 3"
    title = "batch means of S* and of S_c"
    claim = (
        "On-policy the centred score S_c = S* − E[S] has mean 0 over the tokens of a batch (Corollaries 1 and 2), while S* "
        "itself has not: with and without clipping."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {"GRPO": plan.run(), "Clip_V µ = 1": clipped(plan, "clip_v", 1.0)}

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 2, height=2.6)
        for panel, letter, (label, arm) in zip(axes, "ab", self.arms(results.plan).items(), strict=True):
            runs = results.runs(arm)
            course(panel, runs, SCORE_DISCRIMINATOR_MEAN, label="mean S*", index=2, smooth=1)
            course(panel, runs, SCORE_VOCAB_CENTERED_MEAN, label="mean S_c", index=1, smooth=1)
            panel.axhline(0, color="#888888", linewidth=0.6)
            panel.set(xlabel="step", ylabel="mean over the tokens, nats", title=f"({letter}) {label}")
            panel.legend()
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {
                "arm": label,
                "seed": run.seed,
                "size_of_mean_discriminator": _size(run, SCORE_DISCRIMINATOR_MEAN),
                "size_of_mean_centred": _size(run, SCORE_VOCAB_CENTERED_MEAN),
                "share_of_steps_within_2_standard_errors": _within(run),
            }
            for label, arm in self.arms(results.plan).items()
            for run in results.runs(arm)
        ]

    def checks(self, results: Results) -> list[Check]:
        checks = []
        for label, arm in self.arms(results.plan).items():
            runs = results.runs(arm)
            checks += [
                higher(
                    f"{label}: |mean S*| is more than ten times |mean S_c|",
                    [_size(run, SCORE_DISCRIMINATOR_MEAN) for run in runs],
                    [10 * _size(run, SCORE_VOCAB_CENTERED_MEAN) for run in runs],
                    unit="nats (the second times ten)",
                    reason="With few tokens a batch the mean of S_c scatters about 0 by its standard error.",
                ),
                at_least(
                    f"{label}: mean S_c lies within 2 standard errors of 0 in nine of ten steps",
                    [_within(run) for run in runs],
                    0.9,
                    unit="of the steps",
                    reason="Tokens of one batch are not independent: the standard error is too small.",
                ),
            ]
        return checks


FIGURES = (Centring(),)
