import dataclasses
from pathlib import Path

import pytest
import torch

from isentrope_trainer.models import warm_start
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.models.warm_start import (
    WarmStartConfig,
    cache_path,
    untrained_policy,
    warm_started_policy,
)
from isentrope_trainer.settings import PolicyConfig
from isentrope_trainer.tasks.chain_sum import ChainSum
from isentrope_trainer.tasks.countdown import Countdown

TASK = Countdown(seed=0)


def weights_of(policy: Policy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()])


def test_a_second_run_takes_the_weights_from_the_home(
    home: Path,
    tiny_policy_config: PolicyConfig,
    short_warm_start: WarmStartConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = warm_started_policy(TASK, tiny_policy_config, short_warm_start)
    assert [file.parent for file in home.rglob("*.safetensors")] == [home / "trainer"]
    assert not list(home.rglob("*.partial"))
    assert not torch.equal(
        weights_of(trained),
        weights_of(untrained_policy(TASK, tiny_policy_config, short_warm_start.seed)),
    )

    monkeypatch.setattr(warm_start, "demonstration_batch", None)  # learning again would fail
    again = warm_started_policy(TASK, tiny_policy_config, short_warm_start)
    assert torch.equal(weights_of(again), weights_of(trained))


def test_learning_twice_gives_the_same_weights(
    home: Path, tiny_policy_config: PolicyConfig, short_warm_start: WarmStartConfig
) -> None:
    first = warm_started_policy(TASK, tiny_policy_config, short_warm_start)
    cache_path(TASK, tiny_policy_config, short_warm_start).unlink()
    assert torch.equal(
        weights_of(first),
        weights_of(warm_started_policy(TASK, tiny_policy_config, short_warm_start)),
    )


def test_every_setting_is_part_of_the_name(
    home: Path, tiny_policy_config: PolicyConfig, short_warm_start: WarmStartConfig
) -> None:
    paths = {
        cache_path(task, tiny_policy_config, short_warm_start) for task in (TASK, ChainSum(seed=0))
    }
    for changes in (
        {"steps": 4},
        {"batch_size": 9},
        {"learning_rate": 1e-4},
        {"noise": 0.4},
        {"seed": 1},
    ):
        paths.add(
            cache_path(TASK, tiny_policy_config, dataclasses.replace(short_warm_start, **changes))
        )
    for changes in (
        {"hidden_size": 64},
        {"layers": 1},
        {"attention_heads": 4},
        {"feed_forward_size": 64},
    ):
        paths.add(
            cache_path(TASK, dataclasses.replace(tiny_policy_config, **changes), short_warm_start)
        )
    assert len(paths) == 11


def test_an_interrupted_save_leaves_nothing_behind(
    home: Path,
    tiny_policy_config: PolicyConfig,
    short_warm_start: WarmStartConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(warm_start, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        warm_started_policy(TASK, tiny_policy_config, short_warm_start)
    assert [path for path in home.rglob("*") if path.is_file()] == []
