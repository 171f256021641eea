"""What the experiment says of a held run is what its reports say."""

from __future__ import annotations

import pytest

from isentrope_trainer.experiments.hold_target import ENDS, SETTLED_FROM, hold_figures, table
from isentrope_wire.messages import StepReport


def report(step: int) -> StepReport:
    """Falls from 1 to the target of 0.5 within 50 steps, then lies 0.02 above it and 0.01 below by turns."""
    entropy = 1 - 0.01 * step if step < SETTLED_FROM else 0.5 + (0.02 if step % 2 else -0.01)
    scalars = {"entropy/mean": entropy, "reward/mean": step / 100, "clip/fraction": 0.1 * (step % 2)}
    return StepReport(
        step=step, recorded_at=0.0, scalars=scalars, labels={"hold/state": "fallback" if step < 8 else "holding"}
    )


def test_the_deviation_counts_from_the_step_on_from_which_the_entropy_should_be_there() -> None:
    figures = hold_figures([report(step) for step in range(100)], target=0.5)
    assert figures.deviation == pytest.approx(0.03)
    assert figures.offset == pytest.approx(0.01)
    assert figures.reward_end == pytest.approx(sum(range(100 - ENDS, 100)) / ENDS / 100)
    assert figures.clip_fraction == pytest.approx(0.05)
    assert figures.states == {"fallback": 8, "holding": 92}
    lines = table(0.5, {"held": figures}).splitlines()
    assert lines[0].split() == ["target", "0.5000", "nats", "held"]
    assert lines[2].split() == ["deviation", "0.03"]
    assert lines[-1].split() == ["states", "fallback", "8,", "holding", "92"]
