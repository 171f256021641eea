"""The chapter of `isentrope reproduce --llm`: a language model of 135 million parameters under TRL, on a laptop."""

from __future__ import annotations

from collections.abc import Mapping

from isentrope_trainer.reproduce.beyond.alarms import Alarms, alarm
from isentrope_trainer.reproduce.beyond.forecast import Forecasts
from isentrope_trainer.reproduce.beyond.prediction import judged, theory
from isentrope_trainer.reproduce.drawing import Picture, courses, panels
from isentrope_trainer.reproduce.dynamics.clipping import clipping
from isentrope_trainer.reproduce.dynamics.methods import METHODS
from isentrope_trainer.reproduce.evidence import at_most, correlated, higher
from isentrope_trainer.reproduce.figure import Check, Figure, Results, paired
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_trainer.settings import LossConfig
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_PREDICTED_CHANGE,
    REWARD_MEAN,
)

BASELINE, FOUR_UPDATES = "vanilla", "vanilla, 4 updates"
COLLAPSED, REWARD_STEPS = 0.1, 20
SUGGESTED, CLIP_B, HOLD = "Clip_V µ 2, decreasing", "Clip_B µ 1", "hold at 60 %"
KL_COV, CLIP_COV, BONUS = "KL-Cov, 4 updates", "Clip-Cov", "entropy bonus 0.01"
RAISED, LOWERED = "positive: without S* > 0", "positive: without S* < 0"
PUBLISHED = {f"{label} µ⁻ 2, negative": method for method, label in (("clip_v", "Clip_V"), ("clip_b", "Clip_B"))}
PANELS = {
    "thresholds": (BASELINE, SUGGESTED, CLIP_B, HOLD, *PUBLISHED),
    "covariance, bonus": (BASELINE, CLIP_COV, BONUS, FOUR_UPDATES, KL_COV),
    "masks": (BASELINE, RAISED, LOWERED),
}


def language_model_arms(plan: Plan) -> dict[str, RunSettings]:
    """KL-Cov does nothing where every ratio is 1, so it has several updates a batch, beside a run without."""
    four = {"prompts": 12, "updates_per_batch": 4}
    masks = {
        label: plan.language_model(
            {"method": "score_sign", "scope": "positive", "parameters": {"sign": sign, "action": "mask"}}
        )
        for label, sign in ((RAISED, "positive"), (LOWERED, "negative"))
    }
    published = {
        label: plan.language_model({"method": method, "mu_low": 2.0, "scope": "negative"})
        for label, method in PUBLISHED.items()
    }
    return {
        BASELINE: plan.language_model(coupling="last_block"),
        SUGGESTED: plan.language_model(clipping("clip_v", 2.0) | {"scope": "decreasing"}),
        CLIP_B: plan.language_model(clipping("clip_b")),
        HOLD: plan.language_model({"hold": {"target_share": 0.6}}),
        CLIP_COV: plan.language_model(METHODS["GRPO + Clip-Cov"]),
        FOUR_UPDATES: plan.language_model(**four),
        KL_COV: plan.language_model(METHODS["GRPO + KL-Cov"], **four),
        **masks,
        **published,
        BONUS: plan.language_model(loss=LossConfig(entropy_coefficient=0.01)),
    }


class LanguageModel(Figure):
    name = "beyond-llm"
    number = "SmolLM2"
    title = "a language model of 135 million parameters under TRL"
    claim = (
        "SmolLM2-135M-Instruct under TRL's GRPO (48 steps of 3 prompts × 8 completions, learning rate 2.5e-5) loses nine tenths of its "
        "entropy; each intervention keeps more of it than the run without, and each step's change is predicted before it comes."
    )

    partial = True

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return language_model_arms(plan)

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(2, len(PANELS), height=2.6)
        for column, (title, labels) in enumerate(PANELS.items()):
            shown = {label: found[label] for label in labels if label in found}
            for row, (metric, unit) in enumerate(((ENTROPY_MEAN, "entropy, nats"), (REWARD_MEAN, "reward"))):
                panel = axes[row * len(PANELS) + column]
                courses(panel, shown, metric, unit, smooth=5 if row == 0 else 9)
                panel.set(title=f"({'abcdef'[row * len(PANELS) + column]}) {title}", ylim=(0, None))
            axes[column].legend()
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        one = alarm(run)
        return {
            "entropy_start": run.start(ENTROPY_MEAN),
            "entropy_end": run.end(ENTROPY_MEAN),
            "entropy_mean": run.mean(ENTROPY_MEAN),
            "reward_start": run.start(REWARD_MEAN),
            "reward_end": run.end(REWARD_MEAN, REWARD_STEPS),
            "clip_fraction": run.mean(CLIP_FRACTION) if CLIP_FRACTION in run.names else None,
            **one._asdict(),
            "lead": one.lead,
        }

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        checks = []
        if BASELINE in found:
            plain = found[BASELINE]
            checks += [
                at_most(
                    f"{BASELINE}: at most a tenth of the early entropy is left",
                    [alarm(run).lowest for run in plain],
                    COLLAPSED,
                    unit="of the early level",
                ),
                correlated(
                    f"{BASELINE}: theory goes with the change of the step's tokens",
                    [(theory(run), judged(run, ENTROPY_OBSERVED_CHANGE)) for run in plain],
                    reason="The step's own tokens: two hundred, whose change the sampled answers decide.",
                ),
                correlated(
                    f"{BASELINE}: so does the coupled prediction by the last block",
                    [(judged(run, ENTROPY_PREDICTED_CHANGE), judged(run, ENTROPY_OBSERVED_CHANGE)) for run in plain],
                    reason="The step's own tokens: two hundred, whose change the sampled answers decide.",
                ),
            ]
        for label, runs in found.items():
            without = FOUR_UPDATES if label == KL_COV else BASELINE
            if label in (BASELINE, FOUR_UPDATES) or without not in found:
                continue
            if label == LOWERED:
                sides, words = (
                    paired(found[without], runs, lambda run: run.mean(ENTROPY_MEAN)),
                    "has less entropy, mean of all steps, than",
                )
                checks.append(higher(f"{label} {words} {without}", *sides, unit="nats"))
                continue
            sides = paired(runs, found[without], lambda run: run.end(ENTROPY_MEAN))
            checks.append(higher(f"{label} ends with more entropy than {without}", *sides, unit="nats"))
            rewards = paired(runs, found[without], lambda run: run.end(REWARD_MEAN, REWARD_STEPS))
            checks.append(
                higher(
                    f"{label} ends with at least nine tenths of its reward",
                    rewards[0],
                    [0.9 * one for one in rewards[1]],
                    unit="(the second times 0.9)",
                )
            )
        return checks


class LanguageModelAlarms(Alarms):
    name = "beyond-llm-alarms"
    number = "SmolLM2, alarms"

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return language_model_arms(plan)


class LanguageModelForecasts(Forecasts):
    name = "beyond-llm-forecast"
    number = "SmolLM2, forecasts"
    title = "the next twenty steps, forecast and come"
    horizons = (10, 20)
    chosen_late = ""

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return language_model_arms(plan)
