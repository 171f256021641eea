from collections.abc import Callable

import torch
from torch import Tensor

from isentrope_trainer.algorithms.prompt_filter import FilledBatch, fill_batch, within_pass_rates
from isentrope_trainer.settings import PromptFilterConfig

ALL, SOME, NONE = [1.0, 1.0], [1.0, 0.0], [0.0, -1.0]


def drawing(*draws: list[list[float]]) -> Callable[[int], tuple[int, Tensor]]:
    """Draws prompts whose rewards are known; what is sampled is the draw's number."""
    return lambda number: (number, torch.tensor(draws[number]))


def chosen(filled: FilledBatch[int]) -> list[tuple[int, list[int]]]:
    return [(number, indices.tolist()) for number, _, indices in filled.parts]


def test_the_range_of_pass_rates_includes_its_ends() -> None:
    rewards = (torch.arange(16) < torch.tensor([0, 1, 8, 15, 16])[:, None]).float()
    assert within_pass_rates(rewards, PromptFilterConfig()).tolist() == [False, True, True, True, False]


def test_partial_and_negative_rewards_are_not_right() -> None:
    rewards = torch.tensor([[0.5, -0.1], [1.0, -1.0]])
    assert within_pass_rates(rewards, PromptFilterConfig()).tolist() == [False, True]


def test_a_batch_that_passes_is_drawn_once() -> None:
    filled = fill_batch(drawing([SOME, SOME]), 2, PromptFilterConfig())
    assert chosen(filled) == [(0, [0, 1])]
    assert (filled.drawn, filled.kept) == (2, 2)


def test_new_prompts_replace_those_that_teach_nothing() -> None:
    filled = fill_batch(drawing([ALL, SOME], [NONE, NONE], [SOME, SOME]), 2, PromptFilterConfig())
    # The third draw has more than is missing: the first of them is taken.
    assert chosen(filled) == [(0, [1]), (2, [0])]
    assert (filled.drawn, filled.kept) == (6, 2)
    assert [rewards[indices].tolist() for _, rewards, indices in filled.parts] == [[SOME], [SOME]]


def test_a_capped_batch_is_filled_up_with_others() -> None:
    filled = fill_batch(drawing([ALL, NONE, NONE], [ALL, SOME, NONE]), 3, PromptFilterConfig(most_draws=2))
    assert chosen(filled) == [(0, [0, 1]), (1, [1])]
    assert (filled.drawn, filled.kept) == (6, 1)
