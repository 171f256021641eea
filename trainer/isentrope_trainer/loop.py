"""The training loop: sample, judge, score, gate, learn, report. Read it second, after `isentrope/probe.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

import isentrope
from isentrope_trainer.algorithms.adaptive_entropy import AdaptiveEntropyCoefficient, mean_entropy
from isentrope_trainer.algorithms.grpo import group_advantages, policy_gradient_loss, zero_advantage_groups
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.rollout import Rollouts
from isentrope_trainer.settings import TrainingConfig
from isentrope_trainer.tasks.base import Problem, Task


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a progress bar shows of a step."""

    step: int
    reward_mean: float
    step_seconds: float


def train(
    policy: Policy,
    task: Task,
    probe: isentrope.Probe,
    config: TrainingConfig,
    on_step: Callable[[StepResult], None] = lambda result: None,
) -> None:
    """Reinforce `policy` in place. The same task, seed and starting weights give the same run, bit for bit.

    Args:
        task: gives the problems, in order, and judges the answers.
        on_step: called after each step's report.
    """
    generator = torch.Generator().manual_seed(config.seed)
    optimizer = torch.optim.AdamW(
        policy.model.parameters(),
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
    )
    bonus = None if config.adaptive_entropy is None else AdaptiveEntropyCoefficient(config.adaptive_entropy)
    policy.model.train()
    # Counted as optimiser updates are: the last of 30 steps is step 30.
    for step in range(1, config.steps + 1):
        started = time.perf_counter()
        problems = [task.problem((step - 1) * config.prompts + index) for index in range(config.prompts)]
        rollouts = policy.sample(
            [problem.prompt for problem in problems],
            config.group_size,
            generator,
            temperature=config.temperature,
            max_tokens=task.max_tokens,
        )
        rewards = judge(task, problems, policy.texts(rollouts))
        advantages = group_advantages(rewards).reshape(-1, 1).expand_as(rollouts.mask)

        score = partial(_score, policy, rollouts, probe, config.temperature, entropy_gradient=bonus is not None)
        scores = score()
        logprobs = probe.gate(
            scores,
            advantages,
            rollouts.mask,
            sampler_logprobs=rollouts.sampler_logprobs,
            groups=config.group_size,
            completions={"reward": rewards.reshape(-1)},
        )
        loss = policy_gradient_loss(logprobs, advantages, rollouts.mask)
        if bonus is not None:
            entropy = mean_entropy(scores.entropies, rollouts.mask)
            probe.log({"train/entropy_coefficient": bonus.applied})
            loss = loss - bonus.applied * entropy
            bonus.step(entropy.item())
        optimizer.zero_grad()
        loss.backward()
        gradient_norm = clip_grad_norm_(policy.model.parameters(), config.max_gradient_norm)
        optimizer.step()

        result = StepResult(step, rewards.mean().item(), time.perf_counter() - started)
        probe.log(
            {
                "reward/mean": result.reward_mean,
                "advantage/zero_group_fraction": zero_advantage_groups(rewards).float().mean(),
                "completion/length_mean": rollouts.mask.sum(dim=1).float().mean(),
                "train/loss": loss.detach(),
                "train/grad_norm": gradient_norm,
                "time/step_seconds": result.step_seconds,
            }
        )
        clip_factor = (config.max_gradient_norm / (gradient_norm + 1e-6)).clamp(max=1.0)
        probe.step(step, optimizer, rescore=score, clip_factor=clip_factor)
        on_step(result)


def judge(task: Task, problems: list[Problem], texts: list[str | None]) -> Tensor:
    """Rewards [prompts, group size] of the completions' texts, by the task's verifier."""
    group_size = len(texts) // len(problems)
    rewards = [task.reward(problems[row // group_size], text) for row, text in enumerate(texts)]
    return torch.tensor(rewards).reshape(len(problems), group_size)


def _score(
    policy: Policy, rollouts: Rollouts, probe: isentrope.Probe, temperature: float, *, entropy_gradient: bool
) -> isentrope.TokenScores:
    logits = policy.logits(rollouts)
    return probe.score(logits, rollouts.completions, temperature=temperature, entropy_gradient=entropy_gradient)
