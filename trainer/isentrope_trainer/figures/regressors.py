"""What predicts the observed change best, out of sample: regressors and memories compared on recorded runs.

    python -m isentrope_trainer.figures.regressors RUNS [--name vanilla]

Each candidate gets the same past, is fitted by exponentially weighted least squares through the origin, and predicts a
step before it sees its observed change. R² is 1 - (squared error) / (squared error of the past's mean change), from step
30 on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import click
import torch

from isentrope.statistics.calibration import TRUST_HALF_LIFE, WARM_UP
from isentrope_trainer.figures.prediction_series import FIRST_JUDGED, PredictionSeries, averaged, read_series

SECOND_MOMENT_DECAY = 0.999
"""Adam's beta_2."""

Rows = Sequence[Sequence[float]]
"""What a step's change is predicted from: one or several numbers a step."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to predict."""

    regressors: Callable[[PredictionSeries], Rows]
    half_life: float
    """Steps after which an observation counts half."""
    ridge: float = 0.0
    """How strongly the gains of several regressors are drawn to their common one, as a share of the mean square."""


def _unit(series: PredictionSeries) -> Rows:
    return [[unit] for unit in series.unit_predictions]


def _average(series: PredictionSeries) -> Rows:
    return [[average] for average in averaged(series.unit_predictions, series.momentum)]


def _groups(series: PredictionSeries) -> Rows:
    columns = [averaged(column, series.momentum) for column in zip(*series.group_predictions, strict=True)]
    return list(zip(*columns, strict=True))


def _preconditioned(series: PredictionSeries) -> Rows:
    second_moments = averaged([norm**2 for norm in series.gradient_norms], SECOND_MOMENT_DECAY)
    return [[x / math.sqrt(v)] for (x,), v in zip(_average(series), second_moments, strict=True)]


def _over_gradient_norm(series: PredictionSeries) -> Rows:
    ratios = [unit / norm for unit, norm in zip(series.unit_predictions, series.gradient_norms, strict=True)]
    return [[average] for average in averaged(ratios, series.momentum)]


def _times_entropy(series: PredictionSeries) -> Rows:
    return [[x * entropy] for (x,), entropy in zip(_average(series), series.entropies, strict=True)]


def _with_constant(series: PredictionSeries) -> Rows:
    """The constant is as large as the regressor was on average so far, for the sums' sake."""
    rows = _times_entropy(series)
    return [[z, size] for (z,), size in zip(rows, averaged([abs(z) for (z,) in rows], 0.98), strict=True)]


CANDIDATES: Mapping[str, Candidate] = {
    "u, memory 50": Candidate(_unit, 50),
    "EMA(u), memory 50 (before)": Candidate(_average, 50),
    "EMA(u), memory 25": Candidate(_average, 25),
    "EMA(u), memory 8": Candidate(_average, 8),
    "four groups' EMA, ridge 0.1, memory 50": Candidate(_groups, 50, 0.1),
    "four groups' EMA, ridge 0.01, memory 50": Candidate(_groups, 50, 0.01),
    "EMA(u / gradient norm), memory 25": Candidate(_over_gradient_norm, 25),
    "EMA(u) / Adam's root of v, memory 25": Candidate(_preconditioned, 25),
    "EMA(u) × entropy and a constant, memory 25": Candidate(_with_constant, 25),
    "EMA(u) × entropy, memory 50": Candidate(_times_entropy, 50),
    "EMA(u) × entropy, memory 25 (kept)": Candidate(_times_entropy, 25),
    "EMA(u) × entropy, memory 8": Candidate(_times_entropy, 8),
}


def predictions(candidate: Candidate, series: PredictionSeries) -> list[float | None]:
    """Of every step from its past alone; None while that is too short."""
    rows = torch.tensor(candidate.regressors(series), dtype=torch.float64)
    width, keep = rows.shape[1], 0.5 ** (1 / candidate.half_life)
    squares, products = torch.zeros(width, width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    predicted: list[float | None] = []
    for step, (row, observed) in enumerate(zip(rows, series.observed_changes, strict=True)):
        predicted.append(None if step < WARM_UP else float(row @ _gains(squares, products, candidate.ridge)))
        squares = keep * squares + torch.outer(row, row)
        products = keep * products + row * observed
    return predicted


def _gains(squares: torch.Tensor, products: torch.Tensor, ridge: float) -> torch.Tensor:
    common = products.sum() / squares.sum()
    penalty = ridge * squares.trace() / len(products)
    # A trace of the squares keeps the first steps solvable, in which two regressors are nearly one.
    penalised = squares + (penalty + 1e-9 * squares.trace()) * torch.eye(len(products), dtype=torch.float64)
    gains: torch.Tensor = torch.linalg.solve(penalised, products + penalty * common)
    return gains


@dataclass(frozen=True, slots=True)
class Quality:
    """Of the predictions of one run."""

    r2: float
    sign_agreement: float


def quality(predicted: Sequence[float | None], observed: Sequence[float]) -> Quality:
    """From step FIRST_JUDGED on, against the mean of the changes before, weighted as the calibration's own R² does."""
    error = error_of_mean = mean = weight = 0.0
    same_sign = []
    for step, (guess, change) in enumerate(zip(predicted, observed, strict=True)):
        if step >= FIRST_JUDGED and guess is not None:
            error += (change - guess) ** 2
            error_of_mean += (change - mean) ** 2
            same_sign.append((guess > 0) == (change > 0))
        weight = 0.5 ** (1 / TRUST_HALF_LIFE) * weight + 1
        mean += (change - mean) / weight
    return Quality(1 - error / error_of_mean, fmean(same_sign))


@click.command()
@click.argument("runs", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", default="vanilla", show_default=True, help="Of the runs, as their files' names begin.")
def main(runs: Path, name: str) -> None:
    """Print R² of every candidate on every run, and the means of R² and sign agreement."""
    recorded = read_series(runs, name)
    names = " | ".join(series.name for series in recorded)
    click.echo(f"| regressor | {names} | mean R² | sign |\n|---|{'---|' * (len(recorded) + 2)}")
    for label, candidate in CANDIDATES.items():
        found = [quality(predictions(candidate, series), series.observed_changes) for series in recorded]
        row = " | ".join(f"{one.r2:.2f}" for one in found)
        means = f"{fmean(one.r2 for one in found):.3f} | {fmean(one.sign_agreement for one in found):.1%}"
        click.echo(f"| {label} | {row} | {means} |")


if __name__ == "__main__":
    main()
