from collections.abc import Callable
from pathlib import Path

import pytest

from isentrope_papers.settings import RunSettings
from isentrope_trainer.models.warm_start import WarmStartConfig
from isentrope_trainer.settings import PolicyConfig, TrainingConfig


@pytest.fixture
def tiny_run(
    tiny_policy_config: PolicyConfig, short_warm_start: WarmStartConfig, home: Path
) -> Callable[[int], RunSettings]:
    """Settings of a run of a second, by their seed."""

    def of_seed(seed: int) -> RunSettings:
        return RunSettings(
            training=TrainingConfig(
                steps=3, seed=seed, prompts=3, group_size=4, learning_rate=1e-3
            ),
            policy=tiny_policy_config,
            warm_start=short_warm_start,
        )

    return of_seed
