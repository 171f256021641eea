import math

import torch

from isentrope_trainer.algorithms.grpo import group_advantages, policy_gradient_loss, zero_advantage_groups


def test_advantages_are_standard_scores_within_each_group() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    advantages = group_advantages(rewards)
    # Group 1: mean 1/4, sample variance (0.75² + 3 * 0.25²) / 3 = 1/4. Group 2: mean 1/2, sample variance 1/3.
    torch.testing.assert_close(advantages[0], torch.tensor([1.5, -0.5, -0.5, -0.5]))
    root = math.sqrt(3) / 2
    torch.testing.assert_close(advantages[1], torch.tensor([root, root, -root, -root]))


def test_a_group_rewarded_alike_has_advantages_of_exactly_zero() -> None:
    rewards = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.1, 0.1, 0.1], [0.0, 1.0, 0.0]])
    assert zero_advantage_groups(rewards).tolist() == [True, True, True, False]
    assert group_advantages(rewards)[:3].eq(0).all()


def test_a_step_raises_rewarded_tokens_and_lowers_the_others() -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [-0.5, -0.1]], requires_grad=True)
    advantages = torch.tensor([[1.0, 1.0], [-2.0, -2.0]])
    mask = torch.tensor([[True, True], [True, False]])
    policy_gradient_loss(logprobs, advantages, mask).backward()
    # Descent on the loss: -A / tokens for each of the three tokens that count, nothing for padding.
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([[-1.0, -1.0], [2.0, 0.0]]) / 3)


def test_the_loss_is_the_negative_mean_advantage_over_tokens_whatever_the_logprobs() -> None:
    logprobs = torch.tensor([[-3.0, -0.2], [-7.0, -0.1]])
    advantages = torch.tensor([[1.0, 1.0], [-2.0, -2.0]])
    mask = torch.tensor([[True, True], [True, False]])
    torch.testing.assert_close(policy_gradient_loss(logprobs, advantages, mask), torch.tensor(0.0))
