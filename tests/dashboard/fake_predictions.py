"""What the fake API predicts: invented tails, and a fit through the run's own points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tests.probe.hold.collapsing_plant import step_sums

MU = [*(index / 20 for index in range(101)), 6.0, 8.0, 10.0, 20.0, 50.0, 100.0]
_A = 0.05


def tail(mu: float | None, share: float) -> float:
    """Share of the tokens beyond mu on a side that holds `share` of them."""
    return 0.0 if mu is None else share * (0.9 * math.exp(-1.4 * mu) + 0.1 * math.exp(-0.35 * mu))


def what_if_answer(
    row: dict[str, Any],
    method: str,
    scope: str,
    mu_low: float | None,
    mu_high: float | None,
    max_fraction: float | None = None,
) -> dict[str, Any]:
    """The newest step under these thresholds."""
    unclipped, gain = -0.009, row["scalars"].get("entropy/gain")
    part = 1.0 if scope == "all" else 0.5

    def clipped(low: float | None, high: float | None) -> float:
        beyond = tail(low, 0.45 * part) + tail(high, 0.5 * part)
        return beyond if max_fraction is None else min(beyond, max_fraction)

    def unit(low: float | None, high: float | None) -> float:
        return unclipped + 0.011 * tail(low, 1.0) + 0.012 * tail(high, 1.0)

    def calibrated(value: float) -> float | None:
        return None if gain is None else gain * value

    def curve(points: Sequence[tuple[float | None, float | None]]) -> dict[str, Any]:
        units = [unit(*point) for point in points]
        return {
            "mu": MU,
            "clip_fraction": [clipped(*point) for point in points],
            "unit_predicted_change": units,
            "predicted_change": None if gain is None else [gain * value for value in units],
        }

    between = any(mu is not None and mu not in MU for mu in (mu_low, mu_high))
    return {
        "step": row["step"],
        "method": method,
        "scope": scope,
        "mu_low": mu_low,
        "mu_high": mu_high,
        "max_fraction": max_fraction,
        "denominator": "keep",
        "capped": max_fraction is not None and clipped(mu_low, mu_high) == max_fraction,
        "not_included": ["epsilon_low", "epsilon_high", "zero_advantage"],
        "tokens": 20000,
        "clip_fraction": clipped(mu_low, mu_high),
        "unit_predicted_change": unit(mu_low, mu_high),
        "predicted_change": calibrated(unit(mu_low, mu_high)),
        "gain": gain,
        "clip_fraction_bound": 0.004 if between else 0.0,
        "unit_predicted_change_bound": 0.0002 if between else 0.0,
        "unclipped_unit_predicted_change": unclipped,
        "curve": {"low": curve([(mu, mu_high) for mu in MU]), "high": curve([(mu_low, mu) for mu in MU])},
        "sums": asdict(step_sums(lowering=0.02, raising=0.01)),
    }


def law_answer(rows: Sequence[dict[str, Any]], *, run_over: bool) -> dict[str, Any]:
    """A fit through the mean of the points, from 20 steps on; a forecast from 140 steps on."""
    steps = [row["step"] for row in rows]
    entropies = [row["scalars"]["entropy/mean"] for row in rows]
    rewards = [row["scalars"]["reward/mean"] for row in rows]
    few = {"code": "too_few_steps", "message": f"The fit needs at least 20 steps, there are {len(rows)}."}
    fitted = len(rows) >= 20
    predicted = len(rows) >= 140
    b = sum(rewards) / len(rows) + _A * sum(math.exp(h) for h in entropies) / len(rows) if fitted else 0.0

    def estimate(value: float, margin: float) -> dict[str, float]:
        return {"value": value, "low": value - margin, "high": value + margin}

    def at(entropy: float) -> float:
        return b - _A * math.exp(entropy)

    grid = [max(entropies, default=0.0) * index / 80 for index in range(81)]
    last = entropies[-10:]
    reached = sum(last) / max(1, len(last))
    actual = sum(rewards[-10:]) / max(1, len(last))
    return {
        "steps": len(rows),
        "reward": "reward/mean",
        "reward_reason": "The run reports no reward of an evaluation.",
        "confidence": 0.9,
        "fit": {
            "a": estimate(_A, 0.006),
            "b": estimate(b, 0.02),
            "ceiling": estimate(b - _A, 0.018),
            "conclusive": True,
            "checks": [
                {"code": "slope", "passed": True, "message": "The reward rises as entropy falls."},
                {"code": "shape", "passed": True, "message": "The run follows the curve."},
                {"code": "halves", "passed": True, "message": "Both halves of the run follow one curve."},
                {"code": "reach", "passed": True, "message": "H = 0 is near enough."},
            ],
            "r2": 0.9,
            "autocorrelation": 0.3,
            "entropy_scatter": 0.01,
        }
        if fitted
        else None,
        "reason": None if fitted else few,
        "curve": {
            "entropy": grid,
            "reward": [at(h) for h in grid],
            "low": [at(h) - 0.008 - 0.01 * abs(h - 0.8) for h in grid],
            "high": [at(h) + 0.008 + 0.01 * abs(h - 0.8) for h in grid],
        }
        if fitted
        else None,
        "forecast": {
            "through_step": 39,
            "at_entropy": reached,
            "reward": estimate(at(reached) - 0.01, 0.03),
            "actual": actual,
            "error": at(reached) - 0.01 - actual,
            "final_steps": 10,
            "run_over": run_over,
        }
        if predicted
        else None,
        "forecast_reason": None if predicted else few,
        "points": {"step": steps, "entropy": entropies, "reward": rewards},
    }
