"""The rank reward turns each group's advantages into those that follow from the authors' reward."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from isentrope.methods.base import GatedTokens
from isentrope_wire.control import Control
from tests.probe.methods.tokens import selected, tokens

LENGTH = 5


def rank_reward(beta: float = 0.25, normalise: str = "std") -> Control:
    return Control(method="rank_reward", parameters={"beta": beta, "normalise": normalise})


def normalised(rewards: Tensor, normalise: str) -> Tensor:
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + 1e-6) if normalise == "std" else centred


def batch(seed: int, normalise: str, sizes: tuple[int, ...] = (2, 4, 8, 8)) -> tuple[GatedTokens, Tensor, Tensor]:
    """Groups of answers right or wrong, rows in any order, lengths from 1 to 5; the rewards and the old log-probs too."""
    g = torch.Generator().manual_seed(seed)
    groups = torch.cat([torch.full((size,), index) for index, size in enumerate(sizes)])
    groups = groups[torch.randperm(len(groups), generator=g)]
    rewards = torch.randint(0, 2, (len(groups),), generator=g).double()
    advantages = torch.zeros(len(groups), dtype=torch.float64)
    for group in groups.unique():
        advantages[groups == group] = normalised(rewards[groups == group], normalise)
    mask = torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (len(groups), 1), generator=g)
    old = -torch.rand(len(groups), LENGTH, generator=g, dtype=torch.float64) * 3
    ratios = (0.3 * torch.randn(len(groups), LENGTH, generator=g, dtype=torch.float64)).exp()
    of = tokens(
        advantages.unsqueeze(1).expand(-1, LENGTH), logprobs=old + ratios.log(), ratios=ratios, mask=mask, groups=groups
    )
    return of, rewards, old


@pytest.mark.parametrize("normalise", ["std", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_advantages_follow_from_the_authors_reward(seed: int, normalise: str) -> None:
    of, rewards, old = batch(seed, normalise)
    selection = selected(rank_reward(0.25, normalise), of)
    ours = of.advantages.double() * selection.factors.double()
    assert of.group_ids is not None
    varied = 0
    for group in of.group_ids.unique():
        rows = (of.group_ids == group).nonzero().flatten()
        likelihoods = torch.stack([old[row][of.mask[row]].mean() for row in rows])
        places = likelihoods.argsort().argsort()  # 0: the least likely
        wanted = normalised(rewards[rows] * (1 - 0.25 * places / len(rows)), normalise)
        if rewards[rows].min() == rewards[rows].max():
            wanted = torch.zeros_like(wanted)  # an advantage of 0 has no gradient to multiply
        else:
            varied += 1
        expected = wanted.unsqueeze(1).expand(-1, LENGTH)
        torch.testing.assert_close(ours[rows][of.mask[rows]], expected[of.mask[rows]], rtol=1e-4, atol=1e-5)
    assert varied >= 2
    assert torch.equal(selection.selected, of.mask & (of.advantages != 0))


def test_group_of_two_right_answers_by_hand() -> None:
    """Rewards 1, 1, 0; the first answer is the likeliest: 1 - 0.3 * 2/3 = 0.8, then 1 - 0.3 * 1/3 = 0.9, and 0."""
    of = tokens(
        torch.tensor([[1 / 3], [1 / 3], [-2 / 3]]),
        logprobs=torch.tensor([[-1.0], [-2.0], [-3.0]]),
        groups=torch.ones(3),
    )
    factors = selected(rank_reward(0.3, "none"), of).factors.flatten().tolist()
    mean = 1.7 / 3
    assert factors == pytest.approx([3 * (0.8 - mean), 3 * (0.9 - mean), -1.5 * -mean])


def test_beta_0_changes_nothing() -> None:
    of, _, _ = batch(0, "std")
    torch.testing.assert_close(selected(rank_reward(0), of).factors, torch.ones(22, LENGTH))


def test_unknown_and_single_groups_are_unchanged() -> None:
    rows = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    for groups in (None, torch.tensor([1, 2])):
        selection = selected(rank_reward(), tokens(rows, logprobs=-rows.abs(), groups=groups))
        assert selection.factors.tolist() == [[1, 1], [1, 1]]
        assert not selection.selected.any()


def test_padding_rows_and_odd_numbers_do_not_spread() -> None:
    of, _, _ = batch(1, "std", sizes=(4,))
    whole = selected(rank_reward(), of).factors
    advantages, logprobs = of.advantages.clone(), of.scores.logprobs.clone()
    broken = tokens(
        torch.cat([advantages, torch.tensor([[math.nan] * LENGTH, [5.0] * LENGTH])]),
        logprobs=torch.cat([logprobs, torch.full((2, LENGTH), math.nan)]),
        ratios=torch.cat([of.importance_ratios, torch.ones(2, LENGTH)]),  # type: ignore[list-item]
        mask=torch.cat([of.mask, torch.tensor([[True] * LENGTH, [False] * LENGTH])]),
        groups=torch.cat([of.group_ids, torch.zeros(2)]),  # type: ignore[list-item]
    )
    assert torch.equal(selected(rank_reward(), broken).factors, torch.cat([whole, torch.ones(2, LENGTH)]))
