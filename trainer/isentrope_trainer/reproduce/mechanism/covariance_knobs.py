"""Fig. 12 and 13: the entropy against the share of tokens and the coefficient of Clip-Cov and KL-Cov."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isentrope_trainer.reproduce.drawing import against, course, panels
from isentrope_trainer.reproduce.evidence import trend
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results
from isentrope_trainer.reproduce.mechanism.covariance_control import KL_COEFFICIENT, KL_RATIO, OPEN, clip_cov, kl_cov
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import ENTROPY_MEAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

RATIOS = (0.001, 0.005, 0.02)
COEFFICIENTS = (0.2, KL_COEFFICIENT, 5.0)
KNOBS = {"Clip-Cov, share": RATIOS, "KL-Cov, share": RATIOS, "KL-Cov, coefficient": COEFFICIENTS}


class CovarianceKnobs(Figure):
    name = "mechanism-12"
    paper = MECHANISM
    number = "Fig. 12 and 13"
    title = "shares and coefficients of Clip-Cov and KL-Cov"
    claim = (
        "The share of restricted tokens and the coefficient set the entropy: the more is restricted, the higher it is."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        def run(control: dict[str, object]) -> RunSettings:
            return plan.run(control, loss=OPEN, **plan.off_policy)

        return {
            **{_label("Clip-Cov, share", ratio): run(clip_cov(ratio)) for ratio in RATIOS},
            **{_label("KL-Cov, share", ratio): run(kl_cov(ratio)) for ratio in RATIOS},
            **{_label("KL-Cov, coefficient", value): run(kl_cov(KL_RATIO, value)) for value in COEFFICIENTS},
        }

    def draw(self, results: Results) -> Picture:
        arms = self.arms(results.plan)
        picture, axes = panels(2, 3)
        for column, (knob, values) in enumerate(KNOBS.items()):
            of_values = [results.runs(arms[_label(knob, value)]) for value in values]
            for index, (value, runs) in enumerate(zip(values, of_values, strict=True)):
                course(axes[column], runs, ENTROPY_MEAN, label=f"{value:g}", index=index, smooth=25)
            axes[column].set_title(knob)
            axes[column].set_xlabel("step")
            axes[column].legend()
            below = axes[3 + column]
            against(below, values, [[run.end(ENTROPY_MEAN) for run in runs] for runs in of_values], label="", index=1)
            below.set_xscale("log")
            below.set_xticks(values, [f"{value:g}" for value in values])
            below.minorticks_off()
            below.set_xlabel(knob.split(", ")[1])
        for row, unit in ((0, "entropy, nats"), (3, "entropy at the end, nats")):
            axes[row].set_ylabel(unit)
        return picture

    def checks(self, results: Results) -> list[Check]:
        arms = self.arms(results.plan)
        checks = []
        for knob, values in KNOBS.items():
            ends = [
                {run.seed: run.end(ENTROPY_MEAN) for run in results.runs(arms[_label(knob, value)])} for value in values
            ]
            seeds = sorted(set.intersection(*map(set, ends)))
            checks.append(
                trend(
                    f"{knob}: the larger, the more entropy is kept",
                    values,
                    [[of_value[seed] for of_value in ends] for seed in seeds],
                    rising=True,
                    unit="nats",
                    reason="With few tokens a step, a small share selects none in most steps.",
                )
            )
        return checks


def _label(knob: str, value: float) -> str:
    return f"{knob} {value:g}"


FIGURES = (CovarianceKnobs(),)
