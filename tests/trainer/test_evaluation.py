import itertools

import pytest
import torch
from torch import Tensor

from isentrope_trainer.experience import (
    evaluate,
    pass_at_k,
    pass_rate_shares,
    right_answers,
    trigrams,
)
from isentrope_trainer.models.sampling import Rollouts
from isentrope_trainer.models.warm_start import untrained_policy
from isentrope_trainer.settings import EvaluationConfig, PolicyConfig
from isentrope_trainer.tasks.base import Problem
from isentrope_trainer.tasks.countdown import Countdown


def answers(passed: list[int], samples: int) -> Tensor:
    """A table in which problem i has `passed[i]` right answers."""
    return torch.arange(samples) < torch.tensor(passed)[:, None]


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_pass_at_k_is_the_mean_over_all_choices(k: int) -> None:
    right = answers([0, 1, 3, 6, 7], samples=7)
    choices = list(itertools.combinations(range(7), k))
    by_hand = (
        torch.tensor([[row[list(choice)].any() for choice in choices] for row in right])
        .double()
        .mean()
        .item()
    )
    assert pass_at_k(right, k) == pytest.approx(by_hand, abs=1e-12)


def test_pass_rates_fall_into_their_bins() -> None:
    shares = pass_rate_shares(answers([0, 1, 3, 4, 8, 12, 15, 16, 16, 16], samples=16))
    assert shares == pytest.approx(
        {"0": 0.1, "0-25": 0.2, "25-50": 0.1, "50-75": 0.1, "75-100": 0.2, "100": 0.3}
    )


def test_answers_that_differ_are_counted_within_a_problem() -> None:
    right = torch.tensor([[True, True, True, False], [True, False, False, False]])
    assert right_answers(right, ["a", "a", "b", "c", "a", "a", "b", None]) == 3 / 2
    ids = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 0], [1, 2, 3, 4], [1, 2, 0, 0]])
    drawn = Rollouts(ids, ids > 0, ids, ids > 0, torch.zeros(ids.shape), group_size=2)
    assert (
        trigrams(drawn) == 4 / 5
    )  # 1 2 3 comes twice in the first problem, and 2 3 4 once in both


class EndingIsRight(Countdown):
    """An untrained policy solves nothing; it ends now and then."""

    def reward(self, problem: Problem, completion: str | None) -> float:
        assert problem.prompt in {self.problem(index, "held_out").prompt for index in range(8)}
        return -1.0 if completion is None else 1.0


def test_evaluation_reads_held_out_problems_and_repeats_itself(
    tiny_policy_config: PolicyConfig,
) -> None:
    task, config = (
        EndingIsRight(seed=0, hold_out=True),
        EvaluationConfig(problems=8, samples=16, k=8),
    )
    policy = untrained_policy(task, tiny_policy_config, seed=1)
    values = evaluate(policy, task, config)
    assert 0.0 < values["eval/avg_at_k"] < values["eval/pass_at_k"] < 1.0
    assert sum(
        value for name, value in values.items() if name.startswith("eval/pass_rate/")
    ) == pytest.approx(1.0)
    assert evaluate(policy, task, config) == values
