"""A run under a control is compared with one without it, from the step at which the control was
pushed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from isentrope_papers.beyond.forks import fork
from isentrope_papers.runs import Run
from isentrope_papers.settings import RunSettings
from isentrope_trainer.settings import TrainingConfig
from isentrope_wire.control import Control
from tests.wire.test_diagnosis import sums


def made(pace: float, added: float, what_if: int = 2) -> Run:
    """Falls by 0.005 nats a step for 30 steps, then moves at a pace; a control adds so much to each
    step."""
    steps = np.arange(1, 61)
    entropies = 1 - 0.005 * np.minimum(steps, 30) + pace * np.maximum(steps - 30, 0)
    entropies += 0.0004 * (-1.0) ** steps
    series: dict[str, Any] = {
        "entropy/mean": entropies,
        "entropy/gain": np.full(60, 0.5),
        "change/by_intervention": np.where(steps > 30, 2 * added, np.nan),
    }
    settings = SimpleNamespace(
        pushed_after=30, control=Control(method="clip_v", mu_low=1.0, mu_high=1.0)
    )
    known = {"series": series.__getitem__, "names": [*series], "what_if": [sums(-4.0)] * what_if}
    return cast(Run, SimpleNamespace(steps=steps, settings=settings, **known))


WITHOUT = made(-0.004, 0.0)


def test_what_came_is_the_difference_of_the_paces() -> None:
    found = fork(made(-0.001, 0.003), WITHOUT)
    assert found.promised is not None
    assert (
        0.009 < found.promised < 0.75 * 0.5 * 0.048
    )  # what the tokens of the last steps say, and it fades
    assert found.came == pytest.approx(0.003, rel=0.05)
    assert found.without == pytest.approx(-0.004, rel=0.05)
    assert (found.helped, found.verdict) == (True, True)


@pytest.mark.parametrize(("pace", "helped"), [(-0.0038, False), (0.0, True), (0.002, True)])
def test_the_verdict_is_compared_with_what_the_other_run_did(pace: float, helped: bool) -> None:
    found = fork(made(pace, pace + 0.004, what_if=0), WITHOUT)
    assert (found.helped, found.verdict, found.promised) == (helped, helped, None)


def test_a_run_whose_control_is_pushed_on_the_way_has_a_key_of_its_own() -> None:
    control = Control(method="clip_v", mu_low=1.0)
    plain = RunSettings(training=TrainingConfig(), control=control)
    pushed = RunSettings(training=TrainingConfig(), control=control, pushed_after=30)
    assert plain.key != pushed.key
    assert "pushed_after" not in plain.document()
    assert "pushed_after=30" in str(pushed)
