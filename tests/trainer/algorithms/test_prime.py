import torch

from isentrope_trainer.models.warm_start import untrained_policy
from isentrope_trainer.settings import PolicyConfig, ProcessRewardConfig
from isentrope_trainer.tasks.countdown import Countdown
from isentrope_trainer.training_state import ProcessReward


def test_a_reward_model_begins_at_zero_and_learns_outcomes_without_touching_the_policy(
    tiny_policy_config: PolicyConfig,
) -> None:
    task = Countdown(0)
    policy = untrained_policy(task, tiny_policy_config, seed=1)
    rollouts = policy.sample(
        [task.problem(index).prompt for index in range(2)],
        8,
        torch.Generator().manual_seed(0),
        max_tokens=task.max_tokens,
    )
    before = [weights.clone() for weights in policy.model.parameters()]
    model = ProcessReward(policy, ProcessRewardConfig(learning_rate=1e-2))
    assert model.token_rewards(rollouts).eq(0).all()

    rewards = torch.tensor([[1.0, 0.0] * 4, [0.0, 1.0] * 4])
    losses = [model.learn(rollouts, rewards) for _ in range(8)]
    # An even chance is ln 2.
    assert abs(losses[0] - 0.6931) < 1e-3
    assert losses[-1] < losses[0] - 0.02
    token_rewards = model.token_rewards(rollouts)
    assert token_rewards[~rollouts.mask].eq(0).all()
    sums = token_rewards.sum(dim=1)
    assert sums[rewards.flatten() == 1].mean() > sums[rewards.flatten() == 0].mean()
    for left, right in zip(policy.model.parameters(), before, strict=True):
        assert torch.equal(left, right)
        assert left.grad is None

    again = ProcessReward(policy, ProcessRewardConfig(learning_rate=1e-2))
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.token_rewards(rollouts), token_rewards)
