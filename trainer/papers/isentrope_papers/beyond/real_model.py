"""The chapter of `isentrope reproduce --llm`: a language model of 135 million parameters under TRL,
on a laptop. `LanguageModel` and what follows it are the hard regime, in which half of the entropy
is gone in nine steps; in the milder one, at the end, that takes some 85."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from isentrope_papers.beyond.alarms import NEIGHBOURS, Alarms, alarm
from isentrope_papers.beyond.forecast import Forecasts
from isentrope_papers.beyond.forks import WITHOUT, Forks
from isentrope_papers.beyond.prediction import judged, theory
from isentrope_papers.drawing import Picture, courses, panels, smoothed
from isentrope_papers.dynamics.clipping import clipping
from isentrope_papers.dynamics.methods import METHODS
from isentrope_papers.evidence import check_at_least, check_at_most, correlated, higher
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
    return {BASELINE: plan.hard_language_model(coupling="last_block")} | {
        label: plan.hard_language_model(control, **TRAINING.get(label, {}))
        for controls in PANELS.values()
        for label, control in controls.items()
    }


class LanguageModel(Figure):
    name = "beyond-llm"
    number = "SmolLM2"
    title = "a language model of 135 million parameters under TRL, hard"
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
            words = f"{label}: at most a tenth less reward, last 20 steps"
            least = [0.9 * reward for reward in its]
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
                plan.hard_language_model(thresholds[label]), pushed_after=after
            )
            for label in ("Clip_V µ 2, decreasing", "Clip_B µ 1", "hold at 60 %")
        }


HELD, SHARE, PUSHED = "hold at 60 %", 0.6, "Clip_V µ 2, decreasing"
PUSHED_AFTER, SETTLED_AFTER = 40, 40
"""Steps: after which the control of the fork is pushed, and from which on a hold is judged."""


def mild_arms(plan: Plan) -> dict[str, RunSettings]:
    """Every arm of the milder regime."""
    after = PUSHED_AFTER
    if plan.quick:
        after = 4
    pushed = plan.language_model(PANELS["thresholds"][PUSHED])
    return {
        BASELINE: plan.language_model(coupling="last_block"),
        HELD: plan.language_model({"hold": {"target_share": SHARE}}),
        f"{PUSHED} from {after}": replace(pushed, pushed_after=after),
    }


class Deviation(NamedTuple):
    """Mean distances of a run's entropy after `SETTLED_AFTER`, as shares."""

    deviation: float
    """Of single steps from the target."""
    deviation_of_ten: float
    """Of the means of ten steps from it."""
    scatter: float
    """Of single steps from the mean of their nine neighbours: what the batches alone make."""


def held_level(run: Run) -> float:
    """60 % of the early level, in nats."""
    return SHARE * float(np.nanmedian(run.series(metrics.ENTROPY_MEAN)[: metrics.EARLY_STEPS]))


def deviations(run: Run, target: float) -> Deviation:
    """Of the steps after `SETTLED_AFTER` from a target in nats."""
    entropies = run.series(metrics.ENTROPY_MEAN)
    settled = min(SETTLED_AFTER, len(entropies) // 2)
    own, near = entropies[settled:], smoothed(entropies, NEIGHBOURS)[settled:]
    tens = [own[first : first + 10] for first in range(0, max(1, len(own) - 9), 10)]
    return Deviation(
        float(np.nanmean(np.abs(own / target - 1))),
        float(np.mean([abs(np.nanmean(ten) / target - 1) for ten in tens])),
        float(np.nanmean(np.abs(own / near - 1))),
    )


def entropy_and_reward(arms: Mapping[str, list[Run]]) -> Picture:
    """Both courses of each arm, smoothed, side by side."""
    picture, (left, right) = panels(1, 2, height=2.8)
    courses(left, arms, metrics.ENTROPY_MEAN, "entropy, nats", smooth=NEIGHBOURS)
    courses(right, arms, metrics.REWARD_MEAN, "reward", smooth=NEIGHBOURS)
    left.set(ylim=(0, None))
    left.legend(loc="best")
    return picture


class MildLanguageModel(Figure):
    name = "beyond-llm-mild"
    number = "SmolLM2, mild"
    title = "a language model of 135 million parameters under TRL"
    claim = (
        "SmolLM2-135M-Instruct under TRL's GRPO (6 prompts × 4 completions, learning rate 2e-6)"
        " loses half of its entropy in 50 to 100 steps, and a hold keeps it at 60 % from step 41."
    )
    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return mild_arms(plan)

    def draw(self, results: Results) -> Picture:
        return entropy_and_reward(self.finished(results))

    def columns(self, run: Run) -> dict[str, object]:
        return (
            super().columns(run) | alarm(run)._asdict() | deviations(run, held_level(run))._asdict()
        )

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        halved = [float(alarm(run).lost_half_at or np.inf) for run in found.get(BASELINE, [])]
        checks = []
        if halved:
            words = f"{BASELINE}: half of the early entropy is gone"
            checks.append(check_at_least(f"{words} after step 50 or later", halved, 50.0))
            checks.append(check_at_most(f"{words} by step 100", halved, 100.0))
        if HELD in found:
            off = [deviations(run, held_level(run)).deviation_of_ten for run in found[HELD]]
            words = f"{HELD}: means of ten steps deviate by less than a tenth"
            checks.append(check_at_most(words, off, 0.1, unit="of the target"))
        return checks


class MildForecasts(LanguageModelForecasts):
    name = "beyond-llm-mild-forecast"
    number = "SmolLM2, mild, forecasts"
    chosen_late = ""

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return mild_arms(plan)


class MildForks(LanguageModelForks):
    name = "beyond-llm-mild-forks"
    number = "SmolLM2, mild, forks"
    chosen_late = ""

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        (_, plain), _, (label, pushed) = mild_arms(plan).items()
        return {f"{WITHOUT} from {label.rpartition(' ')[2]}": plain, label: pushed}
