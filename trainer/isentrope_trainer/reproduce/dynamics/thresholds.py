"""Fig. 2: how much Clip_B and Clip_V clip at a threshold, and what entropy remains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from isentrope_trainer.reproduce.drawing import against, course, panels
from isentrope_trainer.reproduce.evidence import at_most, higher, trend
from isentrope_trainer.reproduce.figure import DYNAMICS, Check, Figure, Results, Row
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_MEAN, REWARD_MEAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

METHODS = {"clip_b": "Clip_B", "clip_v": "Clip_V"}
THRESHOLDS = (0.5, 1.0, 2.0, 4.0)
BASELINE = "GRPO"


def clipped(plan: Plan, method: str, mu: float) -> RunSettings:
    """Both sides at the same threshold, all tokens, as equations 15 and 16 have it."""
    return plan.run({"method": method, "mu_low": mu, "mu_high": mu, "scope": "all"})


class Thresholds(Figure):
    name = "dynamics-2"
    paper = DYNAMICS
    number = "Fig. 2 a-d"
    title = "clip fraction and entropy against µ"
    claim = (
        "The smaller the threshold µ of Clip_B and Clip_V, the more tokens are clipped and the more entropy remains; "
        "a small share of clipped tokens is enough to change the course of the entropy."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {BASELINE: plan.run()} | {
            f"{label} µ = {mu:g}": clipped(plan, method, mu) for method, label in METHODS.items() for mu in THRESHOLDS
        }

    def draw(self, results: Results) -> Picture:
        plan = results.plan
        picture, axes = panels(2, 2)
        for column, (method, label) in enumerate(METHODS.items()):
            course(axes[column], results.runs(plan.run()), ENTROPY_MEAN, label=BASELINE, index=0)
            for index, mu in enumerate(THRESHOLDS, start=1):
                runs = results.runs(clipped(plan, method, mu))
                course(axes[column], runs, ENTROPY_MEAN, label=f"µ = {mu:g}", index=index)
            axes[column].set(xlabel="step", ylabel="entropy, nats", title=f"({'ab'[column]}) {label}: entropy")
            axes[column].legend()
            panel = axes[2 + column]
            of_thresholds = [results.runs(clipped(plan, method, mu)) for mu in THRESHOLDS]
            fractions = [[100 * run.mean(CLIP_FRACTION) for run in runs] for runs in of_thresholds]
            against(panel, THRESHOLDS, fractions, label="clipped, % of tokens", index=1)
            panel.set_xscale("log", base=2)
            panel.set_xticks(THRESHOLDS, [f"{mu:g}" for mu in THRESHOLDS])
            panel.set(
                xlabel="threshold µ, standard deviations",
                ylabel="clipped, % of tokens",
                title=f"({'cd'[column]}) {label}",
            )
            other = panel.twinx()
            other.grid(visible=False)
            ends = [[run.end(ENTROPY_MEAN) for run in runs] for runs in of_thresholds]
            against(other, THRESHOLDS, ends, label="entropy at the end", index=2)
            other.set_ylabel("entropy at the end, nats")
            other.spines.right.set_visible(True)
            panel.legend(handles=[*panel.containers, *other.containers], loc="upper right")
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {
                "method": label,
                "mu": mu,
                "seed": run.seed,
                "clip_fraction": run.mean(CLIP_FRACTION),
                "entropy_end": run.end(ENTROPY_MEAN),
                "reward_end": run.end(REWARD_MEAN),
            }
            for method, label in METHODS.items()
            for mu in THRESHOLDS
            for run in results.runs(clipped(results.plan, method, mu))
        ]

    def checks(self, results: Results) -> list[Check]:
        plan, checks = results.plan, []
        for method, label in METHODS.items():
            of_thresholds = [results.runs(clipped(plan, method, mu)) for mu in THRESHOLDS]
            seeds = sorted(set.intersection(*({run.seed for run in runs} for runs in of_thresholds)))
            by_seed = [[next(run for run in runs if run.seed == seed) for runs in of_thresholds] for seed in seeds]
            fractions = [[run.mean(CLIP_FRACTION) for run in runs] for runs in by_seed]
            ends = [[run.end(ENTROPY_MEAN) for run in runs] for runs in by_seed]
            reason = "Beyond some threshold hardly a token is clipped, and the runs differ by chance alone."
            checks += [
                trend(f"{label}: fewer tokens are clipped as µ grows", THRESHOLDS, fractions, rising=False, unit="of tokens", reason=reason),
                trend(f"{label}: less entropy remains as µ grows", THRESHOLDS, ends, rising=False, unit="nats", reason=reason),
                higher(
                    f"{label} at µ = 1 ends above {BASELINE}",
                    *results.paired(clipped(plan, method, 1.0), plan.run(), lambda run: run.end(ENTROPY_MEAN)),
                    unit="nats",
                ),
                at_most(
                    f"{label} at µ = 1 clips less than a quarter of the tokens",
                    [run.mean(CLIP_FRACTION) for run in results.runs(clipped(plan, method, 1.0))],
                    0.25,
                    unit="of tokens",
                    reason="Of scores that scatter as a normal distribution does, a third lies more than one deviation away.",
                ),
            ]  # fmt: skip
        return checks


FIGURES = (Thresholds(),)
