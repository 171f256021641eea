"""The chapter of `isentrope reproduce --llm`: a language model of 135 million parameters under TRL,
on a laptop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from isentrope_papers.beyond.alarms import Alarms, alarm
from isentrope_papers.beyond.forecast import Forecasts
from isentrope_papers.beyond.forks import WITHOUT, Forks
from isentrope_papers.beyond.prediction import judged, theory
from isentrope_papers.drawing import Picture, courses, panels
from isentrope_papers.dynamics.clipping import clipping
from isentrope_papers.dynamics.methods import METHODS
from isentrope_papers.evidence import check_at_most, correlated, higher
from isentrope_papers.figure import Check, Figure, Results, paired
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import LossConfig
from isentrope_wire import metrics

BASELINE, FOUR_UPDATES, KL_COV, BONUS = (
    "vanilla",
    "vanilla, 4 updates",
    "KL-Cov, 4 updates",
    "entropy bonus 0.01",
)
LOWERED = "positive: without S* < 0"
_MASK = {"method": "score_sign", "scope": "positive"}
PANELS: Mapping[str, Mapping[str, Mapping[str, Any] | None]] = {
    "thresholds": {
        "Clip_V µ 2, decreasing": clipping("clip_v", 2.0) | {"scope": "decreasing"},
        "Clip_B µ 1": clipping("clip_b"),
        "hold at 60 %": {"hold": {"target_share": 0.6}},
        "Clip_V µ⁻ 2, negative": {"method": "clip_v", "mu_low": 2.0, "scope": "negative"},
        "Clip_B µ⁻ 2, negative": {"method": "clip_b", "mu_low": 2.0, "scope": "negative"},
    },
    "covariance, bonus": {
        "Clip-Cov": METHODS["GRPO + Clip-Cov"],
        FOUR_UPDATES: None,
        KL_COV: METHODS["GRPO + KL-Cov"],
        BONUS: None,
    },
    "masks": {
        "positive: without S* > 0": {**_MASK, "parameters": {"sign": "positive", "action": "mask"}},
        LOWERED: {**_MASK, "parameters": {"sign": "negative", "action": "mask"}},
    },
}
# KL-Cov does nothing where every ratio is 1: several updates of a batch, beside a run without it.
_FOUR = {"prompts": 12, "updates_per_batch": 4}
TRAINING: Mapping[str, Mapping[str, Any]] = {
    FOUR_UPDATES: _FOUR,
    KL_COV: _FOUR,
    BONUS: {"loss": LossConfig(entropy_coefficient=0.01)},
}


def language_model_arms(plan: Plan) -> dict[str, RunSettings]:
    """Every arm of the chapter."""
    return {BASELINE: plan.language_model(coupling="last_block")} | {
        label: plan.language_model(control, **TRAINING.get(label, {}))
        for controls in PANELS.values()
        for label, control in controls.items()
    }


class LanguageModel(Figure):
    name = "beyond-llm"
    number = "SmolLM2"
    title = "a language model of 135 million parameters under TRL"
    claim = (
        "SmolLM2-135M-Instruct under TRL's GRPO (48 steps of 3 prompts × 8 completions, learning"
        " rate 2.5e-5) loses nine tenths of its entropy, what a step changes is predicted before"
        " it, and each intervention keeps more entropy without losing reward."
    )

    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return language_model_arms(plan)

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        # A panel none of whose arms was run is left out.
        shown = {
            title: [one for one in of_panel if one in found] for title, of_panel in PANELS.items()
        }
        titles = [title for title, labels in shown.items() if labels] or [*PANELS][:1]
        picture, axes = panels(2, len(titles), height=2.6)
        for column, title in enumerate(titles):
            arms = {label: found[label] for label in (BASELINE, *shown[title]) if label in found}
            for panel, metric, unit in (
                (axes[column], metrics.ENTROPY_MEAN, "entropy, nats"),
                (axes[column + len(titles)], metrics.REWARD_MEAN, "reward"),
            ):
                courses(panel, arms, metric, unit, smooth=9)
                panel.set(ylim=(0, None))
            axes[column].set_title(f"({'abc'[column]}) {title}")
            axes[column + len(titles)].legend(loc="best")
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return super().columns(run) | {metrics.CLIP_FRACTION: run.mean(metrics.CLIP_FRACTION)}

    def checks(self, results: Results) -> list[Check]:
        found, checks = self.finished(results), []
        if BASELINE in found:
            plain = found[BASELINE]
            lowest = [alarm(run).lowest for run in plain]
            checks.append(
                check_at_most(
                    f"{BASELINE}: at most a tenth of the early entropy is left", lowest, 0.1
                )
            )
            for words, predicted in (
                ("theory's prediction", theory),
                (
                    "coupled prediction by the last block",
                    lambda run: judged(run, metrics.ENTROPY_PREDICTED_CHANGE),
                ),
            ):
                pairs = [
                    (predicted(run), judged(run, metrics.ENTROPY_OBSERVED_CHANGE)) for run in plain
                ]
                checks.append(
                    correlated(
                        f"{BASELINE}: the {words} goes with the change of the step's tokens", pairs
                    )
                )
        for label, runs in found.items():
            plain = found.get(FOUR_UPDATES if label == KL_COV else BASELINE, [])
            if not plain or label in (BASELINE, FOUR_UPDATES):
                continue
            if label == LOWERED:
                sides = paired(plain, runs, lambda run: run.mean(metrics.ENTROPY_MEAN))
                checks.append(
                    higher(
                        f"{label}: less entropy than without, mean of all steps",
                        *sides,
                        unit="nats",
                    )
                )
                continue
            sides = paired(runs, plain, lambda run: run.end(metrics.ENTROPY_MEAN))
            checks.append(
                higher(f"{label}: more entropy at the end than without", *sides, unit="nats")
            )
            own, its = paired(
                runs, plain, lambda run: float(np.nanmean(run.series(metrics.REWARD_MEAN)[-20:]))
            )
            words, least = (
                f"{label}: at most a tenth less reward, last 20 steps",
                [0.9 * one for one in its],
            )
            checks.append(higher(words, own, least, unit="(the second times 0.9)"))
        return checks


class LanguageModelAlarms(Alarms):
    name = "beyond-llm-alarms"
    number = "SmolLM2, alarms"
    claim = Alarms.claim.partition(", in runs of")[0] + "."
    chosen_late = (
        "That what the updates changed counts where the mean scatters was fixed on seeds 0 and 1."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return language_model_arms(plan)


class LanguageModelForecasts(Forecasts):
    name = "beyond-llm-forecast"
    number = "SmolLM2, forecasts"
    title = "the next twenty steps, forecast and come"
    chosen_late = "How wide the band of a fast run is was fixed on these runs."
    horizons = (10, 20)

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return language_model_arms(plan)


class LanguageModelForks(Forks):
    name = "beyond-llm-forks"
    number = "SmolLM2, forks"
    chosen_late = "That an effect is a share of the entropy was fixed on seeds 0 and 1."

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        """A control is pushed about when the first alert suggests one."""
        after, thresholds = (4 if plan.quick else 12), PANELS["thresholds"]
        return {f"{WITHOUT} from {after}": language_model_arms(plan)[BASELINE]} | {
            f"{label} from {after}": replace(
                plan.language_model(thresholds[label]), pushed_after=after
            )
            for label in ("Clip_V µ 2, decreasing", "Clip_B µ 1", "hold at 60 %")
        }
