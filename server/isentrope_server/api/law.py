"""The law between a run's entropy and its reward: fit, ceiling, forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from numpy.typing import NDArray
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, read_of
from isentrope_server.api.performance_law import (
    CONFIDENCE,
    Floats,
    LawFit,
    LawRefused,
    block_means,
    fit_law,
    forecast,
)
from isentrope_server.api.performance_law import Forecast as Predicted
from isentrope_server.store.reports import series
from isentrope_server.store.reports.series import StepRange
from isentrope_server.store.runs import Run
from isentrope_wire.control_answers import EntropyPerformance, Fit, FitCurve, FitPoints, Forecast, Refusal
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

router = APIRouter(tags=["metrics"])

_ENTROPY, _REWARD = ENTROPY_MEAN, REWARD_MEAN
_LARGEST_ENTROPY = 50.0
"""No vocabulary has e^50 tokens: a larger value is not an entropy, and its exponential would dominate the fit."""
_LARGEST_REWARD = 1e100
"""The square of a larger one may overflow."""
_CURVE_POINTS = 81


@dataclass(frozen=True, slots=True)
class _Measured:
    """Steps with both entropy and reward, by rising step."""

    steps: NDArray[np.int64]
    entropies: Floats
    rewards: Floats


@router.get("/runs/{run_id}/law")
async def get_law(
    run: RunDep, backend: BackendDep, points: Annotated[int, Query(ge=1, le=2000)] = 400
) -> EntropyPerformance:
    """R = -a exp(H) + b fitted to the run's steps (arXiv:2505.22617, eq. 6), or the reason why it can't be."""
    return await read_of(backend, run, lambda connection: _answer(run, _measured(connection, run), points))


def _measured(connection: Connection, run: Run) -> _Measured:
    found = series.read(connection, run.key, [_ENTROPY, _REWARD], StepRange())
    entropy, reward = found[_ENTROPY], found[_REWARD]
    steps, at_entropy, at_reward = np.intersect1d(entropy.steps, reward.steps, assume_unique=True, return_indices=True)
    entropies, rewards = entropy.values[at_entropy], reward.values[at_reward]
    usable = (entropies >= 0) & (entropies <= _LARGEST_ENTROPY) & (np.abs(rewards) <= _LARGEST_REWARD)
    return _Measured(steps[usable], entropies[usable], rewards[usable])


def _answer(run: Run, measured: _Measured, points: int) -> EntropyPerformance:
    fit, reason = _fit(measured)
    made, forecast_reason = _forecast(run, measured)
    shown = np.linspace(0, len(measured.steps), min(points, len(measured.steps)) + 1).astype(int)[1:] - 1
    return EntropyPerformance(
        steps=len(measured.steps),
        confidence=CONFIDENCE,
        fit=None if fit is None else _described(fit),
        reason=reason,
        curve=None if fit is None else _curve(fit, float(measured.entropies.max())),
        forecast=None if made is None else _made(made, run_over=run.ended),
        forecast_reason=forecast_reason,
        points=FitPoints(
            step=measured.steps[shown].tolist(),
            entropy=block_means(measured.entropies, points).tolist(),
            reward=block_means(measured.rewards, points).tolist(),
        ),
    )


def _fit(measured: _Measured) -> tuple[LawFit, None] | tuple[None, Refusal]:
    try:
        return fit_law(measured.entropies, measured.rewards), None
    except LawRefused as refused:
        return None, Refusal(code=refused.code, message=str(refused))


def _forecast(run: Run, measured: _Measured) -> tuple[Predicted, None] | tuple[None, Refusal]:
    """Planned length of a running run; actual length of one that ended."""
    planned = 0 if run.ended or run.planned_steps is None else run.planned_steps
    try:
        return forecast(
            measured.steps, measured.entropies, measured.rewards, horizon=max(planned, len(measured.steps))
        ), None
    except LawRefused as refused:
        return None, Refusal(code=refused.code, message=str(refused))


def _described(fit: LawFit) -> Fit:
    return Fit(
        a=fit.a,
        b=fit.b,
        ceiling=fit.ceiling,
        conclusive=fit.conclusive,
        r2=fit.r2,
        autocorrelation=fit.autocorrelation,
        effective_blocks=fit.effective_blocks,
    )


def _curve(fit: LawFit, largest_entropy: float) -> FitCurve:
    entropies = np.linspace(0, largest_entropy, _CURVE_POINTS).tolist()
    rewards = [fit.reward_at(entropy) for entropy in entropies]
    return FitCurve(
        entropy=entropies,
        reward=[reward.value for reward in rewards],
        low=[reward.low for reward in rewards],
        high=[reward.high for reward in rewards],
    )


def _made(made: Predicted, *, run_over: bool) -> Forecast:
    return Forecast(
        through_step=made.through_step,
        at_entropy=made.at_entropy,
        reward=made.reward,
        actual=made.actual,
        error=made.error,
        final_steps=made.final_steps,
        run_over=run_over,
    )
