from pathlib import Path

import pytest

import isentrope
from isentrope_trainer.settings import TrainingConfig
from tests.benchmarks.collapse_and_cure import CURE, exponential_average, figures, sign_agreement


def test_the_exponential_average_is_that_of_the_optimiser() -> None:
    # m1 = 0.1 * 1; m2 = 0.9 * m1 + 0.1 * 3, each over 1 - 0.9^t.
    assert exponential_average([1.0, 3.0], 0.9) == pytest.approx([1.0, 0.39 / 0.19])
    assert sign_agreement([1, -1, -1, 1], [2, -2, 1, -1]) == 0.5


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_collapse_is_predicted_and_cured(home: Path) -> None:
    """The experiment in little: half its prompts at twice its learning rate, for as long as entropy
    needs to halve."""
    config = TrainingConfig(steps=60, prompts=48, learning_rate=3e-4)
    vanilla, cured = (figures(config, control) for control in (isentrope.Control(), CURE))
    assert vanilla.reward_end / vanilla.reward_start > 1.4
    assert vanilla.entropy_end < 0.55 * vanilla.entropy_start
    assert vanilla.momentum_aware_correlation > 0.7
    assert vanilla.momentum_aware_sign_agreement > 0.8
    assert vanilla.centring_ratio > 50
    assert cured.entropy_end > 1.2 * vanilla.entropy_end
    assert cured.clip_fraction > 0.05
