import math

import pytest
import torch

from isentrope_trainer.algorithms.advantages import (
    ADVANTAGES,
    JudgedRollouts,
    generalised_advantages,
    group_advantages,
    leave_one_out_advantages,
    normalised,
    process_advantages,
    returns,
    rewards_at_end,
    zero_advantage_groups,
)
from isentrope_trainer.settings import ALGORITHMS

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])


def test_group_advantages_are_standard_scores_within_each_group() -> None:
    advantages = group_advantages(REWARDS)
    # Group 1: mean 1/4, sample variance (0.75² + 3 * 0.25²) / 3 = 1/4. Group 2: mean 1/2, sample
    # variance 1/3.
    torch.testing.assert_close(advantages[0], torch.tensor([1.5, -0.5, -0.5, -0.5]))
    root = math.sqrt(3) / 2
    torch.testing.assert_close(advantages[1], torch.tensor([root, root, -root, -root]))


def test_a_group_rewarded_alike_has_advantages_of_exactly_zero() -> None:
    rewards = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.1, 0.1, 0.1], [0.0, 1.0, 0.0]])
    assert zero_advantage_groups(rewards).tolist() == [True, True, True, False]
    assert group_advantages(rewards)[:3].eq(0).all()


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    third = 1 / 3
    expected = torch.tensor(
        [[1.0, -third, -third, -third], [2 * third, 2 * third, -2 * third, -2 * third]]
    )
    torch.testing.assert_close(leave_one_out_advantages(REWARDS), expected)


def test_rewards_come_with_the_last_token() -> None:
    assert rewards_at_end(torch.tensor([[2.0, 3.0]]), MASK).tolist() == [
        [0.0, 0.0, 2.0],
        [0.0, 3.0, 0.0],
    ]


def test_returns_discount_what_comes_later_and_ignore_padding() -> None:
    rewards = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 100.0]])
    assert returns(rewards, MASK, 0.5).tolist() == [[3.0, 4.0, 4.0], [2.0, 2.0, 0.0]]


def test_normalised_values_have_mean_0_and_deviation_1_over_the_counted_tokens() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 1e6]])
    scores = normalised(values, MASK)
    assert scores[1, 2] == 0
    torch.testing.assert_close(scores[MASK].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(scores[MASK].std(), torch.tensor(1.0))
    assert normalised(torch.ones(2, 3), MASK).eq(0).all()


def test_normalising_shares_with_sums_over_ranks_is_normalising_the_whole() -> None:
    values, mask = torch.randn(4, 3, dtype=torch.float64), torch.rand(4, 3) < 0.7
    mask[:, 0] = True
    whole = normalised(values, mask)

    def sums_of_both(own: torch.Tensor) -> torch.Tensor:
        """What an exchange with the other half of the batch gives, of either kind of sum."""
        if own.numel() == 2:
            return torch.stack([mask.sum().double(), (values * mask).sum()])
        mean = (values * mask).sum() / mask.sum()
        return ((values - mean) * mask).square().sum()

    torch.testing.assert_close(normalised(values[:2], mask[:2], sums_of_both), whole[:2])


def test_generalised_advantages_by_hand() -> None:
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 7.0]])
    values = torch.tensor([[0.5, 0.25, 0.5], [1.0, 0.5, 7.0]])
    # discount 0.5, lambda 0.5; deltas of row 1: -0.375, 0, 0.5; of row 2: -0.75, 1.5.
    expected = torch.tensor([[-0.375 + 0.25 * 0.125, 0.125, 0.5], [-0.75 + 0.25 * 1.5, 1.5, 0.0]])
    torch.testing.assert_close(
        generalised_advantages(rewards, values, MASK, discount=0.5, gae_lambda=0.5), expected
    )


def test_process_advantages_by_hand() -> None:
    token_rewards = torch.tensor([[1.0, 2.0, 3.0], [4.0, 0.0, 100.0]])
    # Means: 2 and 2, each the other's baseline. Returns of centred rewards: (0, 1, 1) and (0, -2).
    # Outcome: 1 and -1.
    advantages = process_advantages(torch.tensor([[1.0, 0.0]]), token_rewards, MASK)
    torch.testing.assert_close(advantages, torch.tensor([[1.0, 2.0, 2.0], [-1.0, -3.0, 0.0]]))


@pytest.mark.parametrize("name", list(ADVANTAGES))
def test_a_reward_raises_the_advantage_of_every_token_of_its_completion(name: str) -> None:
    mask = torch.rand(8, 4, generator=torch.Generator().manual_seed(0)) < 0.8
    mask = mask.cumprod(dim=1).bool()
    mask[:, 0] = True
    zeros = torch.zeros(8, 4)
    advantages = ADVANTAGES[name](
        JudgedRollouts(rewards=REWARDS, mask=mask, values=zeros, token_rewards=zeros)
    )
    assert advantages.shape == mask.shape
    rewarded = REWARDS.reshape(-1).bool()
    assert (advantages[rewarded][mask[rewarded]] > 0).all()
    assert (advantages[~rewarded][mask[~rewarded]] < 0).all()


def test_every_algorithm_has_its_advantage() -> None:
    assert {algorithm.advantage for algorithm in ALGORITHMS.values()} == set(ADVANTAGES)
