"""Entropy collapses in a vanilla run, the prediction sees it coming, and Clip_V of the same seed holds it up.

    python -m isentrope_trainer.figures.collapse_and_cure --steps 200 --seed 0 --out DIR

Prints a table of both runs beside the figures we hold ourselves to, and writes `collapse_and_cure.json` with the
figures and every step's scalars. Ends with status 1 when a figure is missed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import correlation, fmean

import click

import isentrope
from isentrope.transport import InMemoryTransport
from isentrope_trainer.reference_run import train_reference_policy
from isentrope_trainer.settings import TrainingConfig
from isentrope_wire.metrics import (
    CLIP_FRACTION,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_UNIT_PREDICTED_CHANGE,
    PROBE_RESCORE_SECONDS,
    PROBE_SECONDS,
    REWARD_MEAN,
    SCORE_DISCRIMINATOR_MEAN,
    SCORE_VOCAB_CENTERED_MEAN,
    TIME_STEP_SECONDS,
)
from isentrope_wire.reports import StepReport

Scalars = Mapping[str, float]

ENDS = 10
"""Steps averaged at the end of a run. Its start is the first step alone: the policy before any update."""
MU = 1.0
"""µ⁻ and µ⁺ of the cure, in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """What one run comes to. Entropies and scores in nats."""

    steps: int
    reward_start: float
    reward_end: float
    entropy_start: float
    entropy_end: float
    raw_correlation: float
    """Of the unit prediction with the observed change."""
    raw_sign_agreement: float
    momentum_aware_correlation: float
    """Of the unit prediction's exponential average, with the optimiser's beta_1, with the observed change."""
    momentum_aware_sign_agreement: float
    centring_ratio: float
    """Mean over steps of |batch mean of S*|, over the same of S_c: how much nearer to 0 centring brings the score."""
    clip_fraction: float
    seconds_per_step: float
    """Re-scoring apart."""
    rescoring_seconds_per_step: float
    probe_share: float
    """Share of the probe's own time in a step, re-scoring apart."""

    @property
    def entropy_fall(self) -> float:
        """Share of the starting entropy that was lost."""
        return 1 - self.entropy_end / self.entropy_start


@dataclass(frozen=True, slots=True)
class Criterion:
    """A figure we hold ourselves to."""

    name: str
    value: float
    bound: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def run_and_record(config: TrainingConfig, control: isentrope.Control) -> list[Scalars]:
    """Train the reference policy; the scalars of each step's report."""
    transport = InMemoryTransport()
    train_reference_policy(config, control, transport=transport)
    return [message.scalars for message in transport.messages if isinstance(message, StepReport)]


def run_figures(reports: Sequence[Scalars], momentum: float) -> RunFigures:
    """Figures of one run.

    Args:
        momentum: beta_1 of the run's optimiser.
    """

    def column(name: str) -> list[float]:
        return [report.get(name, 0.0) if name.startswith("clip/") else report[name] for report in reports]

    rewards, entropies = column(REWARD_MEAN), column(ENTROPY_MEAN)
    unit, observed = column(ENTROPY_UNIT_PREDICTED_CHANGE), column(ENTROPY_OBSERVED_CHANGE)
    averaged = exponential_average(unit, momentum)
    seconds = fmean(column(TIME_STEP_SECONDS))
    return RunFigures(
        steps=len(reports),
        reward_start=rewards[0],
        reward_end=fmean(rewards[-ENDS:]),
        entropy_start=entropies[0],
        entropy_end=fmean(entropies[-ENDS:]),
        raw_correlation=correlation(unit, observed),
        raw_sign_agreement=sign_agreement(unit, observed),
        momentum_aware_correlation=correlation(averaged, observed),
        momentum_aware_sign_agreement=sign_agreement(averaged, observed),
        centring_ratio=_mean_size(column(SCORE_DISCRIMINATOR_MEAN)) / _mean_size(column(SCORE_VOCAB_CENTERED_MEAN)),
        clip_fraction=fmean(column(CLIP_FRACTION)),
        seconds_per_step=seconds,
        rescoring_seconds_per_step=fmean(column(PROBE_RESCORE_SECONDS)),
        probe_share=fmean(column(PROBE_SECONDS)) / seconds,
    )


def exponential_average(values: Sequence[float], momentum: float) -> list[float]:
    """The average an optimiser's momentum takes over its past, corrected for its start at 0, after each value."""
    averages, accumulated = [], 0.0
    for count, value in enumerate(values, start=1):
        accumulated = momentum * accumulated + (1 - momentum) * value
        averages.append(accumulated / (1 - momentum**count))
    return averages


def sign_agreement(left: Sequence[float], right: Sequence[float]) -> float:
    """Share of places where both have the same sign."""
    return fmean((a > 0) == (b > 0) for a, b in zip(left, right, strict=True))


def criteria(vanilla: RunFigures, cured: RunFigures) -> list[Criterion]:
    """What a run of 150 steps or more must show."""
    return [
        Criterion("reward, end over start", vanilla.reward_end / vanilla.reward_start, 2.0),
        Criterion("entropy lost", vanilla.entropy_fall, 0.6),
        Criterion("momentum-aware correlation", vanilla.momentum_aware_correlation, 0.75),
        Criterion("momentum-aware sign agreement", vanilla.momentum_aware_sign_agreement, 0.8),
        Criterion("|mean S*| over |mean S_c|", vanilla.centring_ratio, 100.0),
        Criterion("entropy at the end, Clip_V over vanilla", cured.entropy_end / vanilla.entropy_end, 1.6),
        Criterion("seconds a step", vanilla.seconds_per_step, 1.5, at_most=True),
        Criterion("the probe's share of a step", vanilla.probe_share, 0.05, at_most=True),
    ]


def table(vanilla: RunFigures, cured: RunFigures) -> str:
    """Both runs side by side, then each criterion with its bound."""
    names = list(asdict(vanilla))
    lines = [f"{'':42}{'vanilla':>12}{f'Clip_V µ={MU:g}':>14}"]
    lines += [f"{n.replace('_', ' '):42}{getattr(vanilla, n):>12.4g}{getattr(cured, n):>14.4g}" for n in names]
    lines += [f"{'entropy lost':42}{vanilla.entropy_fall:>12.1%}{cured.entropy_fall:>14.1%}", ""]
    for criterion in criteria(vanilla, cured):
        bound = f"{'<=' if criterion.at_most else '>='} {criterion.bound:g}"
        lines.append(f"{criterion.name:42}{criterion.value:>12.4g}{bound:>14}  {'met' if criterion.met else 'MISSED'}")
    return "\n".join(lines)


def _mean_size(values: Sequence[float]) -> float:
    return fmean(abs(value) for value in values)


@click.command()
@click.option("--steps", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for collapse_and_cure.json.")
def main(steps: int, seed: int, out: Path | None) -> None:
    """Run vanilla and Clip_V of the same seed, and print what they come to."""
    config = TrainingConfig(steps=steps, seed=seed)
    cure = isentrope.Control.from_document({"method": "clip_v", "mu_low": MU, "mu_high": MU, "scope": "all"})
    reports = {"vanilla": run_and_record(config, isentrope.Control()), "clip_v": run_and_record(config, cure)}
    vanilla, cured = (run_figures(reports[name], config.betas[0]) for name in ("vanilla", "clip_v"))
    click.echo(table(vanilla, cured))
    judged = criteria(vanilla, cured)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        document = {
            "config": asdict(config),
            "figures": {"vanilla": asdict(vanilla), "clip_v": asdict(cured)},
            "criteria": [asdict(criterion) | {"met": criterion.met} for criterion in judged],
            "reports": {name: [dict(scalars) for scalars in run] for name, run in reports.items()},
        }
        (out / "collapse_and_cure.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    sys.exit(0 if all(criterion.met for criterion in judged) else 1)


if __name__ == "__main__":
    main()
