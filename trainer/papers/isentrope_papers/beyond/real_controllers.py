"""A held entropy beside an adaptive bonus, on a real language model under TRL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from isentrope_papers.beyond.real_model import deviations, entropy_and_reward
from isentrope_papers.drawing import Picture
from isentrope_papers.evidence import check_at_least, check_at_most, higher
from isentrope_papers.figure import Check, Figure, Results, paired
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_wire import metrics

FIRST_SEED = 103
"""Nothing was chosen on these seeds; 101 and 102 are those of the figures without a target."""
TARGET, EARLY = 1.4, 1.65
"""Nats: of every arm, and some early level of these runs."""
STEPS, LAST_STEPS = 80, 20
HELD, BONUS = "hold", "adaptive bonus"


class MildControllers(Figure):
    name = "beyond-llm-mild-controllers"
    number = "SmolLM2, mild, controllers"
    title = "a hold and an adaptive bonus on the real model"
    claim = (
        f"With a target of {TARGET} of some {EARLY} nats a hold keeps means of ten steps within"
        " 15 % of it from step 41 on, closer than an adaptive bonus, and costs no reward."
    )
    chosen_late = (
        "That a wild first update teaches the hold nothing was added after a first run of its seed"
        " 103. That run had waited 25 steps."
    )
    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        steps = STEPS
        if plan.quick:
            steps = 8
        bonus = {"target_entropy": TARGET, "coefficient": 0.0}
        controls: dict[str, Mapping[str, object]] = {
            HELD: {"hold": {"target_entropy": TARGET}},
            BONUS: {"method": "entropy_bonus", "parameters": bonus},
        }
        return {
            label: replace(plan.language_model(control, steps=steps), first_seed=FIRST_SEED)
            for label, control in controls.items()
        }

    def draw(self, results: Results) -> Picture:
        return entropy_and_reward(self.finished(results))

    def columns(self, run: Run) -> dict[str, object]:
        return super().columns(run) | deviations(run, TARGET)._asdict()

    def checks(self, results: Results) -> list[Check]:
        arms = self.finished(results)
        if HELD not in arms:
            return []
        own = [deviation_of_ten(run) for run in arms[HELD]]
        statement = f"{HELD}: means of ten steps deviate by less than 15 %"
        checks = [check_at_most(statement, own, 0.15, unit="of the target")]
        if BONUS in arms:
            peers, held = paired(arms[BONUS], arms[HELD], deviation_of_ten)
            statement = f"{BONUS}: means of ten steps deviate more than under the {HELD}"
            checks.append(higher(statement, peers, held, unit="of the target"))
            held, peers = paired(arms[HELD], arms[BONUS], last_reward)
            statement = f"the {HELD}'s reward is not 0.02 below that under the {BONUS}"
            more = np.subtract(held, peers).tolist()
            checks.append(check_at_least(statement, more, -0.02, unit="more reward"))
        return checks


def deviation_of_ten(run: Run) -> float:
    return deviations(run, TARGET).deviation_of_ten


def last_reward(run: Run) -> float:
    """The mean reward of the last steps."""
    return float(np.nanmean(run.series(metrics.REWARD_MEAN)[-LAST_STEPS:]))
