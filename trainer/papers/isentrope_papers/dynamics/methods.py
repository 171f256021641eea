"""Tables 1 to 4 and Fig. 4 in small: every method at the same budget, judged on held-out
problems."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from isentrope_papers.drawing import Picture, bars, look, panels
from isentrope_papers.dynamics.clipping import clipping
from isentrope_papers.evidence import higher, spread
from isentrope_papers.figure import Check, Figure, Results, Row, paired
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.experience import EVAL_RIGHT_ANSWERS, EVAL_TRIGRAMS, PASS_RATE_BINS
from isentrope_wire.metrics import ENTROPY_MEAN, EVAL_AVG_AT_K, EVAL_PASS_AT_K

PASS_RATE = "eval/pass_rate/{}"
"""Share of the held-out problems in a bin of `PASS_RATE_BINS`."""
CLIP_B, CLIP_V = clipping("clip_b"), clipping("clip_v")
METHODS: Mapping[str, Mapping[str, Any] | None] = {
    "GRPO": None,
    "GRPO + Clip_B": CLIP_B,
    "GRPO + Clip_V": CLIP_V,
    "GRPO + Clip-Cov": {"method": "clip_cov", "parameters": {"ratio": 0.02}},
    "GRPO + KL-Cov": {"method": "kl_cov", "parameters": {"k": 0.02, "beta": 1.0}},
    "GRPO + rewarding the unlikely": {"method": "rank_reward"},
    "GRPO + top 20 % entropy": {"method": "top_entropy", "parameters": {"fraction": 0.2}},
}
"""Arms of the same prompts, completions and updates. An update has about a thousand tokens: the
share of Clip-Cov is a hundred times, that of KL-Cov ten times the one in its authors' scripts, so
that both select some twenty of them. Rewarding the unlikely is He et al.'s rank reward."""
PPO: Mapping[str, Mapping[str, Any] | None] = {
    "PPO": None,
    "PPO + Clip_B": CLIP_B,
    "PPO + Clip_V": CLIP_V,
}


def method_arms(plan: Plan) -> dict[str, RunSettings]:
    """Off-policy, as the papers train: some methods do nothing where every ratio is 1."""
    arms = {label: plan.run(control, **plan.several_updates) for label, control in METHODS.items()}
    return arms | {
        label: plan.run(control, **plan.several_updates, algorithm="ppo")
        for label, control in PPO.items()
    }


def last(run: Run, metric: str) -> float:
    """Value of the last evaluation."""
    return run.end(metric, 1)


class Tables(Figure):
    name = "dynamics-tables"
    number = "Tables 1-4"
    title = "Avg@K and Pass@K of every method"
    claim = (
        "At the same budget Clip_B and Clip_V end with a higher Avg@K and Pass@K on held-out"
        " problems than plain GRPO and PPO, and at least as high as other methods against collapse."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return method_arms(plan)

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(1, 5, height=3.2)
        shown = (
            (EVAL_AVG_AT_K, "Avg@K, held out"),
            (EVAL_PASS_AT_K, "Pass@K, held out"),
            (EVAL_RIGHT_ANSWERS, "right answers that differ"),
            (EVAL_TRIGRAMS, "3-grams that differ"),
            (ENTROPY_MEAN, "entropy at the end, nats"),
        )
        for panel, letter, (metric, unit) in zip(axes, "abcde", shown, strict=True):
            steps = 1
            if metric == ENTROPY_MEAN:
                steps = 10
            ends = [[run.end(metric, steps) for run in runs] for runs in found.values()]
            bars(panel, list(found), ends, unit=unit)
            panel.set_title(f"({letter})")
            if letter != "a":
                panel.set_yticklabels([])
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            "avg_at_k_start": run.start(EVAL_AVG_AT_K, 1),
            "avg_at_k": last(run, EVAL_AVG_AT_K),
            "pass_at_k_start": run.start(EVAL_PASS_AT_K, 1),
            "pass_at_k": last(run, EVAL_PASS_AT_K),
            "right_answers": last(run, EVAL_RIGHT_ANSWERS),
            "trigrams": last(run, EVAL_TRIGRAMS),
            "entropy_end": run.end(ENTROPY_MEAN),
        }

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        reason = (
            "A short task whose answers a million parameters can learn: what exploration finds late"
            " counts for less than what is learned early, and entropy that is kept costs sampled"
            " answers."
        )
        checks = []
        for base in ("GRPO", "PPO"):
            for method in ("Clip_B", "Clip_V"):
                for metric, name in ((EVAL_AVG_AT_K, "Avg@K"), (EVAL_PASS_AT_K, "Pass@K")):
                    sides = paired(
                        found[f"{base} + {method}"], found[base], partial(last, metric=metric)
                    )
                    checks.append(
                        higher(
                            f"{base} + {method} has a higher {name} than {base}",
                            *sides,
                            reason=reason,
                        )
                    )
        others = [
            label for label in METHODS if label not in ("GRPO", "GRPO + Clip_B", "GRPO + Clip_V")
        ]
        means = {
            label: [last(run, EVAL_PASS_AT_K) for run in runs] for label, runs in found.items()
        }
        best = max(others, key=lambda label: float(np.mean(means[label])))
        mine, its = means["GRPO + Clip_V"], means[best]
        checks.append(
            Check(
                statement=f"Clip_V's Pass@K is not below that of the best other method, {best}",
                holds=float(np.mean(mine))
                >= float(np.mean(its)) - float(np.std(its, ddof=1) if len(its) > 1 else 0.0),
                number=f"{spread(mine)} against {spread(its)}",
                test="not more than one standard deviation over seeds below",
                reason=reason,
            )
        )
        return checks


class PassRates(Figure):
    name = "dynamics-4"
    number = "Fig. 4"
    title = "pass rates of held-out problems"
    claim = (
        "Training moves problems to both ends of the pass rate; with Clip_B or Clip_V fewer"
        " held-out problems are left that no sample solves, and fewer that every sample solves,"
        " than with GRPO."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        arms = method_arms(plan)
        return {label: arms[label] for label in ("GRPO", "GRPO + Clip_B", "GRPO + Clip_V")}

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, (axes,) = panels(1, 1, height=2.8)
        groups = {"before training": (found["GRPO"], "start")}
        groups |= {label: (runs, "end") for label, runs in found.items()}
        width = 0.8 / len(groups)
        hatches = ("", "//", "..", "xx")
        for index, (label, (runs, when)) in enumerate(groups.items()):
            shares = np.array(
                [
                    [100 * getattr(run, when)(PASS_RATE.format(name), 1) for name in PASS_RATE_BINS]
                    for run in runs
                ]
            )
            places = np.arange(len(PASS_RATE_BINS)) + (index - (len(groups) - 1) / 2) * width
            errors = None
            if len(runs) > 1:
                errors = shares.std(axis=0, ddof=1)
            axes.bar(
                places,
                shares.mean(axis=0),
                width,
                yerr=errors,
                label=label,
                color=look(index).color,
                alpha=0.6,
                hatch=hatches[index],
                edgecolor="white",
                error_kw={"linewidth": 0.8},
            )
        axes.set_xticks(range(len(PASS_RATE_BINS)), [f"{name} %" for name in PASS_RATE_BINS])
        axes.set(xlabel="pass rate of a problem", ylabel="% of held-out problems")
        axes.legend()
        return picture

    def table(self, results: Results) -> list[Row]:
        return [
            {"arm": label, "seed": run.seed, "when": when}
            | {
                f"share {name} %": getattr(run, when)(PASS_RATE.format(name), 1)
                for name in PASS_RATE_BINS
            }
            for label, runs in self.finished(results).items()
            for run in runs
            for when in ("start", "end")
        ]

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        never, always = (PASS_RATE.format(name) for name in (PASS_RATE_BINS[0], PASS_RATE_BINS[-1]))
        grpo = found["GRPO"]
        checks = [
            higher(
                "GRPO: more problems are always solved than before",
                [last(run, always) for run in grpo],
                [run.start(always, 1) for run in grpo],
                unit="of the problems",
            )
        ]
        for method in ("Clip_B", "Clip_V"):
            for when, end in (("never", never), ("always", always)):
                checks.append(
                    higher(
                        f"{method}: fewer problems are {when} solved than with GRPO",
                        *paired(grpo, found[f"GRPO + {method}"], partial(last, metric=end)),
                        unit="of the problems",
                        reason="The difference is small against its scatter over so few seeds.",
                    )
                )
        return checks
