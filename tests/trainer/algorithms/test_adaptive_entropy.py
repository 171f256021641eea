"""The bonus goes up below its target and down above it, as TRL's does, and is applied a step later."""

from __future__ import annotations

import pytest

from isentrope_trainer.algorithms.adaptive_entropy import AdaptiveEntropyCoefficient
from isentrope_trainer.settings import AdaptiveEntropyConfig
from isentrope_wire.errors import ConfigurationError


def applied(entropies: list[float], **settings: float) -> list[float]:
    """The coefficient of each step."""
    rule, coefficients = AdaptiveEntropyCoefficient(AdaptiveEntropyConfig(target_entropy=0.5, **settings)), []
    for entropy in entropies:
        coefficients.append(rule.applied)
        rule.step(entropy)
    return coefficients


def test_the_coefficient_rises_below_the_target_and_falls_above_it() -> None:
    # At the target counts as below. Applied in a step is what the step before left, and nothing where it lay above.
    assert applied([0.5, 0.4, 0.4, 0.6, 0.4, 0.4]) == pytest.approx([0.0, 0.005, 0.010, 0.015, 0.0, 0.015])


def test_the_first_step_has_no_bonus_whatever_the_coefficient() -> None:
    assert applied([0.4, 0.4], initial_coefficient=0.1) == pytest.approx([0.0, 0.105])


def test_the_coefficient_stays_within_its_bounds() -> None:
    assert applied([0.4] * 4, change_per_step=0.4, largest_coefficient=0.7) == pytest.approx([0, 0.4, 0.7, 0.7])
    assert applied([0.6, 0.6, 0.4, 0.4], change_per_step=0.4) == pytest.approx([0, 0, 0, 0.4])


def test_a_loaded_coefficient_continues() -> None:
    config = AdaptiveEntropyConfig(target_entropy=0.5)
    first, second = AdaptiveEntropyCoefficient(config), AdaptiveEntropyCoefficient(config)
    first.step(0.4)
    second.load_state_dict(first.state_dict())
    assert second.applied == first.applied == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"target_entropy": 0.0}, r"adaptive_entropy\.target_entropy .*\b0\.0\.$"),
        ({"change_per_step": -0.1}, r"adaptive_entropy\.change_per_step .*-0\.1\.$"),
        ({"initial_coefficient": 2.0}, r"initial_coefficient .*\b2\.0\.$"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        AdaptiveEntropyConfig(**{"target_entropy": 0.5, **changes})
