"""Theorem 1 against Theorem 2: which covariance the entropy's change is, for a policy gradient and for a natural one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isentrope_trainer.reproduce.drawing import Picture, averaged, look, panels
from isentrope_trainer.reproduce.evidence import at_least, at_most, higher, pearson
from isentrope_trainer.reproduce.figure import MECHANISM, Check, Figure, Results
from isentrope_trainer.reproduce.runs import Run, Series
from isentrope_trainer.reproduce.settings import Plan, RunSettings
from isentrope_wire.metrics import (
    COVARIANCE_ADVANTAGE_DISCRIMINATOR,
    COVARIANCE_ADVANTAGE_LOGPROB,
    ENTROPY_OBSERVED_CHANGE,
)

ARM = "GRPO"
POLICIES, ACTIONS = 200, 64
STEP = 1e-4
GRADIENTS = {"policy gradient": "Theorem 1", "natural gradient": "Theorem 2"}


def entropy(logits: Series) -> float:
    """Entropy of softmax(logits), in nats."""
    p = _softmax(logits)
    return float(-np.sum(p * np.log(p)))


def _softmax(logits: Series) -> Series:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def covariances(p: Series, advantages: Series) -> dict[str, float]:
    """Under p: Cov(log p, p A) with A centred, which is Theorem 1's, and Cov(log p, A), which is Theorem 2's."""
    centred = advantages - p @ advantages
    logs = np.log(p)
    return {
        name: float(p @ (logs * change) - (p @ logs) * (p @ change))
        for name, change in (("policy gradient", p * centred), ("natural gradient", centred))
    }


def table_of_updates(seed: int) -> dict[str, Series]:
    """Single updates of random policies: by gradient, an array [policies, 2] of -step * covariance and the true change."""
    random = np.random.default_rng(seed)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in GRADIENTS}
    for _ in range(POLICIES):
        logits = random.normal(scale=random.uniform(0.5, 4), size=ACTIONS)
        advantages = random.normal(size=ACTIONS)
        p = _softmax(logits)
        centred = advantages - p @ advantages
        expected = covariances(p, advantages)
        for name, change in (("policy gradient", p * centred), ("natural gradient", centred)):
            found[name].append((-STEP * expected[name], entropy(logits + STEP * change) - entropy(logits)))
    return {name: np.array(rows) for name, rows in found.items()}


def correlation(run: Run, metric: str) -> float:
    """Correlation of the covariance, averaged as the optimiser averages gradients, with the entropy's observed decrease."""
    return pearson(averaged(run.series(metric)), -run.series(ENTROPY_OBSERVED_CHANGE))


class Theorems(Figure):
    name = "mechanism-theorems"
    paper = MECHANISM
    number = "Theorems 1 and 2"
    title = "the two covariances"
    claim = (
        "A policy-gradient update changes the entropy by -eta Cov(log p, p A), a natural one by -eta Cov(log p, A), to first order; "
        "in training, the covariance follows the observed change."
    )

    label = ""

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {ARM: plan.run()}

    def draw(self, results: Results) -> Picture:
        picture, axes = panels(1, 3)
        for panel, (name, rows), theorem in zip(axes, table_of_updates(0).items(), GRADIENTS.values(), strict=False):
            panel.plot(
                rows[:, 0] * 1e6, rows[:, 1] * 1e6, look(1).marker, color=look(1).color, markersize=2.5, alpha=0.7
            )
            ends = np.array([rows[:, 0].min(), rows[:, 0].max()]) * 1e6
            panel.plot(ends, ends, color="#777777", linewidth=0.8)
            panel.set_title(f"{theorem}: {name}")
            panel.set_xlabel("predicted, 1e-6 nats")
            panel.set_ylabel("true, 1e-6 nats")
        runs = self.finished(results)[ARM]
        for index, metric in enumerate((COVARIANCE_ADVANTAGE_DISCRIMINATOR, COVARIANCE_ADVANTAGE_LOGPROB)):
            values = [correlation(run, metric) for run in runs]
            axes[2].plot([index] * len(values), values, look(index + 1).marker, color=look(index + 1).color)
        axes[2].set_xticks([0, 1], ["Thm 1", "Thm 2"])
        axes[2].set_xlim(-0.5, 1.5)
        axes[2].set_ylim(-1, 1)
        axes[2].set_title("training with AdamW")
        axes[2].set_ylabel("correlation with the decrease")
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
        runs = self.finished(results)[ARM]
        exact = [
            at_most(
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
            at_least("in training Theorem 1's covariance goes with the decrease", first, 0.3, unit="correlation"),
            higher(
                "and closer than Theorem 2's, as AdamW's update is no natural gradient",
                first,
                second,
                unit="correlation",
                reason="Both are estimated from the sampled tokens alone, and their noise hides the difference.",
            ),
        ]


def _error(rows: Series) -> float:
    """Largest difference of prediction and truth, as a share of the largest true change."""
    return float(np.abs(rows[:, 0] - rows[:, 1]).max() / np.abs(rows[:, 1]).max())


FIGURES = (Theorems(),)
