"""Fig. 9 to 13 and Table 2: what is done against a collapse: an entropy bonus, a KL term to the
reference, Clip-Cov and KL-Cov.

The last two with several updates a batch, as their authors have it.
"""

from __future__ import annotations

from collections.abc import Mapping

from isentrope_papers.drawing import Picture, courses, draw_over, panels
from isentrope_papers.evidence import ends_above, higher, trend
from isentrope_papers.figure import Check, Figure, Results, group_by_seed, paired
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import LossConfig
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    COMPLETION_LENGTH_MEAN,
    ENTROPY_MEAN,
    EVAL_AVG_AT_K,
    EVAL_PASS_AT_K,
    REWARD_MEAN,
)

BONUSES = (0.0, 0.001, 0.01, 0.03)
DIVERGENCES = (0.0, 0.01, 0.05, 0.2)
BASELINE, CLIP_HIGHER = "GRPO", "GRPO, clip-higher"
CLIP_COV, KL_COV = "Clip-Cov", "KL-Cov"
OPEN = LossConfig(clip_low=None, clip_high=None)
"""Their authors open PPO's clip where a method of theirs selects the tokens instead."""
# Batches are thousands of times smaller here than theirs: a share of 2e-4 would be less than one
# token.
CLIP_RATIO, KL_RATIO, KL_COEFFICIENT = 0.005, 0.01, 1.0
RATIOS = (0.001, 0.005, 0.02)
COEFFICIENTS = (0.2, KL_COEFFICIENT, 5.0)
KNOBS = {"Clip-Cov, share": RATIOS, "KL-Cov, share": RATIOS, "KL-Cov, coefficient": COEFFICIENTS}


class Regularisers(Figure):
    name = "mechanism-9"
    number = "Fig. 9 and 10"
    title = "an entropy bonus, and a KL term to the reference"
    claim = (
        "An entropy bonus is sensitive to its coefficient: a small one changes little, a larger one"
        " makes the entropy explode; a KL term keeps the entropy up, but not the reward. Neither"
        " beats the run without."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {
            **{
                f"bonus {value:g}": plan.run(loss=LossConfig(entropy_coefficient=value))
                for value in BONUSES
            },
            **{
                f"KL {value:g}": plan.run(loss=LossConfig(kl_coefficient=value))
                for value in DIVERGENCES
            },
        }

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(2, 2)
        units = {ENTROPY_MEAN: "entropy, nats", REWARD_MEAN: "reward"}
        for row, (kind, title) in enumerate(
            (("bonus", "entropy bonus"), ("KL", "KL to the reference"))
        ):
            shown = {label: runs for label, runs in found.items() if label.startswith(kind)}
            for panel, (metric, unit) in zip(axes[2 * row :], units.items(), strict=False):
                courses(panel, shown, metric, unit)
                panel.set_title(title)
            axes[2 * row].legend()
        return picture

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)

        def ends(kind: str, values: tuple[float, ...], metric: str) -> list[list[float]]:
            """[seeds][values]."""
            return group_by_seed(
                [found[f"{kind} {value:g}"] for value in values], lambda run: run.end(metric)
            )

        bonus, divergence = (
            ends("bonus", BONUSES, ENTROPY_MEAN),
            ends("KL", DIVERGENCES, ENTROPY_MEAN),
        )
        starts = [run.start(ENTROPY_MEAN) for run in found[f"bonus {BONUSES[-1]:g}"]]
        of_bonus, of_divergence = (
            ends("bonus", BONUSES, REWARD_MEAN),
            ends("KL", DIVERGENCES, REWARD_MEAN),
        )
        return [
            trend(
                "the larger the bonus, the higher the entropy ends",
                BONUSES,
                bonus,
                rising=True,
                unit="nats",
            ),
            higher(
                f"a bonus of {BONUSES[-1]:g} lifts the entropy above its start",
                [row[-1] for row in bonus],
                starts,
                unit="nats",
                reason=(
                    "These runs are short, and rewards hold the entropy down as long as there is"
                    " something to learn."
                ),
            ),
            trend(
                "the larger the KL term, the higher the entropy ends",
                DIVERGENCES,
                divergence,
                rising=True,
                unit="nats",
            ),
            higher(
                "the largest KL term costs reward",
                [row[0] for row in of_divergence],
                [row[-1] for row in of_divergence],
                reason="Noise of the reward at this size.",
            ),
            higher(
                "the largest bonus costs reward",
                [row[0] for row in of_bonus],
                [row[-1] for row in of_bonus],
                reason="Noise of the reward at this size.",
            ),
        ]


def clip_cov(ratio: float = CLIP_RATIO) -> dict[str, object]:
    return {"method": "clip_cov", "parameters": {"ratio": ratio}}


def kl_cov(ratio: float = KL_RATIO, coefficient: float = KL_COEFFICIENT) -> dict[str, object]:
    return {"method": "kl_cov", "parameters": {"k": ratio, "beta": coefficient}}


class CovarianceControl(Figure):
    name = "mechanism-11"
    number = "Fig. 11, Table 2"
    title = "Clip-Cov and KL-Cov"
    claim = (
        "Restricting the few tokens of the highest covariance keeps the entropy up and ends at a"
        " higher reward than GRPO and clip-higher."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {
            BASELINE: plan.run(**plan.several_updates),
            CLIP_HIGHER: plan.run(loss=LossConfig(clip_high=0.28), **plan.several_updates),
            CLIP_COV: plan.run(clip_cov(), loss=OPEN, **plan.several_updates),
            KL_COV: plan.run(kl_cov(), loss=OPEN, **plan.several_updates),
        }

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 3)
        shown = {
            ENTROPY_MEAN: "entropy, nats",
            COMPLETION_LENGTH_MEAN: "length, tokens",
            REWARD_MEAN: "reward",
        }
        for panel, (metric, unit) in zip(axes, shown.items(), strict=True):
            courses(panel, self.finished(results), metric, unit, smooth=25)
        axes[0].legend()
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            "entropy_end": run.end(ENTROPY_MEAN),
            "reward_end": run.end(REWARD_MEAN),
            "avg_at_k": run.end(EVAL_AVG_AT_K, 1),
            "pass_at_k": run.end(EVAL_PASS_AT_K, 1),
            "clipped_fraction": run.mean(CLIP_FRACTION),
        }

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        short = (
            "In so few steps GRPO does not yet run out of entropy, so that what is kept is not yet"
            " worth reward."
        )
        checks = []
        for method in (CLIP_COV, KL_COV):
            answers = paired(found[method], found[BASELINE], lambda run: run.end(EVAL_AVG_AT_K, 1))
            checks += [
                ends_above(
                    f"{method} ends with more entropy than GRPO", found[method], found[BASELINE]
                ),
                higher(f"{method} ends with a higher Avg@K than GRPO", *answers, reason=short),
            ]
        return checks


class CovarianceKnobs(Figure):
    name = "mechanism-12"
    number = "Fig. 12 and 13"
    title = "shares and coefficients of Clip-Cov and KL-Cov"
    claim = (
        "The share of restricted tokens and the coefficient set the entropy: the more is"
        " restricted, the higher it is."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        def run(control: dict[str, object]) -> RunSettings:
            return plan.run(control, loss=OPEN, **plan.several_updates)

        return {
            **{_label("Clip-Cov, share", ratio): run(clip_cov(ratio)) for ratio in RATIOS},
            **{_label("KL-Cov, share", ratio): run(kl_cov(ratio)) for ratio in RATIOS},
            **{
                _label("KL-Cov, coefficient", value): run(kl_cov(KL_RATIO, value))
                for value in COEFFICIENTS
            },
        }

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(2, 3)
        for column, (knob, values) in enumerate(KNOBS.items()):
            of_values = {f"{value:g}": found[_label(knob, value)] for value in values}
            courses(
                axes[column], of_values, ENTROPY_MEAN, "" if column else "entropy, nats", smooth=25
            )
            axes[column].set_title(knob)
            axes[column].legend()
            ends = [[run.end(ENTROPY_MEAN) for run in runs] for runs in of_values.values()]
            below = axes[3 + column]
            draw_over(below, values, ends, label="", index=1)
            below.set_xscale("log")
            below.set_xticks(values, list(of_values))
            below.minorticks_off()
            below.set_xlabel(knob.split(", ")[1])
        axes[3].set_ylabel("entropy at the end, nats")
        return picture

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        return [
            trend(
                f"{knob}: the larger, the more entropy is kept",
                values,
                group_by_seed(
                    [found[_label(knob, value)] for value in values],
                    lambda run: run.end(ENTROPY_MEAN),
                ),
                rising=True,
                unit="nats",
                reason="With few tokens a step, a small share selects none in most steps.",
            )
            for knob, values in KNOBS.items()
        ]


def _label(knob: str, value: float) -> str:
    return f"{knob} {value:g}"
