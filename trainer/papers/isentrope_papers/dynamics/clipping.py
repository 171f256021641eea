"""Fig. 2 and Fig. 6 to 8: Clip_B and Clip_V at every threshold, in models of three sizes, and the
norm of the gradient."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isentrope_papers.drawing import Picture, courses, draw_over, panels
from isentrope_papers.evidence import check_at_most, ends_above, trend
from isentrope_papers.figure import Check, Figure, Results, Row, group_by_seed, paired
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import SIZES
from isentrope_wire.metrics import CLIP_FRACTION, ENTROPY_MEAN, REWARD_MEAN, TRAIN_GRAD_NORM

METHODS = {"clip_b": "Clip_B", "clip_v": "Clip_V"}
THRESHOLDS = (0.5, 1.0, 2.0, 4.0)
BASELINE = "GRPO"
SHOWN = ("0.2M", "1.1M", "4.4M")


def clipping(method: str, mu: float = 1.0) -> dict[str, object]:
    """A control document: both sides at the same threshold, all tokens, as equations 15 and 16 have
    it."""
    return {"method": method, "mu_low": mu, "mu_high": mu, "scope": "all"}


class Thresholds(Figure):
    name = "dynamics-2"
    number = "Fig. 2 a-d"
    title = "clip fraction and entropy against µ"
    claim = (
        "The smaller the threshold µ of Clip_B and Clip_V, the more tokens are clipped and the more"
        " entropy remains; a small share of clipped tokens is enough to change the course of the"
        " entropy."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {BASELINE: plan.run()} | {
            f"{label} µ = {mu:g}": plan.run(clipping(method, mu))
            for method, label in METHODS.items()
            for mu in THRESHOLDS
        }

    def _group_by_threshold(self, results: Results) -> dict[str, dict[float, list[Run]]]:
        found = self.finished(results)
        return {
            label: {mu: found[f"{label} µ = {mu:g}"] for mu in THRESHOLDS}
            for label in METHODS.values()
        }

    def draw(self, results: Results) -> Picture:
        baseline = self.finished(results)[BASELINE]
        picture, axes = panels(2, 2)
        for column, (label, of_thresholds) in enumerate(self._group_by_threshold(results).items()):
            shown = {BASELINE: baseline} | {
                f"µ = {mu:g}": runs for mu, runs in of_thresholds.items()
            }
            courses(axes[column], shown, ENTROPY_MEAN, "entropy, nats")
            axes[column].set_title(f"({'ab'[column]}) {label}: entropy")
            axes[column].legend()
            panel = axes[2 + column]
            fractions = [
                [100 * run.mean(CLIP_FRACTION) for run in runs] for runs in of_thresholds.values()
            ]
            draw_over(panel, THRESHOLDS, fractions, label="clipped, % of tokens", index=1)
            panel.set_xscale("log", base=2)
            panel.set_xticks(THRESHOLDS, [f"{mu:g}" for mu in THRESHOLDS])
            panel.set(xlabel="threshold µ, standard deviations", ylabel="clipped, % of tokens")
            panel.set_title(f"({'cd'[column]}) {label}")
            other = panel.twinx()
            other.grid(visible=False)
            ends = [[run.end(ENTROPY_MEAN) for run in runs] for runs in of_thresholds.values()]
            draw_over(other, THRESHOLDS, ends, label="entropy at the end", index=2)
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
            for label, of_thresholds in self._group_by_threshold(results).items()
            for mu, runs in of_thresholds.items()
            for run in runs
        ]

    def checks(self, results: Results) -> list[Check]:
        checks, baseline = [], self.finished(results)[BASELINE]
        reason = (
            "Beyond some threshold hardly a token is clipped, and the runs differ by chance alone."
        )
        for label, of_thresholds in self._group_by_threshold(results).items():
            fractions = group_by_seed(of_thresholds.values(), lambda run: run.mean(CLIP_FRACTION))
            ends = group_by_seed(of_thresholds.values(), lambda run: run.end(ENTROPY_MEAN))
            checks += [
                trend(
                    f"{label}: fewer tokens are clipped as µ grows",
                    THRESHOLDS,
                    fractions,
                    rising=False,
                    unit="of tokens",
                    reason=reason,
                ),
                trend(
                    f"{label}: less entropy remains as µ grows",
                    THRESHOLDS,
                    ends,
                    rising=False,
                    unit="nats",
                    reason=reason,
                ),
                ends_above(f"{label} at µ = 1 ends above {BASELINE}", of_thresholds[1.0], baseline),
                check_at_most(
                    f"{label} at µ = 1 clips less than a quarter of the tokens",
                    [run.mean(CLIP_FRACTION) for run in of_thresholds[1.0]],
                    0.25,
                    unit="of tokens",
                    reason=(
                        "Of scores that scatter as a normal distribution does, a third lies more"
                        " than one deviation away."
                    ),
                ),
            ]
        return checks


def _roughness(run: Run) -> float:
    """How wild the gradient's norm is: its 99 % quantile over its median."""
    norms = run.series(TRAIN_GRAD_NORM)
    return float(np.nanquantile(norms, 0.99) / np.nanmedian(norms))


class Models(Figure):
    name = "dynamics-6"
    number = "Fig. 6-8"
    title = "models of three sizes, and the gradient's norm"
    claim = (
        "Clipping by the discriminator keeps more entropy in models of every size, and training"
        " stays stable: the gradient's norm has no larger spikes than without."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {
            f"{size} {label}": plan.run(control, policy=SIZES[size])
            for size in SHOWN
            for label, control in (("GRPO", None), ("Clip_V", clipping("clip_v")))
        }

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(3, len(SHOWN), height=1.9)
        shown = (
            (ENTROPY_MEAN, "entropy, nats"),
            (REWARD_MEAN, "reward"),
            (TRAIN_GRAD_NORM, "gradient norm"),
        )
        for column, size in enumerate(SHOWN):
            of_size = {label: found[f"{size} {label}"] for label in ("GRPO", "Clip_V")}
            for row, (metric, unit) in enumerate(shown):
                courses(axes[row * len(SHOWN) + column], of_size, metric, unit)
            axes[column].set_title(f"{size} parameters")
        for panel in axes[: -len(SHOWN)]:
            panel.set_xlabel("")
        for panel in (panel for place, panel in enumerate(axes) if place % len(SHOWN)):
            panel.set_ylabel("")
        axes[0].legend()
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            "entropy_start": run.start(ENTROPY_MEAN),
            "entropy_end": run.end(ENTROPY_MEAN),
            "reward_end": run.end(REWARD_MEAN),
            "gradient_norm_median": float(np.nanmedian(run.series(TRAIN_GRAD_NORM))),
            "gradient_norm_99_over_median": _roughness(run),
        }

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        checks = []
        for size in SHOWN:
            pair = (found[f"{size} Clip_V"], found[f"{size} GRPO"])
            clipped, plain = paired(*pair, _roughness)
            checks += [
                ends_above(
                    f"{size}: Clip_V ends with more entropy",
                    *pair,
                    reason="The difference is large, but so is its scatter over seeds.",
                ),
                check_at_most(
                    f"{size}: Clip_V's gradient norm has no larger spikes (99 % quantile over"
                    " median, ratio below 1.25)",
                    [one / other for one, other in zip(clipped, plain, strict=True)],
                    1.25,
                    reason="A norm of few tokens: spikes of single batches decide the quantile.",
                ),
            ]
        return checks
