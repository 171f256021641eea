"""Whether runs end better for a steered entropy: long runs of the reference trainer, three times as
long as the reward of a run left to itself clearly moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from isentrope_papers.beyond.controllers import BAND, BASELINE
from isentrope_papers.beyond.hold import EARLY_NATS
from isentrope_papers.drawing import Picture, course, look, panels
from isentrope_papers.dynamics.clipping import clipping
from isentrope_papers.evidence import higher
from isentrope_papers.figure import Check, Figure, Results, paired
from isentrope_papers.mechanism.curve import Curve, fitted
from isentrope_papers.mechanism.interventions import clip_cov
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import EvaluationConfig
from isentrope_wire.metrics import ENTROPY_MEAN, EVAL_AVG_AT_K, EVAL_PASS_AT_K, REWARD_MEAN

FIRST_SEED = 500
"""No other figure has these seeds."""
LAST_SHARE = 0.4
"""Of the anneal, as a share of the early level."""
LAST_STEPS, LAST_EVALUATIONS = 60, 3
LAW_POINTS = 18
"""Parts of a run, of twenty steps each."""
ENDS: Mapping[str, Callable[[Run], float]] = {
    "reward": lambda run: run.end(REWARD_MEAN, LAST_STEPS),
    "Avg@8": lambda run: run.end(EVAL_AVG_AT_K, LAST_EVALUATIONS),
    "Pass@8": lambda run: run.end(EVAL_PASS_AT_K, LAST_EVALUATIONS),
}


class Pay(Figure):
    name = "beyond-pay"
    number = "Does steering pay"
    title = "long runs under a hold, an anneal and what others published"
    claim = (
        "A long run ends with more reward, Avg@K and Pass@K on held-out problems under a control of"
        " its entropy than left to itself."
    )
    chosen_late = "The learning rate was raised after one vanilla run at another learnt slowly."
    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        steps, size, problems = 360, 12, 64
        if plan.quick:
            steps, size, problems = 18, 6, 8
        evaluation = EvaluationConfig(every=steps // 6, problems=problems, samples=16, k=8)
        low, high = (1 - BAND) * EARLY_NATS, (1 + BAND) * EARLY_NATS
        ends = {"low_end": LAST_SHARE * low, "high_end": LAST_SHARE * high, "steps": steps}
        anneal = [EARLY_NATS, LAST_SHARE * EARLY_NATS]
        controls: Mapping[str, Mapping[str, object] | None] = {
            BASELINE: None,
            "hold, 50 %": {"hold": {"target_entropy": EARLY_NATS / 2}},
            "hold, 100 to 40 %": {"hold": {"anneal": anneal, "steps": steps, "start": 0}},
            "Clip_V": clipping("clip_v"),
            "Clip-Cov": clip_cov(),
            "Entrocraft, 100 to 40 %": {
                "method": "entrocraft",
                "parameters": {"low": low, "high": high, **ends},
            },
        }
        return {
            label: plan.run(
                control,
                first_seed=FIRST_SEED,
                steps=steps,
                prompts=size,
                group_size=size,
                learning_rate=1.2e-4,
                evaluation=evaluation,
            )
            for label, control in controls.items()
        }

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(2, 2)
        for index, (label, runs) in enumerate(self.finished(results).items()):
            course(axes[0], runs, ENTROPY_MEAN, label=label, index=index)
            course(axes[1], runs, REWARD_MEAN, label=label, index=index, smooth=30)
            for panel, metric in zip(axes[2:], (EVAL_AVG_AT_K, EVAL_PASS_AT_K), strict=True):
                means = np.mean([run.series(metric) for run in runs], axis=0)
                panel.plot(runs[0].steps, means, look(index).marker, color=look(index).color)
        names = ("entropy, nats", "reward, mean of 30 steps", "Avg@8", "Pass@8")
        for panel, name in zip(axes, names, strict=True):
            panel.set(xlabel="step", ylabel=name)
        picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        ends = {name: value(run) for name, value in ENDS.items()}
        law = law_of(run)
        fit = {"law_a": law.a, "law_b": law.b, "law_r2": law.r_squared}
        return {"entropy": run.end(ENTROPY_MEAN, LAST_STEPS), **ends, **fit}

    def checks(self, results: Results) -> list[Check]:
        arms = self.finished(results)
        alone = arms.pop(BASELINE)
        return [
            higher(
                f"{label}: more {name} than left to itself",
                *paired(runs, alone, value),
                reason="Few seeds and a small effect, or none.",
            )
            for label, runs in arms.items()
            for name, value in ENDS.items()
        ]


def law_of(run: Run) -> Curve:
    """R = -a exp(H) + b through the means of LAW_POINTS parts of the run."""
    entropies, rewards = (
        np.array([part.mean() for part in np.array_split(run.series(name), LAW_POINTS)])
        for name in (ENTROPY_MEAN, REWARD_MEAN)
    )
    return fitted(entropies, rewards)
