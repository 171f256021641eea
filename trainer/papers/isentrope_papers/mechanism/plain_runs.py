"""Fig. 2 and 8, Table 1, Theorems 1 and 2: what plain GRPO runs show of entropy, reward and
covariances."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isentrope_papers import drawing
from isentrope_papers.drawing import (
    Picture,
    averaged,
    course,
    draw_over,
    look,
    panels,
    points,
    smoothed,
)
from isentrope_papers.evidence import check_at_least, check_at_most, correlated, higher, pearson
from isentrope_papers.figure import Check, Figure, Results
from isentrope_papers.runs import Run, Series
from isentrope_papers.settings import Plan, RunSettings
from isentrope_wire.metrics import (
    COVARIANCE_ADVANTAGE_DISCRIMINATOR,
    COVARIANCE_ADVANTAGE_LOGPROB,
    COVARIANCE_GROUP,
    COVARIANCE_GROUP_EASY,
    COVARIANCE_GROUP_HARD,
    COVARIANCE_GROUP_MIDDLE,
    COVARIANCE_TOP,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    REWARD_MEAN,
)

SHARE_SMOOTHED = 11
THIRD, TWELFTH = 1 / 3, 1 / 12
ENTROPY, REWARD = "entropy lost", "reward gained"
METRICS = {ENTROPY: ENTROPY_MEAN, REWARD: REWARD_MEAN}
COVARIANCES = {"of tokens": COVARIANCE_ADVANTAGE_LOGPROB, "of sequences (eq. 9)": COVARIANCE_GROUP}
DIFFICULTIES = {
    "easy": COVARIANCE_GROUP_EASY,
    "middle": COVARIANCE_GROUP_MIDDLE,
    "hard": COVARIANCE_GROUP_HARD,
}
COVARIANCE_SMOOTHED = 4 * drawing.SMOOTHED_STEPS + 1
SHARES = {float(f"{100 * share:g}"): metric for metric, share in COVARIANCE_TOP.items()}
"""Percent of the tokens -> the mean of their covariances."""
POLICIES, ACTIONS = 200, 64
STEP = 1e-4
GRADIENTS = {"policy gradient": "Theorem 1", "natural gradient": "Theorem 2"}


class _OfPlainRuns(Figure):
    label = ""

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {"GRPO": plan.run()}

    def plain(self, results: Results) -> list[Run]:
        return self.finished(results)["GRPO"]


def share_at(run: Run, metric: str, place: float) -> float:
    """The share of the run's whole change of a metric that is done at a share of its steps, by its
    smoothed course."""
    values = smoothed(run.series(metric), SHARE_SMOOTHED)
    return float((values[round(place * (len(values) - 1))] - values[0]) / (values[-1] - values[0]))


class Consumption(_OfPlainRuns):
    name = "mechanism-2"
    number = "Fig. 2"
    title = "entropy lost and reward gained over the training"
    claim = (
        "Most of the entropy is lost, and most of the reward gained, early: 73 % and 76 % in the"
        " first twelfth of the training, over nine tenths of both in the first third."
    )

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 2)
        runs = self.plain(results)
        for panel, metric, unit in zip(
            axes, METRICS.values(), ("entropy, nats", "reward"), strict=True
        ):
            for index, run in enumerate(runs):
                as_look = look(index)
                panel.plot(
                    run.steps,
                    smoothed(run.series(metric), SHARE_SMOOTHED),
                    color=as_look.color,
                    linestyle=as_look.dash,
                    label=f"seed {run.seed}",
                )
            for place, name in ((TWELFTH, "1/12"), (THIRD, "1/3")):
                panel.axvline(
                    place * runs[0].steps[-1], color="#777777", linewidth=0.8, linestyle=":"
                )
                panel.annotate(
                    name,
                    (place * runs[0].steps[-1], 1),
                    xycoords=("data", "axes fraction"),
                    fontsize=7,
                )
            panel.set(xlabel="step", ylabel=unit)
        axes[0].legend()
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            f"{label.replace(' ', '_')}_by_{name}": share_at(run, metric, place)
            for label, metric in METRICS.items()
            for name, place in (("twelfth", TWELFTH), ("third", THIRD))
        }

    def checks(self, results: Results) -> list[Check]:
        runs = self.plain(results)
        shorter = (
            "These runs end long before the entropy is used up, so that less of the whole lies at"
            " their beginning."
        )
        early = [
            check_at_least(
                f"more than half of the {label.split()[0]} is {label.split()[1]} in the first"
                " third",
                [share_at(run, metric, THIRD) for run in runs],
                0.5,
                unit="of the whole",
                reason=shorter,
            )
            for label, metric in METRICS.items()
        ]
        most = check_at_least(
            "nine tenths of the entropy is lost in the first third",
            [share_at(run, ENTROPY_MEAN, THIRD) for run in runs],
            0.9,
            unit="of the whole",
            reason=shorter,
        )
        together = correlated(
            "reward is gained as entropy is lost",
            [
                (
                    -smoothed(run.series(ENTROPY_MEAN), SHARE_SMOOTHED),
                    smoothed(run.series(REWARD_MEAN), SHARE_SMOOTHED),
                )
                for run in runs
            ],
            bound=0.8,
        )
        return [*early, most, together]


class TopShares(_OfPlainRuns):
    name = "mechanism-table-1"
    number = "Table 1"
    title = "covariance of the top tokens"
    claim = (
        "A few tokens have covariances far above the mean: the top 0.2 % hundreds of times as much"
        " as all tokens."
    )

    def draw(self, results: Results) -> Picture:
        picture, (panel,) = panels(1, 1)
        runs = self.plain(results)
        shown = [share for share, metric in SHARES.items() if metric in runs[0].names]
        draw_over(
            panel,
            shown,
            [[run.mean(SHARES[share]) for run in runs] for share in shown],
            label="",
            index=1,
        )
        panel.set(
            xscale="log", yscale="log", xlabel="top tokens, %", ylabel="mean covariance, nats"
        )
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            f"top_{share:g}_percent": run.mean(metric)
            for share, metric in SHARES.items()
            if metric in run.names
        }

    def checks(self, results: Results) -> list[Check]:
        return [
            check_at_least(
                f"the top {share} % have more than {times} times the mean of all",
                [
                    run.mean(SHARES[share]) / abs(run.mean(SHARES[100]))
                    for run in self.plain(results)
                ],
                times,
                unit="times",
                reason=(
                    "Answers are short and the vocabulary small: a token's log-prob can't be as far"
                    " from the mean as in a large model."
                ),
            )
            for share, times in ((2, 10), (0.2, 100))
        ]


class CovarianceMovesEntropy(_OfPlainRuns):
    name = "mechanism-8"
    number = "Fig. 8"
    title = "covariance and the change of the entropy"
    claim = (
        "The covariance of log-prob and advantage runs as the entropy's decrease does and stays"
        " above 0, so that the entropy falls step by step; it is larger where the problems are"
        " easier."
    )

    def draw(self, results: Results) -> Picture:
        picture, (left, middle, right) = panels(1, 3)
        runs = self.plain(results)
        for index, (label, metric) in enumerate(COVARIANCES.items()):
            course(left, runs, metric, label=label, index=index + 1, smooth=COVARIANCE_SMOOTHED)
        left.set_ylabel("Cov(log p, A), nats")
        left.legend(fontsize=6)
        course(
            middle,
            runs,
            ENTROPY_OBSERVED_CHANGE,
            label="change",
            index=2,
            smooth=COVARIANCE_SMOOTHED,
        )
        middle.set_ylabel("observed change, nats a step")
        for index, (label, metric) in enumerate(DIFFICULTIES.items()):
            course(right, runs, metric, label=label, index=index, smooth=COVARIANCE_SMOOTHED)
        right.set_ylabel("covariance in groups, nats")
        # Between the easy and the middle ones.
        right.legend(loc="upper right", bbox_to_anchor=(1.0, 0.8), fontsize=6)
        for panel in (left, middle, right):
            panel.axhline(0, color="#777777", linewidth=0.8)
            panel.set_xlabel("step")
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        return {
            **{
                f"covariance_{label.split()[1]}": run.mean(metric)
                for label, metric in COVARIANCES.items()
            },
            "observed_change": run.mean(ENTROPY_OBSERVED_CHANGE),
            "share_above_0": _share_above_0(run),
            **{f"covariance_{label}": run.mean(metric) for label, metric in DIFFICULTIES.items()},
        }

    def checks(self, results: Results) -> list[Check]:
        runs = self.plain(results)
        alike = [
            correlated(
                f"the covariance {label} and the entropy's decrease run alike",
                [
                    (
                        smoothed(run.series(metric), COVARIANCE_SMOOTHED),
                        smoothed(-run.series(ENTROPY_OBSERVED_CHANGE), COVARIANCE_SMOOTHED),
                    )
                    for run in runs
                ],
                bound=0.3,
                reason=(
                    "The covariance leaves the probability out: it is that of a natural gradient"
                    " (Theorem 2), not of this optimiser."
                ),
            )
            for label, metric in COVARIANCES.items()
        ]
        return [
            *alike,
            check_at_least(
                "the covariance is above 0 in most steps",
                [_share_above_0(run) for run in runs],
                0.5,
                unit="of the steps",
            ),
            higher(
                "easy problems have more of it than hard ones",
                [run.mean(DIFFICULTIES["easy"]) for run in runs],
                [run.mean(DIFFICULTIES["hard"]) for run in runs],
                unit="nats",
                reason=(
                    "A hard group's few right answers are improbable ones, and an easy group's few"
                    " wrong ones are, too."
                ),
            ),
        ]


def _share_above_0(run: Run) -> float:
    series = run.series(COVARIANCE_ADVANTAGE_LOGPROB)
    return float(np.mean(series[~np.isnan(series)] > 0))


def entropy(logits: Series) -> float:
    """Of softmax(logits), in nats."""
    p = _softmax(logits)
    return float(-np.sum(p * np.log(p)))


def _softmax(logits: Series) -> Series:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def table_of_updates(seed: int) -> dict[str, Series]:
    """Single updates of random policies: by gradient, an array [policies, 2] of -step * covariance
    and the true change. With A centred the change of the logits is p A of a policy gradient, and A
    of a natural one. The covariance under p of log p with that change is Theorem 1's, and Theorem
    2's."""
    random = np.random.default_rng(seed)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in GRADIENTS}
    for _ in range(POLICIES):
        logits = random.normal(scale=random.uniform(0.5, 4), size=ACTIONS)
        advantages = random.normal(size=ACTIONS)
        p = _softmax(logits)
        centred, logs = advantages - p @ advantages, np.log(p)
        for name, change in (("policy gradient", p * centred), ("natural gradient", centred)):
            covariance = float(p @ (logs * change) - (p @ logs) * (p @ change))
            found[name].append(
                (-STEP * covariance, entropy(logits + STEP * change) - entropy(logits))
            )
    return {name: np.array(rows) for name, rows in found.items()}


def correlation(run: Run, metric: str) -> float:
    """Of the covariance, averaged as the optimiser averages gradients, with the entropy's observed
    decrease."""
    return pearson(averaged(run.series(metric)), -run.series(ENTROPY_OBSERVED_CHANGE))


class Theorems(_OfPlainRuns):
    name = "mechanism-theorems"
    number = "Theorems 1 and 2"
    title = "the two covariances"
    claim = (
        "A policy-gradient update changes the entropy by -eta Cov(log p, p A), a natural one by"
        " -eta Cov(log p, A), to first order; in training, the covariance follows the observed"
        " change."
    )

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 3)
        for panel, (name, rows), theorem in zip(
            axes, table_of_updates(0).items(), GRADIENTS.values(), strict=False
        ):
            points(panel, rows[:, 0] * 1e6, rows[:, 1] * 1e6, index=1, size=2.5, alpha=0.7)
            ends = np.array([rows[:, 0].min(), rows[:, 0].max()]) * 1e6
            panel.plot(ends, ends, color="#777777", linewidth=0.8)
            panel.set(
                title=f"{theorem}: {name}", xlabel="predicted, 1e-6 nats", ylabel="true, 1e-6 nats"
            )
        runs = self.plain(results)
        for index, metric in enumerate(
            (COVARIANCE_ADVANTAGE_DISCRIMINATOR, COVARIANCE_ADVANTAGE_LOGPROB)
        ):
            points(
                axes[2],
                [index] * len(runs),
                [correlation(run, metric) for run in runs],
                index=index + 1,
                size=6,
            )
        axes[2].set_xticks([0, 1], ["Thm 1", "Thm 2"])
        words = {"title": "training with AdamW", "ylabel": "correlation with the decrease"}
        axes[2].set(xlim=(-0.5, 1.5), ylim=(-1, 1), **words)
        return picture

    def columns(self, run: Run) -> dict[str, object]:
        updates = table_of_updates(run.seed)
        return {
            "largest_error_policy_gradient": _error(updates["policy gradient"]),
            "largest_error_natural_gradient": _error(updates["natural gradient"]),
            "correlation_theorem_1": correlation(run, COVARIANCE_ADVANTAGE_DISCRIMINATOR),
            "correlation_theorem_2": correlation(run, COVARIANCE_ADVANTAGE_LOGPROB),
        }

    def checks(self, results: Results) -> list[Check]:
        runs = self.plain(results)
        exact = [
            check_at_most(
                f"{theorem}: single updates with a step of {STEP:g} are as predicted",
                [_error(table_of_updates(seed)[name]) for seed in results.plan.seeds],
                0.01,
                unit="of the largest change",
            )
            for name, theorem in GRADIENTS.items()
        ]
        first = [correlation(run, COVARIANCE_ADVANTAGE_DISCRIMINATOR) for run in runs]
        second = [correlation(run, COVARIANCE_ADVANTAGE_LOGPROB) for run in runs]
        return [
            *exact,
            check_at_least(
                "in training Theorem 1's covariance goes with the decrease",
                first,
                0.3,
                unit="correlation",
            ),
            higher(
                "and closer than Theorem 2's, as AdamW's update is no natural gradient",
                first,
                second,
                unit="correlation",
                reason=(
                    "Both are estimated from the sampled tokens alone, and their noise hides the"
                    " difference."
                ),
            ),
        ]


def _error(rows: Series) -> float:
    """Largest difference of prediction and truth, as a share of the largest true change."""
    return float(np.abs(rows[:, 0] - rows[:, 1]).max() / np.abs(rows[:, 1]).max())
