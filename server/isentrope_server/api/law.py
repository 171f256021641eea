"""The law between a run's entropy and its reward: fit, ceiling, forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from fastapi import APIRouter, Query
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, read_of
from isentrope_server.api.performance_law import (
    CONFIDENCE,
    Estimate,
    Floats,
    Forecast,
    LawFit,
    LawRefused,
    block_means,
    fit_law,
    forecast,
)
from isentrope_server.store.reports import series
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.runs import Run
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

router = APIRouter(tags=["metrics"])

_ENTROPY, _REWARD = ENTROPY_MEAN, REWARD_MEAN
_LARGEST_ENTROPY = 50.0
"""No vocabulary has e^50 tokens: what is larger is no entropy, and its exponential would drown all others."""
_LARGEST_REWARD = 1e100
"""The square of a larger one may be no number."""
_CURVE_POINTS = 81


class EstimateOut(BaseModel):
    """A number and its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, estimate: Estimate) -> Self:
        return cls(value=estimate.value, low=estimate.low, high=estimate.high)


class FitOut(BaseModel):
    """R = -a exp(H) + b, by least squares. Intervals allow for autocorrelated residuals."""

    a: EstimateOut
    b: EstimateOut
    ceiling: EstimateOut = Field(description="b - a, the reward when all entropy is spent.")
    conclusive: bool = Field(description="False: the interval of a reaches 0, so there is no ceiling to speak of.")
    r2: float
    autocorrelation: float
    effective_blocks: float

    @classmethod
    def of(cls, fit: LawFit) -> Self:
        return cls(
            a=EstimateOut.of(fit.a),
            b=EstimateOut.of(fit.b),
            ceiling=EstimateOut.of(fit.ceiling),
            conclusive=fit.conclusive,
            r2=fit.r2,
            autocorrelation=fit.autocorrelation,
            effective_blocks=fit.effective_blocks,
        )


class CurveOut(BaseModel):
    """The fitted curve from H = 0 on, with the interval of the mean reward."""

    entropy: list[float]
    reward: list[float]
    low: list[float]
    high: list[float]

    @classmethod
    def of(cls, fit: LawFit, largest_entropy: float) -> Self:
        entropies = np.linspace(0, largest_entropy, _CURVE_POINTS).tolist()
        rewards = [fit.reward_at(entropy) for entropy in entropies]
        return cls(
            entropy=entropies,
            reward=[reward.value for reward in rewards],
            low=[reward.low for reward in rewards],
            high=[reward.high for reward in rewards],
        )


class ForecastOut(BaseModel):
    """The last rewards as the first 15 % of the steps foretell them, given the entropy these had."""

    through_step: int = Field(description="The fit knows no later step.")
    at_entropy: float
    reward: EstimateOut
    actual: float = Field(description="Mean reward of the last steps.")
    error: float = Field(description="Forecast minus actual.")
    final_steps: int
    run_over: bool = Field(description="False: of the last steps so far.")

    @classmethod
    def of(cls, made: Forecast, *, run_over: bool) -> Self:
        return cls(
            through_step=made.through_step,
            at_entropy=made.at_entropy,
            reward=EstimateOut.of(made.reward),
            actual=made.actual,
            error=made.error,
            final_steps=made.final_steps,
            run_over=run_over,
        )


class Refusal(BaseModel):
    code: str
    message: str

    @classmethod
    def of(cls, refused: LawRefused) -> Self:
        return cls(code=refused.code, message=str(refused))


class PointColumns(BaseModel):
    """The run as the fit sees it: means over neighbouring steps."""

    step: list[int] = Field(description="The last one of each mean.")
    entropy: list[float]
    reward: list[float]


class LawOut(BaseModel):
    steps: int = Field(description="How many have both entropy and reward.")
    confidence: float
    fit: FitOut | None
    reason: Refusal | None = Field(description="Why there is no fit.")
    curve: CurveOut | None
    forecast: ForecastOut | None
    forecast_reason: Refusal | None
    points: PointColumns


@dataclass(frozen=True, slots=True)
class _Measured:
    """Steps with both entropy and reward, by rising step."""

    steps: NDArray[np.int64]
    entropies: Floats
    rewards: Floats


@router.get("/runs/{run_id}/law")
async def get_law(run: RunDep, backend: BackendDep, points: Annotated[int, Query(ge=1, le=2000)] = 400) -> LawOut:
    """R = -a exp(H) + b fitted to the run's steps (arXiv:2505.22617, eq. 6), or the reason why it can't be."""
    return await read_of(backend, run, lambda connection: _answer(run, _measured(connection, run), points))


def _measured(connection: Connection, run: Run) -> _Measured:
    found = series.read(connection, run.key, [_ENTROPY, _REWARD], StepRange())
    entropy, reward = found[_ENTROPY], found[_REWARD]
    steps, at_entropy, at_reward = np.intersect1d(entropy.steps, reward.steps, assume_unique=True, return_indices=True)
    entropies, rewards = entropy.values[at_entropy], reward.values[at_reward]
    usable = (entropies >= 0) & (entropies <= _LARGEST_ENTROPY) & (np.abs(rewards) <= _LARGEST_REWARD)
    return _Measured(steps[usable], entropies[usable], rewards[usable])


def _answer(run: Run, measured: _Measured, points: int) -> LawOut:
    fit, reason = _fit(measured)
    made, forecast_reason = _forecast(run, measured)
    shown = np.linspace(0, len(measured.steps), min(points, len(measured.steps)) + 1).astype(int)[1:] - 1
    return LawOut(
        steps=len(measured.steps),
        confidence=CONFIDENCE,
        fit=None if fit is None else FitOut.of(fit),
        reason=reason,
        curve=None if fit is None else CurveOut.of(fit, float(measured.entropies.max())),
        forecast=None if made is None else ForecastOut.of(made, run_over=run.ended),
        forecast_reason=forecast_reason,
        points=PointColumns(
            step=measured.steps[shown].tolist(),
            entropy=block_means(measured.entropies, points).tolist(),
            reward=block_means(measured.rewards, points).tolist(),
        ),
    )


def _fit(measured: _Measured) -> tuple[LawFit, None] | tuple[None, Refusal]:
    try:
        return fit_law(measured.entropies, measured.rewards), None
    except LawRefused as refused:
        return None, Refusal.of(refused)


def _forecast(run: Run, measured: _Measured) -> tuple[Forecast, None] | tuple[None, Refusal]:
    """While the run goes on, its plan says how long it is; a run that ended is as long as it is."""
    planned = 0 if run.ended or run.planned_steps is None else run.planned_steps
    try:
        return forecast(
            measured.steps, measured.entropies, measured.rewards, horizon=max(planned, len(measured.steps))
        ), None
    except LawRefused as refused:
        return None, Refusal.of(refused)
