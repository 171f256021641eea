"""Fig. 2: how much Clip_B and Clip_V clip at a threshold, and what entropy remains."""

from __future__ import annotations

from collections.abc import Mapping

from isentrope_trainer.reproduce.drawing import Picture, against, courses, panels
from isentrope_trainer.reproduce.evidence import at_most, higher, trend
from isentrope_trainer.reproduce.figure import DYNAMICS, Check, Figure, Results, Row, by_seed, paired
from isentrope_trainer.reproduce.runs import Run
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_MEAN, REWARD_MEAN

METHODS = {"clip_b": "Clip_B", "clip_v": "Clip_V"}
THRESHOLDS = (0.5, 1.0, 2.0, 4.0)
BASELINE = "GRPO"


def clipping(method: str, mu: float = 1.0) -> dict[str, object]:
    """A control document: both sides at the same threshold, all tokens, as equations 15 and 16 have it."""
    return {"method": method, "mu_low": mu, "mu_high": mu, "scope": "all"}


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
            f"{label} µ = {mu:g}": plan.run(clipping(method, mu))
            for method, label in METHODS.items()
            for mu in THRESHOLDS
        }

    def _of_thresholds(self, results: Results) -> dict[str, dict[float, list[Run]]]:
        """Runs by method and threshold."""
        found = self.finished(results)
        return {label: {mu: found[f"{label} µ = {mu:g}"] for mu in THRESHOLDS} for label in METHODS.values()}

    def draw(self, results: Results) -> Picture:
        baseline = self.finished(results)[BASELINE]
        picture, axes = panels(2, 2)
        for column, (label, of_thresholds) in enumerate(self._of_thresholds(results).items()):
            shown = {BASELINE: baseline} | {f"µ = {mu:g}": runs for mu, runs in of_thresholds.items()}
            courses(axes[column], shown, ENTROPY_MEAN, "entropy, nats")
            axes[column].set_title(f"({'ab'[column]}) {label}: entropy")
            axes[column].legend()
            panel = axes[2 + column]
            fractions = [[100 * run.mean(CLIP_FRACTION) for run in runs] for runs in of_thresholds.values()]
            against(panel, THRESHOLDS, fractions, label="clipped, % of tokens", index=1)
            panel.set_xscale("log", base=2)
            panel.set_xticks(THRESHOLDS, [f"{mu:g}" for mu in THRESHOLDS])
            panel.set(xlabel="threshold µ, standard deviations", ylabel="clipped, % of tokens")
            panel.set_title(f"({'cd'[column]}) {label}")
            other = panel.twinx()
            other.grid(visible=False)
            ends = [[run.end(ENTROPY_MEAN) for run in runs] for runs in of_thresholds.values()]
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
            for label, of_thresholds in self._of_thresholds(results).items()
            for mu, runs in of_thresholds.items()
            for run in runs
        ]

    def checks(self, results: Results) -> list[Check]:
        checks, baseline = [], self.finished(results)[BASELINE]
        reason = "Beyond some threshold hardly a token is clipped, and the runs differ by chance alone."
        for label, of_thresholds in self._of_thresholds(results).items():
            fractions = by_seed(of_thresholds.values(), lambda run: run.mean(CLIP_FRACTION))
            ends = by_seed(of_thresholds.values(), lambda run: run.end(ENTROPY_MEAN))
            checks += [
                trend(f"{label}: fewer tokens are clipped as µ grows", THRESHOLDS, fractions, rising=False, unit="of tokens", reason=reason),
                trend(f"{label}: less entropy remains as µ grows", THRESHOLDS, ends, rising=False, unit="nats", reason=reason),
                higher(
                    f"{label} at µ = 1 ends above {BASELINE}",
                    *paired(of_thresholds[1.0], baseline, lambda run: run.end(ENTROPY_MEAN)),
                    unit="nats",
                ),
                at_most(
                    f"{label} at µ = 1 clips less than a quarter of the tokens",
                    [run.mean(CLIP_FRACTION) for run in of_thresholds[1.0]],
                    0.25,
                    unit="of tokens",
                    reason="Of scores that scatter as a normal distribution does, a third lies more than one deviation away.",
                ),
            ]  # fmt: skip
        return checks


FIGURES = (Thresholds(),)
