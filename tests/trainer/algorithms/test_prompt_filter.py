from collections.abc import Callable

import torch
from torch import Tensor

from isentrope_trainer.algorithms.prompt_filter import fill_batch, within_pass_rates
from isentrope_trainer.settings import PromptFilterConfig

ALL, SOME, NONE = [1.0, 1.0], [1.0, 0.0], [0.0, -1.0]


def drawing_from(
    rewards: list[list[float]], draws: list[tuple[int, int]]
) -> Callable[[int, int], tuple[list[int], Tensor]]:
    """Draws prompts whose rewards are known; the batch is their numbers. `draws` remembers what was asked for."""

    def draw(first: int, count: int) -> tuple[list[int], Tensor]:
        draws.append((first, count))
        return list(range(first, first + count)), torch.tensor(rewards[first : first + count])

    return draw


def test_the_range_of_pass_rates_includes_its_ends() -> None:
    rewards = (torch.arange(16) < torch.tensor([0, 1, 8, 15, 16])[:, None]).float()
    assert within_pass_rates(rewards, PromptFilterConfig()).tolist() == [False, True, True, True, False]


def test_partial_and_negative_rewards_are_not_right() -> None:
    rewards = torch.tensor([[0.5, -0.1], [1.0, -1.0]])
    assert within_pass_rates(rewards, PromptFilterConfig()).tolist() == [False, True]


def test_a_batch_that_passes_is_drawn_once() -> None:
    draws: list[tuple[int, int]] = []
    filled = fill_batch(drawing_from([NONE, SOME, SOME], draws), 1, 2, PromptFilterConfig())
    assert draws == [(1, 2)]
    assert [(batch, indices.tolist()) for batch, indices in filled.parts] == [([1, 2], [0, 1])]
    assert (filled.drawn, filled.kept) == (2, 2)


def test_new_prompts_replace_those_that_teach_nothing() -> None:
    draws: list[tuple[int, int]] = []
    filled = fill_batch(drawing_from([ALL, SOME, NONE, NONE, SOME, SOME], draws), 0, 2, PromptFilterConfig())
    assert draws == [(0, 2), (2, 2), (4, 2)]
    # The third draw has more than is missing: the first of them is taken.
    assert [(batch, indices.tolist()) for batch, indices in filled.parts] == [([0, 1], [1]), ([4, 5], [0])]
    assert (filled.drawn, filled.kept) == (6, 2)


def test_a_capped_batch_is_filled_up_with_others() -> None:
    draws: list[tuple[int, int]] = []
    draw = drawing_from([ALL, NONE, NONE, ALL, SOME, NONE], draws)
    filled = fill_batch(draw, 0, 3, PromptFilterConfig(most_draws=2))
    assert [(batch, indices.tolist()) for batch, indices in filled.parts] == [([0, 1, 2], [0, 1]), ([3, 4, 5], [1])]
    assert (filled.drawn, filled.kept) == (6, 1)
