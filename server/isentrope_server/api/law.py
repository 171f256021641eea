"""The entropy-performance fit of a run: coefficients with their checks, ceiling, forecast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
from fastapi import APIRouter, Query
from numpy.typing import NDArray
from sqlalchemy import Connection

from isentrope_server.api.dependencies import BackendDep, RunDep, read_of
from isentrope_server.performance.fit import (
    CONFIDENCE,
    FEWEST_STEPS,
    FitRefused,
    PerformanceFit,
    block_means,
    fit_performance,
    forecast,
)
from isentrope_server.performance.slow_noise import Floats
from isentrope_server.store.reports import series
from isentrope_server.store.reports.series import Series, StepRange
from isentrope_server.store.runs import Run
from isentrope_wire.control_answers import EntropyPerformance, Fit, FitCurve, FitPoints, Refusal
from isentrope_wire.metrics import ENTROPY_MEAN, EVAL_AVG_AT_K, REWARD_MEAN
from isentrope_wire.numbers import part_of

_T = TypeVar("_T")

router = APIRouter(tags=["metrics"])

_EVALUATIONS = (EVAL_AVG_AT_K, "eval/reward", "eval_reward")
"""Metrics of an evaluation's reward, best first; the last two are TRL's, as W&B and its own log
name them."""
_LARGEST_ENTROPY = 50.0
"""No vocabulary has e^50 tokens: a larger value is not an entropy, and its exponential would
dominate the fit."""
_LARGEST_REWARD = 1e100
"""The square of a larger one may overflow."""
_CURVE_POINTS = 81


@dataclass(frozen=True, slots=True)
class _Measured:
    """Steps with both entropy and reward, by rising step."""

    reward: str
    """The metric's name."""
    reason: str
    """Why this metric."""
    steps: NDArray[np.int64]
    entropies: Floats
    rewards: Floats


@router.get("/runs/{run_id}/law")
async def get_law(
    run: RunDep,
    backend: BackendDep,
    points: Annotated[
        int,
        Query(ge=1, le=2000, description="Show the run as so many means of neighbouring steps."),
    ] = 400,
    reward: Annotated[
        str | None,
        Query(
            description=(
                "Metric to fit. Without it an evaluation's reward where there is one, else"
                " reward/mean."
            )
        ),
    ] = None,
) -> EntropyPerformance:
    """Fit of R = -a exp(H) + b to the run's steps (arXiv:2505.22617, eq. 6), or the reason why
    there is none.

    `fit.checks` states in one sentence each whether the reward rises as entropy falls, whether the
    run bends away from the curve, whether both halves agree, and whether H = 0 is near enough for a
    ceiling. `fit.conclusive`: the first three hold. `fit.ceiling` is null where one of the four
    fails."""
    return await read_of(
        backend, run, lambda connection: _answer(run, _measured(connection, run, reward), points)
    )


def _measured(connection: Connection, run: Run, wanted: str | None) -> _Measured:
    if wanted is None:
        names = [*_EVALUATIONS, REWARD_MEAN]
    else:
        names = [wanted]
    found = series.read(connection, run.key, [ENTROPY_MEAN, *names], StepRange())
    entropy = found[ENTROPY_MEAN]
    usable = (entropy.values >= 0) & (entropy.values <= _LARGEST_ENTROPY)
    entropy = Series(steps=entropy.steps[usable], values=entropy.values[usable])
    if wanted is not None:
        return _joined(wanted, "It was asked for.", entropy, found[wanted])
    reason = "The run reports no reward of an evaluation."
    for name in _EVALUATIONS:
        measured = _joined(
            name,
            "The reward of an evaluation, which the training does not fit.",
            entropy,
            found[name],
        )
        if len(measured.steps) >= FEWEST_STEPS:
            return measured
        if len(measured.steps):
            reason = f"{name} has {len(measured.steps)} values so far; a fit needs {FEWEST_STEPS}."
    return _joined(REWARD_MEAN, reason, entropy, found[REWARD_MEAN])


def _joined(name: str, reason: str, entropy: Series, reward: Series) -> _Measured:
    """Each reward beside the entropy of the steps about it: as many as lie between two rewards."""
    usable = np.abs(reward.values) <= _LARGEST_REWARD
    steps, rewards = reward.steps[usable], reward.values[usable]
    half = 0.5
    if len(steps) > 1:
        half = float(np.median(np.diff(steps))) / 2
    first = np.searchsorted(entropy.steps, steps - half, side="right")
    end = np.searchsorted(entropy.steps, steps + half, side="right")
    there = end > first
    bounds = np.stack([first[there], end[there]], axis=1)
    # One value more, for an end may be the length. Differences of running sums would lose small
    # values behind large ones.
    if there.any():
        sums = np.add.reduceat(np.append(np.exp(entropy.values), 0.0), bounds.ravel())[::2]
    else:
        sums = np.zeros(0)
    return _Measured(
        name, reason, steps[there], np.log(sums / np.diff(bounds)[:, 0]), rewards[there]
    )


def _answer(run: Run, measured: _Measured, points: int) -> EntropyPerformance:
    fit, reason = _or_refused(lambda: fit_performance(measured.entropies, measured.rewards))
    shown_fit = curve = None
    if fit is not None:
        autocorrelation = fit.regression.autocorrelation
        shown_fit = part_of(Fit, fit, checks=list(fit.checks), autocorrelation=autocorrelation)
        curve = _curve(fit, float(measured.entropies.max()))
    # Planned length of a running run; actual length of one that ended.
    horizon = len(measured.steps)
    if not run.ended:
        horizon = max(run.planned_steps or 0, horizon)
    predicted, forecast_reason = _or_refused(
        lambda: forecast(
            measured.steps,
            measured.entropies,
            measured.rewards,
            horizon=horizon,
            run_over=run.ended,
        )
    )
    count = len(measured.steps)
    shown = np.linspace(0, count, min(points, count) + 1).astype(int)[1:] - 1
    return EntropyPerformance(
        steps=len(measured.steps),
        reward=measured.reward,
        reward_reason=measured.reason,
        confidence=CONFIDENCE,
        fit=shown_fit,
        reason=reason,
        curve=curve,
        forecast=predicted,
        forecast_reason=forecast_reason,
        points=FitPoints(
            step=measured.steps[shown].tolist(),
            entropy=block_means(measured.entropies, points).tolist(),
            reward=block_means(measured.rewards, points).tolist(),
        ),
    )


def _or_refused(compute: Callable[[], _T]) -> tuple[_T, None] | tuple[None, Refusal]:
    try:
        return compute(), None
    except FitRefused as refused:
        return None, Refusal(code=refused.code, message=str(refused))


def _curve(fit: PerformanceFit, largest_entropy: float) -> FitCurve:
    entropies = np.linspace(fit.lowest_entropy, largest_entropy, _CURVE_POINTS)
    rewards = fit.rewards_at(entropies)
    return FitCurve(
        entropy=entropies.tolist(),
        reward=[reward.value for reward in rewards],
        low=[reward.low for reward in rewards],
        high=[reward.high for reward in rewards],
    )
