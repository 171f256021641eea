"""A held entropy beside the controllers that others have published, at equal seeds.

Each arm is the reference trainer, strictly on-policy, with one controller and one target: 75 % and
50 % of the level that the warm start begins with, and an anneal from 100 to 50 %. What a
controller has was not chosen on these runs, but for what `chosen_late` names: peers have their
authors' numbers, and a band of 3 % around the target where they have a band."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from isentrope_papers.beyond.hold import EARLY_NATS
from isentrope_papers.drawing import Picture, course, panels
from isentrope_papers.evidence import check_at_least, higher
from isentrope_papers.figure import Check, Figure, Results, Row, paired
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import EvaluationConfig
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    ENTROPY_MEAN,
    EVAL_AVG_AT_K,
    EVAL_PASS_AT_K,
    REWARD_MEAN,
)

FIRST_SEED = 100
"""No other figure, and nothing that a controller was tuned on, has these seeds."""
BAND = 0.03
"""Half the width of a band, as a share of the target."""
SETTLED = 0.4
"""Share of a run's steps after which it is judged."""
CLOSE = 0.05
TOGETHER = 10
"""Steps of a mean, in which a batch's own scatter averages out."""
LAST_STEPS = 50
LEVELS = {"75 %": 0.75, "50 %": 0.5}
ANNEAL = "anneal"
BASELINE = "left to itself"
HELD, BONUS_HELD, PEERS = "hold", "hold by a bonus", ("adaptive bonus", "Entrocraft", "STARE")


def targets_of(label: str, steps: int) -> NDArray[np.float64]:
    """The target of each step, in nats, of an arm or a column."""
    shares = np.linspace(1.0, 0.5, steps + 1)[1:]
    for name, share in LEVELS.items():
        if label.endswith(name):
            shares = np.full(steps, share)
    return EARLY_NATS * shares


class Controllers(Figure):
    name = "beyond-controllers"
    number = "Controllers"
    title = "a held entropy against the controllers of others"
    claim = (
        "At equal seeds a held entropy lies closer to its target than under an adaptive bonus, "
        "Entrocraft's choice of samples, or STARE's weights, and costs no reward."
    )
    chosen_late = (
        "That a hold steers ahead of a moving target was added after its anneal had been seen at "
        "this figure's first seed."
    )
    partial = True
    updates = 1
    """Updates that a batch is learnt from."""

    def _steps(self, plan: Plan) -> int:
        steps = 100
        if plan.quick:
            steps = 30
        return steps - steps % self.updates

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        steps = self._steps(plan)
        size = 12
        evaluation = EvaluationConfig(every=steps // 2 - 1, problems=64, samples=16, k=8)
        if plan.quick:
            size = 8
            evaluation = EvaluationConfig(every=steps // 2 - 1, problems=16, samples=8, k=4)

        def run(control: Mapping[str, object] | None = None) -> RunSettings:
            return plan.run(
                control,
                first_seed=FIRST_SEED,
                steps=steps,
                prompts=size * self.updates,
                updates_per_batch=self.updates,
                group_size=size,
                learning_rate=1.2e-4,
                evaluation=evaluation,
            )

        arms = {BASELINE: run()}
        for name, share in LEVELS.items():
            nats = share * EARLY_NATS
            follows = {"target_entropy": nats, "coefficient": 0.0}
            band = {"low": (1 - BAND) * nats, "high": (1 + BAND) * nats}
            arms |= {
                f"{HELD}, {name}": run({"hold": {"target_entropy": nats}}),
                f"{BONUS_HELD}, {name}": run({"hold": {"target_entropy": nats, "lever": "bonus"}}),
                f"{PEERS[0]}, {name}": run({"method": "entropy_bonus", "parameters": follows}),
                f"{PEERS[1]}, {name}": run({"method": "entrocraft", "parameters": band}),
                f"{PEERS[2]}, {name}": run(
                    {"method": "stare", "parameters": {"target_entropy": nats}}
                ),
            }
        ends = {"anneal": [EARLY_NATS, EARLY_NATS / 2], "steps": steps, "start": 0}
        band = {
            "low": (1 - BAND) * EARLY_NATS,
            "high": (1 + BAND) * EARLY_NATS,
            "low_end": (1 - BAND) * EARLY_NATS / 2,
            "high_end": (1 + BAND) * EARLY_NATS / 2,
            "steps": steps,
        }
        return arms | {
            f"{HELD}, {ANNEAL}": run({"hold": ends}),
            f"{BONUS_HELD}, {ANNEAL}": run({"hold": {**ends, "lever": "bonus"}}),
            f"{PEERS[1]}, {ANNEAL}": run({"method": "entrocraft", "parameters": band}),
        }

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(2, 3)
        for column, name in enumerate([*LEVELS, ANNEAL]):
            labels = [BASELINE, *(label for label in found if label.endswith(name))]
            for label in (label for label in labels if label in found):
                short = label.partition(",")[0]
                index = [BASELINE, HELD, BONUS_HELD, *PEERS].index(short)
                course(axes[column], found[label], ENTROPY_MEAN, label=short, index=index)
                course(
                    axes[3 + column], found[label], REWARD_MEAN, label=short, index=index, smooth=15
                )
            target = targets_of(name, self._steps(results.plan))
            axes[column].plot(np.arange(1, len(target) + 1), target, color="black", linewidth=0.8)
            axes[column].set(
                xlabel="step", ylabel="entropy, nats", title=f"({'abc'[column]}) {name}"
            )
            axes[3 + column].set(
                xlabel="step", ylabel="reward, mean of 15 steps", title=f"({'def'[column]})"
            )
        lines, names = axes[0].get_legend_handles_labels()
        picture.legend(lines, names, loc="outside lower center", ncols=3)
        return picture

    def table(self, results: Results) -> list[Row]:
        rows: list[Row] = []
        for label, runs in self.finished(results).items():
            for run in runs:
                off = deviations(run, label)
                row: dict[str, object] = {
                    "arm": label,
                    "seed": run.seed,
                    "deviation": None,
                    "deviation_of_10_steps": None,
                    "within_5_percent": None,
                    "dropped": run.mean(CLIP_FRACTION) if CLIP_FRACTION in run.names else None,
                    "entropy_end": run.end(ENTROPY_MEAN, 20),
                    "reward_last_50": run.end(REWARD_MEAN, LAST_STEPS),
                    "avg_at_k": run.end(EVAL_AVG_AT_K, 1),
                    "pass_at_k": run.end(EVAL_PASS_AT_K, 1),
                }
                if label != BASELINE:
                    row |= {
                        "deviation": float(np.nanmean(np.abs(off))),
                        "deviation_of_10_steps": deviation_of_means(label)(run),
                        "within_5_percent": float(np.mean(np.abs(off) <= CLOSE)),
                    }
                rows.append(row)
        return rows

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        checks = []
        for name, peer in product([*LEVELS, ANNEAL], PEERS):
            held, others = found.get(f"{HELD}, {name}"), found.get(f"{peer}, {name}")
            if held is None or others is None:
                continue
            for deviation, of_what in (
                (mean_deviation(name), ""),
                (deviation_of_means(name), f" in means of {TOGETHER} steps"),
            ):
                of_peer, of_hold = paired(others, held, deviation)
                checks.append(
                    higher(
                        f"{name}: {peer} deviates more than twice as much as the hold{of_what}",
                        of_peer,
                        [2 * value for value in of_hold],
                        unit="of the target (the second times 2)",
                        reason="A batch's own mean entropy scatters by several percent.",
                    )
                )
            rewards = paired(held, others, lambda run: run.end(REWARD_MEAN, LAST_STEPS))
            checks.append(
                check_at_least(
                    f"{name}: the hold's reward is not 0.02 below that under {peer}",
                    np.subtract(*rewards).tolist(),
                    -0.02,
                    unit="more reward",
                    reason="Clipping drops tokens that teach, a bonus drops none.",
                )
            )
        return checks


class ControllersOfManyUpdates(Controllers):
    name = "beyond-controllers-updates"
    number = "Controllers, eight updates"
    title = "the controllers where each batch is learnt from in eight updates"
    chosen_late = ""
    updates = 8


def mean_deviation(label: str) -> Callable[[Run], float]:
    """The mean of `deviations` by size, of a run of this arm or column."""
    return lambda run: float(np.nanmean(np.abs(deviations(run, label))))


def deviation_of_means(label: str) -> Callable[[Run], float]:
    """The mean deviation of the means of TOGETHER steps, counted from the end."""

    def deviation(run: Run) -> float:
        off = deviations(run, label)
        means = off[len(off) % TOGETHER :].reshape(-1, TOGETHER).mean(axis=1)
        return float(np.nanmean(np.abs(means)))

    return deviation


def deviations(run: Run, label: str) -> NDArray[np.float64]:
    """H - target of the settled steps, as a share of each one's target."""
    entropies = run.series(ENTROPY_MEAN)
    targets = targets_of(label, len(entropies))
    shares: NDArray[np.float64] = entropies / targets - 1
    return shares[int(SETTLED * len(shares)) :]
