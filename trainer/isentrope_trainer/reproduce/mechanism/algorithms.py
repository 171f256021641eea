"""Fig. 6: the curve of reward against entropy is the same for each algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isentrope_trainer.reproduce.drawing import look, panels
from isentrope_trainer.reproduce.evidence import at_least
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results, Row
from isentrope_trainer.reproduce.mechanism.curve import fitted, measured
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_trainer.settings import ALGORITHMS
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

COMPARED = ("grpo", "rloo", "prime")
"""Those of the paper."""


class AlgorithmsShareACurve(Figure):
    name = "mechanism-6"
    paper = MECHANISM
    number = "Fig. 6"
    title = "the curve across algorithms"
    claim = "GRPO, RLOO and PRIME have the same coefficients a and b: how entropy is traded for reward is the model's and the data's."
    chosen_late = (
        "PRIME's reward model learns at a tenth of the policy's rate; at the same rate, chosen first, its rewards were exploited and "
        "right answers were gone within 30 steps."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {ALGORITHMS[name].label: plan.run(algorithm=name) for name in COMPARED}

    def draw(self, results: Results) -> Picture:
        picture, (left, right) = panels(1, 2)
        for index, (label, arm) in enumerate(self.arms(results.plan).items()):
            as_look = look(index)
            points = [measured(run) for run in results.runs(arm)]
            entropies, rewards = (np.concatenate(column) for column in zip(*points, strict=True))
            left.plot(entropies, rewards, as_look.marker, color=as_look.color, markersize=3, alpha=0.5, label=label)
            along = np.linspace(entropies.min(), entropies.max(), 50)
            left.plot(along, fitted(entropies, rewards)(along), color=as_look.color, linestyle=as_look.dash)
            curves = [fitted(*of_run) for of_run in points]
            right.plot(
                [curve.a for curve in curves],
                [curve.b for curve in curves],
                as_look.marker,
                color=as_look.color,
                label=label,
            )
        left.set_xlabel("entropy, nats")
        left.set_ylabel("Avg@K, held out")
        left.invert_xaxis()
        left.legend()
        right.set_xlabel("a")
        right.set_ylabel("b")
        return picture

    def table(self, results: Results) -> list[Row]:
        rows: list[Row] = []
        for label, arm in self.arms(results.plan).items():
            for run in results.runs(arm):
                curve = fitted(*measured(run))
                rows.append(
                    {"algorithm": label, "seed": run.seed, "a": curve.a, "b": curve.b, "r_squared": curve.r_squared}
                    | {"entropy_end": run.end(ENTROPY_MEAN), "reward_end": run.end(REWARD_MEAN)}
                )
        return rows

    def checks(self, results: Results) -> list[Check]:
        of_algorithms = [results.runs(arm) for arm in self.arms(results.plan).values()]
        seeds = set.intersection(*({run.seed for run in runs} for runs in of_algorithms))
        by_seed = [[run for runs in of_algorithms for run in runs if run.seed == seed] for seed in sorted(seeds)]
        reason = "Another advantage reaches the same entropy with other answers here, where runs are short and noisy."
        return [
            at_least(
                "one curve through all the algorithms of a seed explains most of their rewards",
                [_pooled(runs) for runs in by_seed],
                0.8,
                unit="R²",
                reason=reason,
            ),
            at_least(
                "and hardly less than a curve for each",
                [_pooled(runs) - _apart(runs) for runs in by_seed],
                -0.1,
                unit="of R²",
                reason=reason,
            ),
        ]


def _pooled(runs: list[Run]) -> float:
    """R² of one curve through the points of all runs."""
    entropies, rewards = (np.concatenate(column) for column in zip(*map(measured, runs), strict=True))
    return fitted(entropies, rewards).r_squared


def _apart(runs: list[Run]) -> float:
    """R², over the points of all runs, of a curve for each run."""
    points = [measured(run) for run in runs]
    residual = sum(float(np.sum((fitted(*of_run)(of_run[0]) - of_run[1]) ** 2)) for of_run in points)
    rewards = np.concatenate([of_run[1] for of_run in points])
    return 1 - residual / float(np.sum((rewards - rewards.mean()) ** 2))


FIGURES = (AlgorithmsShareACurve(),)
