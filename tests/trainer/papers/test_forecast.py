"""Forecasts of made runs are scored against what came, against "nothing changes" and against a
straight line."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from isentrope_papers.beyond.forecast import HORIZONS, falls, scores, straight
from isentrope_papers.runs import Run


class MadeRun:
    """A run of which only the entropy is known."""

    names = ("entropy/mean",)

    def __init__(self, entropies: np.ndarray) -> None:
        self.steps = np.arange(1, len(entropies) + 1)
        self._entropies = entropies

    def series(self, name: str) -> np.ndarray:
        assert name == "entropy/mean"
        return self._entropies

    def start(self, name: str, steps: int) -> float:
        return float(self._entropies[:steps].mean())

    def end(self, name: str, steps: int = 10) -> float:
        return float(self._entropies[-steps:].mean())


def made(entropies: np.ndarray) -> Run:
    return cast(Run, MadeRun(entropies))


def test_a_fall_that_settles_is_forecast_better_than_by_a_line_or_by_nothing() -> None:
    run = made(0.3 + np.exp(-np.arange(200) / 40))
    assert falls(run)
    found = scores(run)
    assert tuple(found) == HORIZONS
    for horizon in (20, 50):
        assert found[horizon].error < 0.6 * found[horizon].nothing_changes
        assert found[horizon].error < found[horizon].straight_line
    assert found[50].covered > 0.8


def test_what_stays_has_no_error() -> None:
    run = made(np.full(120, 0.5))
    assert not falls(run)
    for one in scores(run).values():
        assert one == pytest.approx((0.0, 0.0, 0.0, 1.0), abs=1e-9)


def test_a_short_run_has_only_the_horizons_that_it_reached() -> None:
    assert tuple(scores(made(np.full(35, 0.5)))) == (10, 20)


def test_the_line_goes_on_and_not_below_0() -> None:
    past = np.linspace(1.0, 0.61, 40)
    assert straight(past, 10) == pytest.approx(0.51)
    assert straight(past, 100) == 0.0
