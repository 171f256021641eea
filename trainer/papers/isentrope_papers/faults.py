"""FAULTS: known ways in which a run dies, made on purpose in the reference trainer.

Each row says what is changed in the settings, what is wrong in the reward, the problems or the
sampler, and which kinds of findings name it. They are the usual mistakes of a real training, not of
its log: the checks see what such a run reports."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import isentrope
from isentrope_trainer.models.policy import Policy
from isentrope_trainer.settings import LossConfig
from isentrope_trainer.tasks.base import Problem, Split, Task
from isentrope_wire.diagnosis.checks import FINDINGS

Parts = Mapping[str, float]
RewardOf = Callable[[float, Problem, str | None], Parts]
"""Parts of the reward, of a verifier's verdict, the problem and the text."""
Prepare = Callable[[Policy, Task, isentrope.Probe, int], Task]
"""The task that a run is given in place of its own; of policy, task, probe and the completions of a
batch."""
_FORMAT_WEIGHT, _RIGHT_WEIGHT, _WORD = 1.0, 0.1, 0.15
_FEW_PROBLEMS, _ONE_IN = 4, 24
_NOT_A_NUMBER_AFTER = 2_000
_COLD = 0.25


class Rewarded:
    """A task with another reward, which logs the mean of each of its parts; held-out problems are
    judged as usual."""

    def __init__(
        self, task: Task, reward_of: RewardOf, probe: isentrope.Probe, completions: int
    ) -> None:
        """`completions`: of a batch."""
        self._task, self._reward_of = task, reward_of
        self._probe, self._completions = probe, completions
        self._held_out: set[str] = set()
        self._sums: dict[str, float] = {}
        self._judged = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def problem(self, index: int, split: Split = "train") -> Problem:
        problem = self._task.problem(index, split)
        if split == "held_out":
            self._held_out.add(problem.prompt)
        return problem

    def reward(self, problem: Problem, completion: str | None) -> float:
        verdict = self._task.reward(problem, completion)
        if problem.prompt in self._held_out:
            return verdict
        parts = self._reward_of(verdict, problem, completion)
        for name, part in parts.items():
            self._sums[name] = self._sums.get(name, 0.0) + part
        self._judged += 1
        if self._judged == self._completions:
            if len(parts) > 1:
                means = {name: total / self._judged for name, total in self._sums.items()}
                self._probe.log({f"rewards/{name}/mean": mean for name, mean in means.items()})
            self._sums, self._judged = {}, 0
        return sum(parts.values())


def rewarded(reward_of: RewardOf) -> Prepare:
    """A run whose reward is another."""

    def prepare(policy: Policy, task: Task, probe: isentrope.Probe, completions: int) -> Task:
        return cast("Task", Rewarded(task, reward_of, probe, completions))

    return prepare


def _pay_length(verdict: float, problem: Problem, text: str | None) -> Parts:
    # A text that the limit cut is the longest.
    words = 24 if text is None else len(text.split())
    return {"right": verdict + _WORD * words}


def _pay_format(verdict: float, problem: Problem, text: str | None) -> Parts:
    is_formatted = text is not None and "(" in text
    return {"format": _FORMAT_WEIGHT * is_formatted, "right": _RIGHT_WEIGHT * verdict}


def _judge_few(verdict: float, problem: Problem, text: str | None) -> Parts:
    """Most expected answers are wrong, so that nothing is accepted."""
    return {"right": verdict * (zlib.crc32(problem.prompt.encode()) % _ONE_IN == 0)}


def _fail_once() -> RewardOf:
    judged = 0

    def reward_of(verdict: float, problem: Problem, text: str | None) -> Parts:
        nonlocal judged
        judged += 1
        return {"right": math.nan if judged == _NOT_A_NUMBER_AFTER else verdict}

    return reward_of


def _repeat_problems(policy: Policy, task: Task, probe: isentrope.Probe, completions: int) -> Task:
    """Few problems, again and again: soon all of them are solved."""
    given = task.problem
    task.problem = lambda index, split="train": given(  # type: ignore[method-assign]
        index % _FEW_PROBLEMS if split == "train" else index, split
    )
    return task


def _sample_cold(policy: Policy, task: Task, probe: isentrope.Probe, completions: int) -> Task:
    """The sampler draws at a low temperature that the scores do not know of."""
    draw = policy.sample

    def sample(*given: Any, temperature: float, **more: Any) -> Any:
        return draw(*given, temperature=_COLD * temperature, **more)

    policy.sample = sample  # type: ignore[method-assign, assignment]
    return task


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row."""

    kinds: frozenset[str]
    """Findings that name it."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TrainingConfig` that are others."""
    max_tokens: int | None = None
    """Length limit of a completion; None: the task's."""
    prepare: Callable[[], Prepare] | None = None
    """Makes what is wrong in the run beside its settings."""


_RATE_KINDS = frozenset({"collapse", "explosion", "kl", "gradient", "clip_saturation"})

FAULTS: dict[str, Fault] = {
    "reward pays length": Fault(
        kinds=frozenset({"length", "truncation", "reward_hacking"}),
        max_tokens=24,
        prepare=partial(rewarded, _pay_length),
    ),
    "format takes the reward": Fault(
        kinds=frozenset({"reward_parts", "reward_hacking"}),
        prepare=partial(rewarded, _pay_format),
    ),
    "problems too easy": Fault(
        kinds=frozenset({"zero_advantage"}), prepare=lambda: _repeat_problems
    ),
    "problems too hard": Fault(
        kinds=frozenset({"zero_advantage"}), prepare=partial(rewarded, _judge_few)
    ),
    "30 times the learning rate": Fault(kinds=_RATE_KINDS, training={"learning_rate": 3e-3}),
    "completions cut": Fault(kinds=frozenset({"truncation"}), max_tokens=5),
    "sampler too cold": Fault(
        kinds=frozenset({"self_check", "zero_advantage", "kl"}), prepare=lambda: _sample_cold
    ),
    "stale sampler": Fault(
        kinds=frozenset({"kl", "clip_saturation"}),
        training={"sampler_lag": 32, "learning_rate": 3e-4},
    ),
    "stale reference": Fault(
        kinds=frozenset({"kl", "plateau"}),
        training={"loss": LossConfig(kl_coefficient=1.0), "learning_rate": 3e-4},
    ),
    "NaN advantages": Fault(
        kinds=frozenset({"gradient", "not_finite"}),
        prepare=lambda: rewarded(_fail_once()),
    ),
    "clip of 0.01, eight updates": Fault(
        kinds=frozenset({"clip_saturation"}),
        training={
            "loss": LossConfig(clip_low=0.01, clip_high=0.01),
            "updates_per_batch": 8,
            "prompts": 32,
            "learning_rate": 3e-4,
        },
    ),
}
KINDS = frozenset({*FINDINGS, "self_check", "not_finite", "collapse", "explosion"})
"""Kinds of alerts that say why a run does not learn."""
