"""Fig. 3, 4, 5 and 14: reward is a function of entropy, R = -a exp(H) + b, and its beginning forecasts its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from isentrope_trainer.reproduce.drawing import look, panels
from isentrope_trainer.reproduce.evidence import at_least, higher
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results, Row
from isentrope_trainer.reproduce.mechanism.curve import Curve, every_step, fitted, measured
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_trainer.settings import TASKS, TaskConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

EARLY = 0.15
"""Of the run: what a forecast is made from."""
HELD_OUT_JUGS = 48
"""Problems of an evaluation on jugs: the task has 54 that are held out."""


def forecast(run: Run) -> tuple[Curve, float, float]:
    """From the first 15 % of a run's steps: the curve, its root mean square error over the rest, and that of the last rewards
    carried on. Of the training reward: evaluations are too few."""
    entropies, rewards = every_step(run)
    begun = max(3, round(EARLY * len(rewards)))
    curve = fitted(entropies[:begun], rewards[:begun])
    late_entropies, late_rewards = entropies[begun:], rewards[begun:]
    return (
        curve,
        float(np.sqrt(np.mean((curve(late_entropies) - late_rewards) ** 2))),
        float(np.sqrt(np.mean((rewards[max(0, begun - 10) : begun].mean() - late_rewards) ** 2))),
    )


class Fit(Figure):
    name = "mechanism-3"
    paper = MECHANISM
    number = "Fig. 3-5, 14"
    title = "reward against entropy"
    claim = (
        "Without an intervention reward and entropy lie on one curve R = -a exp(H) + b with a > 0; fitted to the first 15 % of a "
        "run, it forecasts the rest from the entropy, with an error of about 1 %."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        assert plan.base.evaluation is not None, "every run is evaluated"
        few = replace(plan.base.evaluation, problems=min(HELD_OUT_JUGS, plan.base.evaluation.problems))
        return {
            task: plan.run(task=TaskConfig(name=task), evaluation=few if task == "jugs" else plan.base.evaluation)
            for task in TASKS
        }

    def draw(self, results: Results) -> Picture:
        arms = self.arms(results.plan)
        picture, axes = panels(1, len(arms))
        for panel, (label, arm) in zip(axes, arms.items(), strict=True):
            for index, run in enumerate(results.runs(arm)):
                entropies, rewards = measured(run)
                as_look = look(index)
                panel.plot(
                    entropies,
                    rewards,
                    as_look.marker,
                    color=as_look.color,
                    markersize=3,
                    alpha=0.6,
                    label=f"seed {run.seed}",
                )
                along = np.linspace(entropies.min(), entropies.max(), 50)
                panel.plot(along, fitted(entropies, rewards)(along), color=as_look.color, linestyle=as_look.dash)
                if not index:
                    panel.plot(along, forecast(run)[0](along), color="#777777", linestyle=":", label="forecast, seed 0")
            panel.set_title(label)
            panel.set_xlabel("entropy, nats")
            panel.set_ylabel("Avg@K, held out")
            panel.invert_xaxis()
        axes[0].legend()
        return picture

    def table(self, results: Results) -> list[Row]:
        rows: list[Row] = []
        for label, arm in self.arms(results.plan).items():
            for run in results.runs(arm):
                curve = fitted(*measured(run))
                _, error, carried = forecast(run)
                rows.append(
                    {"task": label, "seed": run.seed, "a": curve.a, "b": curve.b, "ceiling": curve.b - curve.a}
                    | {"r_squared": curve.r_squared, "forecast_rmse": error, "carried_rmse": carried}
                )
        return rows

    def checks(self, results: Results) -> list[Check]:
        checks = []
        for label, arm in self.arms(results.plan).items():
            runs = results.runs(arm)
            curves = [fitted(*measured(run)) for run in runs]
            errors = [forecast(run)[1:] for run in runs]
            checks += [
                at_least(
                    f"{label}: the curve explains most of the reward",
                    [curve.r_squared for curve in curves],
                    0.8,
                    unit="R²",
                    reason="Held-out rewards are means of few answers, and their noise is not the curve's.",
                ),
                at_least(f"{label}: a is above 0", [curve.a for curve in curves], 0.0),
                higher(
                    f"{label}: the forecast errs less than the last value carried on",
                    [carried for _, carried in errors],
                    [error for error, _ in errors],
                    unit="RMSE",
                    reason="The first 15 % span so little of the entropy that a and b are hardly determined.",
                ),
            ]
        return checks


FIGURES = (Fit(),)
