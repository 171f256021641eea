"""Dynamic sampling: which prompts a batch is made of."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from isentrope_trainer.experience import fill_batch
from isentrope_trainer.rollout import Rollouts
from isentrope_trainer.settings import PromptFilterConfig

ALL, SOME, NONE = [1.0, 1.0], [1.0, 0.0], [0.0, -1.0]
PAD = 9


def filled(wanted: int, config: PromptFilterConfig, *draws: list[list[float]]) -> tuple[list[int], Tensor, int, int]:
    """What became of draws whose rewards are known; prompt j of draw i is the token 10 i + j."""

    def draw(number: int) -> tuple[Rollouts, Tensor]:
        rewards = torch.tensor(draws[number])
        prompts = 10 * number + torch.arange(len(rewards))[:, None]
        tokens = torch.zeros(rewards.numel(), 1, dtype=torch.int64)
        rollouts = Rollouts(prompts, prompts >= 0, tokens, tokens == 0, tokens.float(), rewards.shape[1])
        return rollouts, rewards

    rollouts, rewards, drawn, kept = fill_batch(draw, wanted, config, PAD)
    assert len(rollouts.completions) == rewards.numel()
    return rollouts.prompts[:, 0].tolist(), rewards, drawn, kept


@pytest.mark.parametrize(("right", "kept"), [(0, 0), (1, 1), (8, 1), (15, 1), (16, 0)])
def test_the_range_of_pass_rates_includes_its_ends(right: int, kept: int) -> None:
    rewards = [[1.0] * right + [0.0] * (16 - right)]
    assert filled(1, PromptFilterConfig(most_draws=1), rewards)[2:] == (1, kept)


def test_partial_and_negative_rewards_are_not_right() -> None:
    assert filled(2, PromptFilterConfig(most_draws=1), [[0.5, -0.1], [1.0, -1.0]])[3] == 1


def test_a_batch_that_passes_is_drawn_once() -> None:
    prompts, _, drawn, kept = filled(2, PromptFilterConfig(), [SOME, SOME])
    assert (prompts, drawn, kept) == ([0, 1], 2, 2)


def test_new_prompts_replace_those_that_teach_nothing() -> None:
    # The third draw has more than is missing: the first of them is taken.
    prompts, rewards, drawn, kept = filled(2, PromptFilterConfig(), [ALL, SOME], [NONE, NONE], [SOME, SOME])
    assert (prompts, drawn, kept) == ([1, 20], 6, 2)
    assert rewards.tolist() == [SOME, SOME]


def test_a_capped_batch_is_filled_up_with_others() -> None:
    draws = [ALL, NONE, NONE], [ALL, SOME, NONE]
    prompts, _, drawn, kept = filled(3, PromptFilterConfig(most_draws=2), *draws)
    assert (prompts, drawn, kept) == ([0, 1, 11], 6, 1)
