"""Evaluation on held-out problems: Avg@K, the unbiased Pass@K, and how the problems' pass rates are distributed.

`evaluate` samples and judges answers with a generator of its own, so that evaluating a run does not change it. All three are
read from one table, which of a problem's sampled answers are right: bool [problems, samples].

    Avg@K   mean over the problems of c / n
    Pass@K  mean over the problems of 1 - C(n - c, K) / C(n, K)          arXiv:2107.03374, eq. 1

with n samples of a problem, of which c are right. Pass@K so computed is the mean over all ways to choose K of the n
samples: unbiased, which 1 - (1 - c/n)^K is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isentrope_trainer.models.policy import Policy
from isentrope_trainer.settings import EvaluationConfig
from isentrope_trainer.tasks.base import SOLVED, Problem, Task
from isentrope_wire.metrics import EVAL_AVG_AT_K, EVAL_PASS_AT_K

PASS_RATE_BINS = ("0", "0-25", "25-50", "50-75", "75-100", "100")
"""Bins of the pass rate in percent. Never right and always right have bins of their own; elsewhere a bin contains its lower
end, and 0-25 begins above 0."""

_SEED = 20_250_522
"""Seed of the sampler: every evaluation of every run draws with the same random numbers."""


def evaluate(policy: Policy, task: Task, config: EvaluationConfig) -> dict[str, float]:
    """Sample answers to the problems that the task holds out, and report how many of them are right.

    Returns `eval/avg_at_k`, `eval/pass_at_k`, and `eval/pass_rate/BIN`, the share of the problems in each bin.

    Raises:
        ConfigurationError: the task holds out fewer problems than are wanted.
    """
    problems = [task.problem(index, "held_out") for index in range(config.problems)]
    rollouts = policy.sample(
        [problem.prompt for problem in problems],
        config.samples,
        torch.Generator(policy.model.device).manual_seed(_SEED),
        temperature=config.temperature,
        max_tokens=task.max_tokens,
    )
    right = judge(task, problems, policy.texts(rollouts)) >= SOLVED
    shares = pass_rate_shares(right)
    return {
        EVAL_AVG_AT_K: right.double().mean().item(),
        EVAL_PASS_AT_K: pass_at_k(right, config.k),
        **{f"eval/pass_rate/{name}": share for name, share in shares.items()},
    }


def judge(task: Task, problems: Sequence[Problem], texts: Sequence[str | None]) -> Tensor:
    """Rewards [problems, group size] of the completions' texts, by the task's verifier."""
    group_size = len(texts) // len(problems)
    rewards = [task.reward(problems[row // group_size], text) for row, text in enumerate(texts)]
    return torch.tensor(rewards).reshape(len(problems), group_size)


def pass_at_k(right: Tensor, k: int) -> float:
    """Probability that at least one of `k` samples of bool [problems, samples] is right, averaged over the problems."""
    samples = right.shape[1]
    chances = [1.0 - math.comb(samples - passed, k) / math.comb(samples, k) for passed in range(samples + 1)]
    return torch.tensor(chances, dtype=torch.float64)[right.sum(dim=1)].mean().item()


def pass_rate_shares(right: Tensor) -> dict[str, float]:
    """Share of the problems of bool [problems, samples] in each of `PASS_RATE_BINS`, in their order; they sum to 1."""
    samples = right.shape[1]
    passed = right.sum(dim=1)
    quarters = 1 + 4 * passed // samples
    bins = quarters.masked_fill(passed == 0, 0).masked_fill(passed == samples, len(PASS_RATE_BINS) - 1)
    shares = bins.bincount(minlength=len(PASS_RATE_BINS)).double() / len(right)
    return dict(zip(PASS_RATE_BINS, shares.tolist(), strict=True))
