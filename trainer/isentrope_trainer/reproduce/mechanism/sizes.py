"""Fig. 7: the coefficients of the curve against the size of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isentrope_trainer.models.family import SIZES
from isentrope_trainer.reproduce.drawing import against, panels
from isentrope_trainer.reproduce.evidence import correlated, trend
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results, Row
from isentrope_trainer.reproduce.mechanism.curve import Curve, fitted, measured
from isentrope_trainer.reproduce.settings import Plan, RunSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

COEFFICIENTS = {"a": "a", "ceiling": "ceiling b - a"}


def _of(curve: Curve, name: str) -> float:
    return curve.a if name == "a" else curve.b - curve.a


class Sizes(Figure):
    name = "mechanism-7"
    paper = MECHANISM
    number = "Fig. 7"
    title = "the curve against the model's size"
    claim = "Within a family a and b are linear in the logarithm of the number of parameters, so that small models forecast large ones."

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {size: plan.run(policy=policy) for size, policy in SIZES.items()}

    def _curves(self, results: Results) -> dict[int, dict[int, Curve]]:
        """Parameters -> seed -> curve."""
        return {
            round(float(size.removesuffix("M")) * 1e6): {run.seed: fitted(*measured(run)) for run in results.runs(arm)}
            for size, arm in self.arms(results.plan).items()
        }

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 2)
        curves = self._curves(results)
        for panel, (name, label) in zip(axes, COEFFICIENTS.items(), strict=True):
            values = [[_of(curve, name) for curve in of_seeds.values()] for of_seeds in curves.values()]
            against(panel, list(curves), values, label=label, index=1)
            panel.set_xscale("log")
            panel.set_xticks(list(curves), [f"{parameters / 1e6:g}M" for parameters in curves])
            panel.minorticks_off()
            panel.set_xlabel("parameters")
            panel.set_ylabel(label)
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {"parameters": size, "seed": seed, "a": curve.a, "b": curve.b, "r_squared": curve.r_squared}
            for size, of_seeds in self._curves(results).items()
            for seed, curve in of_seeds.items()
        ]

    def checks(self, results: Results) -> list[Check]:
        curves = self._curves(results)
        seeds = sorted(set.intersection(*(set(of_seeds) for of_seeds in curves.values())))
        logarithms = np.log(list(curves))
        values = {
            name: [[_of(of_seeds[seed], name) for of_seeds in curves.values()] for seed in seeds]
            for name in COEFFICIENTS
        }
        reason = (
            "Each size has a warm start of its own, and its share of right answers moves the curve more than the size."
        )
        return [
            *(
                correlated(
                    f"{label} is linear in log size",
                    # Whether it rises or falls is the data's; a straight line it is either way.
                    [(logarithms * np.sign(np.polyfit(logarithms, row, 1)[0]), row) for row in values[name]],
                    bound=0.8,
                    reason=reason,
                )
                for name, label in COEFFICIENTS.items()
            ),
            trend("larger models have a higher ceiling", list(curves), values["ceiling"], rising=True, reason=reason),
        ]


FIGURES = (Sizes(),)
