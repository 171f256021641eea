"""A held entropy beside fixed thresholds and the adaptive entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isentrope_papers.drawing import Picture, course, panels
from isentrope_papers.dynamics.clipping import clipping
from isentrope_papers.evidence import check_at_most, higher
from isentrope_papers.figure import Check, Figure, Results, Row, paired
from isentrope_papers.runs import Run
from isentrope_papers.settings import Plan, RunSettings
from isentrope_trainer.settings import AdaptiveEntropyConfig
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

EARLY_NATS = 0.6
"""The mean entropy that the shipped warm start begins with: what targets in nats are shares of."""
SHARES = (0.75, 0.5)
SETTLED = 0.4
"""Share of a run's steps after which a target is to be reached; what comes before is not judged."""
CLOSE = 0.1
"""Mean deviation, as a share of the target, that a held entropy is to stay within."""
THRESHOLDS = (1.0, 2.0)
BASELINE = "left to itself"


def _hold(share: float) -> str:
    return f"hold at {share:.0%}"


def _adaptive(share: float) -> str:
    return f"adaptive bonus at {share:.0%}"


def deviation(run: Run, share: float) -> float:
    """Mean |H - target| of the settled steps, as a share of the target."""
    entropies = run.series(ENTROPY_MEAN)
    target = share * EARLY_NATS
    return float(np.nanmean(np.abs(entropies[int(SETTLED * len(entropies)) :] - target)) / target)


class Hold(Figure):
    name = "beyond-hold"
    number = "Hold"
    title = "a held entropy against fixed thresholds and the adaptive bonus"
    claim = (
        "Thresholds chosen at each step from the calibrated prediction hold the entropy at a"
        " target, more closely than the adaptive entropy bonus, and cost no reward against fixed"
        " thresholds."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        held = {
            _hold(share): plan.run({"hold": {"target_entropy": share * EARLY_NATS}})
            for share in SHARES
        }
        bonus = {
            _adaptive(share): plan.run(
                adaptive_entropy=AdaptiveEntropyConfig(target_entropy=share * EARLY_NATS)
            )
            for share in SHARES
        }
        fixed = {f"Clip_V µ = {mu:g}": plan.run(clipping("clip_v", mu)) for mu in THRESHOLDS}
        return {BASELINE: plan.run()} | held | bonus | fixed

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(2, 2)
        for column, share in enumerate(SHARES):
            shown = (
                BASELINE,
                _hold(share),
                _adaptive(share),
                *(f"Clip_V µ = {mu:g}" for mu in THRESHOLDS),
            )
            for index, label in enumerate(shown):
                course(
                    axes[column],
                    found[label],
                    ENTROPY_MEAN,
                    label=label.split(" at ")[0],
                    index=index,
                )
                course(
                    axes[2 + column], found[label], REWARD_MEAN, label=label, index=index, smooth=15
                )
            target = share * EARLY_NATS
            axes[column].axhspan(
                target * (1 - CLOSE), target * (1 + CLOSE), color="#0072B2", alpha=0.12, linewidth=0
            )
            axes[column].set(
                xlabel="step",
                ylabel="entropy, nats",
                title=f"({'ab'[column]}) target {target:.2f} nats ± 10 %",
            )
            axes[2 + column].set(
                xlabel="step", ylabel="reward, mean of 15 steps", title=f"({'cd'[column]})"
            )
        axes[0].legend()
        return picture

    def table(self, results: Results) -> list[Row]:
        rows: list[Row] = []
        for label, runs in self.finished(results).items():
            share = next((one for one in SHARES if label in (_hold(one), _adaptive(one))), None)
            for run in runs:
                rows.append(
                    {
                        "rule": label,
                        "seed": run.seed,
                        "deviation": None if share is None else deviation(run, share),
                        "entropy_end": run.end(ENTROPY_MEAN, 20),
                        "reward_end": run.end(REWARD_MEAN, 20),
                    }
                )
        return rows

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        checks = []
        fixed = {
            mu: [run.end(REWARD_MEAN, 20) for run in found[f"Clip_V µ = {mu:g}"]]
            for mu in THRESHOLDS
        }
        best = max(fixed, key=lambda mu: float(np.mean(fixed[mu])))
        for share in SHARES:
            held, adaptive = (
                [deviation(run, share) for run in found[name(share)]] for name in (_hold, _adaptive)
            )
            checks.append(
                check_at_most(
                    f"{_hold(share)}: the mean deviation is below 10 % of the target",
                    held,
                    CLOSE,
                    unit="of the target",
                    reason="A batch's own mean entropy scatters by several percent of the target.",
                )
            )
            if len(held) == len(adaptive):
                checks.append(
                    higher(
                        f"the adaptive bonus at {share:.0%} deviates more",
                        adaptive,
                        held,
                        unit="of the target",
                        reason=(
                            "Once its coefficient has settled, the bonus holds a target near the"
                            " entropy's own course too."
                        ),
                    )
                )
            best_runs = found[f"Clip_V µ = {best:g}"]
            rewards = paired(found[_hold(share)], best_runs, lambda run: run.end(REWARD_MEAN, 20))
            checks.append(
                higher(
                    f"{_hold(share)}: its reward is above nine tenths of that under the best fixed"
                    " threshold",
                    rewards[0],
                    [0.9 * reward for reward in rewards[1]],
                    unit="(the second times 0.9)",
                    reason="Entropy above the fixed threshold's costs sampled answers.",
                )
            )
        return checks
