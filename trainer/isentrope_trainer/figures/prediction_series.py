"""The prediction of a recorded run, step by step: its inputs, and the observed change."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from isentrope_trainer.figures.recorded_runs import RecordedRun, read_run
from isentrope_wire.metrics import (
    CHANGE_NEGATIVE_HIGH,
    CHANGE_NEGATIVE_LOW,
    CHANGE_POSITIVE_HIGH,
    CHANGE_POSITIVE_LOW,
    ENTROPY_MEAN,
    ENTROPY_OBSERVED_CHANGE,
    ENTROPY_UNIT_PREDICTED_CHANGE,
    TRAIN_GRAD_NORM,
)

FIRST_JUDGED = 30
"""Steps before it have little past to be predicted from, and are not part of any figure."""
GROUPS: tuple[str, ...] = (CHANGE_POSITIVE_HIGH, CHANGE_POSITIVE_LOW, CHANGE_NEGATIVE_HIGH, CHANGE_NEGATIVE_LOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionSeries:
    """Of one run; sequences have one entry a step. Entropies and changes in nats."""

    name: str
    unit_predictions: Sequence[float]
    observed_changes: Sequence[float]
    entropies: Sequence[float]
    group_predictions: Sequence[Sequence[float]]
    """The unit prediction by GROUPS."""
    gradient_norms: Sequence[float]
    momentum: float
    learning_rate: float
    intervals: Sequence[tuple[float, float] | None]
    """That the run itself reported."""

    @classmethod
    def of_run(cls, name: str, run: RecordedRun) -> PredictionSeries:
        """
        Raises:
            KeyError: the run did not re-score its tokens, or is not of the reference trainer.
        """
        config = run.recipe["config"]
        return cls(
            name=name,
            unit_predictions=run.column(ENTROPY_UNIT_PREDICTED_CHANGE),
            observed_changes=run.column(ENTROPY_OBSERVED_CHANGE),
            entropies=run.column(ENTROPY_MEAN),
            group_predictions=list(zip(*(run.column(group) for group in GROUPS), strict=True)),
            gradient_norms=run.column(TRAIN_GRAD_NORM),
            momentum=float(config["betas"][0]),
            learning_rate=float(config["learning_rate"]),
            intervals=[_interval(step.scalars.get) for step in run.steps],
        )


def read_series(folder: Path, wanted: str) -> list[PredictionSeries]:
    """Of the finished runs in a folder of `recorded_runs`, those whose file's name begins with `wanted`."""
    found = [
        PredictionSeries.of_run("-".join(path.stem.split("-")[:-1]), read_run(path))
        for path in sorted(folder.glob(f"{wanted}*.json"))
    ]
    if not found:
        click.echo(f"No run in {folder} is called {wanted}.... Record some: hold_target records.", err=True)
        sys.exit(1)
    return found


def averaged(values: Sequence[float], decay: float) -> list[float]:
    """Exponential averages, corrected for their beginning as Adam does."""
    average, weight, averages = 0.0, 0.0, []
    for value in values:
        average, weight = decay * average + (1 - decay) * value, decay * weight + (1 - decay)
        averages.append(average / weight)
    return averages


def _interval(scalar: Callable[[str], float | None]) -> tuple[float, float] | None:
    low, high = (scalar(f"entropy/predicted_change_{side}") for side in ("low", "high"))
    return None if low is None or high is None or not math.isfinite(low + high) else (low, high)
