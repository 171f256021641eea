"""Fig. 2: when entropy is lost and reward gained."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isentrope_trainer.reproduce.drawing import Picture, look, panels, smoothed
from isentrope_trainer.reproduce.evidence import at_least, correlated
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results
from isentrope_trainer.reproduce.runs import Run, Series
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

ARM = "GRPO"
SMOOTHED = 11
THIRD, TWELFTH = 1 / 3, 1 / 12
ENTROPY, REWARD = "entropy lost", "reward gained"
METRICS = {ENTROPY: ENTROPY_MEAN, REWARD: REWARD_MEAN}


def share_done(run: Run, metric: str) -> Series:
    """By step, the share of the run's whole change of a metric that is done, from its smoothed course."""
    course = smoothed(run.series(metric), SMOOTHED)
    return np.asarray((course - course[0]) / (course[-1] - course[0]))


def share_at(run: Run, metric: str, place: float) -> float:
    """The same at a share of the run's steps."""
    done = share_done(run, metric)
    return float(done[round(place * (len(done) - 1))])


class Consumption(Figure):
    name = "mechanism-2"
    paper = MECHANISM
    number = "Fig. 2"
    title = "entropy lost and reward gained over the training"
    claim = (
        "Most of the entropy is lost, and most of the reward gained, early: 73 % and 76 % in the first twelfth of the "
        "training, over nine tenths of both in the first third."
    )

    label = ""

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {ARM: plan.run()}

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 2)
        runs = self.finished(results)[ARM]
        for panel, metric, unit in zip(axes, METRICS.values(), ("entropy, nats", "reward"), strict=True):
            for index, run in enumerate(runs):
                as_look = look(index)
                panel.plot(
                    run.steps, smoothed(run.series(metric), SMOOTHED), color=as_look.color, linestyle=as_look.dash,
                    label=f"seed {run.seed}",
                )  # fmt: skip
            for place, name in ((TWELFTH, "1/12"), (THIRD, "1/3")):
                panel.axvline(place * runs[0].steps[-1], color="#777777", linewidth=0.8, linestyle=":")
                panel.annotate(name, (place * runs[0].steps[-1], 1), xycoords=("data", "axes fraction"), fontsize=7)
            panel.set_xlabel("step")
            panel.set_ylabel(unit)
        axes[0].legend()
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            f"{label.replace(' ', '_')}_by_{name}": share_at(run, metric, place)
            for label, metric in METRICS.items()
            for name, place in (("twelfth", TWELFTH), ("third", THIRD))
        }

    def checks(self, results: Results) -> list[Check]:
        runs = self.finished(results)[ARM]
        shorter = (
            "These runs end long before the entropy is used up, so that less of the whole lies at their beginning."
        )
        early = [
            at_least(
                f"more than half of the {label.split()[0]} is {label.split()[1]} in the first third",
                [share_at(run, metric, THIRD) for run in runs],
                0.5,
                unit="of the whole",
                reason=shorter,
            )
            for label, metric in METRICS.items()
        ]
        most = at_least(
            "nine tenths of the entropy is lost in the first third",
            [share_at(run, ENTROPY_MEAN, THIRD) for run in runs],
            0.9,
            unit="of the whole",
            reason=shorter,
        )
        together = correlated(
            "reward is gained as entropy is lost",
            [
                (-smoothed(run.series(ENTROPY_MEAN), SMOOTHED), smoothed(run.series(REWARD_MEAN), SMOOTHED))
                for run in runs
            ],
            bound=0.8,
        )
        return [*early, most, together]


FIGURES = (Consumption(),)
