"""Entropy collapses in a vanilla run of the reference trainer, the prediction sees it coming, and
Clip_V of the same seed holds it up. "Start" is the policy before any update, "end" the mean of the
last ten steps; entropies and scores in nats."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import correlation, fmean

import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_trainer.reference_run import train_reference_policy
from isentrope_trainer.settings import TrainingConfig
from isentrope_wire import metrics
from isentrope_wire.reports import StepReport

ENDS = 10
CURE = isentrope.Control(method="clip_v", mu_low=1.0, mu_high=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run comes to."""

    reward_start: float
    reward_end: float
    entropy_start: float
    entropy_end: float
    correlation: float
    """Of the unit prediction with the observed change."""
    sign_agreement: float
    momentum_aware_correlation: float
    """Of the unit prediction averaged as the optimiser's momentum does."""
    momentum_aware_sign_agreement: float
    centring_ratio: float
    """Mean over steps of |batch mean of S*|, over the same of S_c: how much nearer to 0 centring
    brings the score."""
    clip_fraction: float
    probe_share: float
    """Of the probe's own time in a step, re-scoring apart."""


def figures(config: TrainingConfig, control: isentrope.Control) -> Figures:
    """Train the reference policy, and read its reports."""
    transport = InMemoryTransport()
    train_reference_policy(config, control, transport=transport, quiet=True)
    reports = [message.scalars for message in transport.messages if isinstance(message, StepReport)]

    def column(name: str) -> list[float]:
        return [
            report.get(name, 0.0) if name == metrics.CLIP_FRACTION else report[name]
            for report in reports
        ]

    def size(name: str) -> float:
        return fmean(map(abs, column(name)))

    reward, entropy, unit = (
        column(metrics.REWARD_MEAN),
        column(metrics.ENTROPY_MEAN),
        column(metrics.ENTROPY_UNIT_PREDICTED_CHANGE),
    )
    observed, averaged = (
        column(metrics.ENTROPY_OBSERVED_CHANGE),
        exponential_average(unit, config.betas[0]),
    )
    return Figures(
        reward_start=reward[0],
        reward_end=fmean(reward[-ENDS:]),
        entropy_start=entropy[0],
        entropy_end=fmean(entropy[-ENDS:]),
        correlation=correlation(unit, observed),
        sign_agreement=sign_agreement(unit, observed),
        momentum_aware_correlation=correlation(averaged, observed),
        momentum_aware_sign_agreement=sign_agreement(averaged, observed),
        centring_ratio=size(metrics.SCORE_DISCRIMINATOR_MEAN)
        / size(metrics.SCORE_VOCAB_CENTERED_MEAN),
        clip_fraction=fmean(column(metrics.CLIP_FRACTION)),
        probe_share=fmean(column(metrics.PROBE_SECONDS)) / fmean(column(metrics.TIME_STEP_SECONDS)),
    )


def exponential_average(values: list[float], momentum: float) -> list[float]:
    """The average an optimiser's momentum takes over its past, corrected for its start at 0, after
    each value."""
    averages, accumulated = [], 0.0
    for count, value in enumerate(values, start=1):
        accumulated = momentum * accumulated + (1 - momentum) * value
        averages.append(accumulated / (1 - momentum**count))
    return averages


def sign_agreement(left: list[float], right: list[float]) -> float:
    """Share of places where both have the same sign."""
    return fmean((a > 0) == (b > 0) for a, b in zip(left, right, strict=True))


def measure() -> list[str]:
    """The lines of a Markdown table: 200 steps, seed 0; some five minutes."""
    config = TrainingConfig(steps=200)
    vanilla, cured = (asdict(figures(config, control)) for control in (isentrope.Control(), CURE))
    lines = ["| seed 0 | vanilla | Clip_V µ = 1 |", "|---|---|---|"]
    return lines + [
        f"| {name.replace('_', ' ')} | {vanilla[name]:.3g} | {cured[name]:.3g} |"
        for name in vanilla
    ]
